"""How a collector or relay is, over HTTP: `/healthz` for what restarts it, `/counters` for all.

`/metrics` is for Prometheus, where it is among a collector's sinks.

A thread of its own answers from what the loop has put down last, so that no question ever holds up
a frame, and a loop that hangs is seen.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from ..sketch.errors import AddressError
from .address import Address

HANGS_S = 15.0
"""The loop looks up ten times a second; a commit to a slow disk may take seconds."""
QUESTION_S = 5.0
"""Who does not say what he wants for so long is cut off."""
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")


class Health(Protocol):
    """What a loop has put down of itself."""

    def status(self, now: float) -> tuple[int, str]:
        """The code for HTTP, and a sentence."""
        ...

    def counters(self, now: float) -> dict[str, Any]:
        """What has been done so far, by name, as JSON has it."""
        ...


Metrics = Callable[[str], tuple[str, bytes]]
"""Content type and body for Prometheus, of what whoever asks can read."""


class HealthServer:
    """Answers on `place`, as 127.0.0.1:7610; port 0 takes a free one.

    Args:
        look: what the loop has put down last.
        insecure: allow a place that other machines reach.
        metrics: answers `/metrics`; None: nobody does.

    Raises:
        AddressError: it cannot listen there.
    """

    def __init__(
        self,
        place: str,
        look: Callable[[], Health],
        *,
        insecure: bool = False,
        metrics: Metrics | None = None,
    ) -> None:
        host, port = parse_place(place)
        if not insecure and not Address(transport="tcp", host=host, port=port).is_local:
            raise AddressError(
                f"Anybody who reaches {place} could read the counters: "
                "use 127.0.0.1, or say `--insecure` if the network is trusted."
            )
        try:
            self._server = _Server((host, port), _handler_of(look, metrics))
        except OSError as error:
            raise AddressError(
                f"This machine cannot listen on {place}: {error.strerror}."
            ) from None
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._server.server_address[1]}"
        """Where it answers."""
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def parse_place(text: str) -> tuple[str, int]:
    """Host and port of a place to answer at.

    Raises:
        AddressError: the text is no such place.
    """
    match = _PLACE.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise AddressError(f"A place for /healthz looks like 127.0.0.1:7610, got {text!r}.")
    return match[1].strip("[]"), int(match[2])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        super().__init__(place, handler)


def _handler_of(
    look: Callable[[], Health], metrics: Metrics | None
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = QUESTION_S

        def do_GET(self) -> None:
            now, health = time.monotonic(), look()
            match self.path.partition("?")[0]:
                case "/healthz":
                    code, text = health.status(now)
                    self._answer(code, {"status": text})
                case "/counters":
                    self._answer(200, health.counters(now))
                case "/metrics" if metrics is not None:
                    self._send(200, *metrics(self.headers.get("Accept", "")))
                case _:
                    there = ("/healthz", "/counters", *(["/metrics"] if metrics else []))
                    self._answer(404, {"status": f"There is {', '.join(there)}."})

        def _answer(self, code: int, what: dict[str, Any]) -> None:
            self._send(code, "application/json", (json.dumps(what) + "\n").encode())

        def _send(self, code: int, content_type: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a question every few seconds is no news."""

    return Handler
