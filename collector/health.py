"""How the collector is, over HTTP: `/healthz` for what restarts it, `/counters` for who looks.

`/metrics` is for Prometheus, where it is among the sinks.

A thread of its own answers from what the loop has put down last, so that no question ever holds up
a frame, and a loop that hangs is seen.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..sinks.feed import FeedCounts
from ..sinks.opening import Metrics
from ..sketch.errors import AddressError
from ..wire.address import Address
from .session import CollectorStatistics

HANGS_S = 15.0
"""The loop looks up ten times a second; a commit to a slow disk may take seconds."""
QUESTION_S = 5.0
"""Who does not say what he wants for so long is cut off."""
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What the loop has put down."""

    at: float
    """When, on the monotonic clock."""
    address: str
    started: float
    """When the collector began, on the same clock."""
    failing: str
    """Why the store takes nothing at the moment; empty where it does."""
    is_full: bool
    """Whether agents are held back for want of memory."""
    counts: CollectorStatistics
    resident_bytes: int = 0
    """What the process takes of the machine's memory."""
    sinks: Mapping[str, FeedCounts] = field(default_factory=dict[str, FeedCounts])
    """By sink how it keeps up."""

    def status(self, now: float) -> tuple[int, str]:
        """The code for HTTP, and a sentence."""
        if now - self.at > HANGS_S:
            return 503, f"The collector has not looked up for {now - self.at:.0f} s."
        if self.failing:
            return 503, self.failing
        if self.is_full:
            return 200, "Memory is full, and agents are held back."
        return 200, "ok"


class HealthServer:
    """Answers on `place`, as 127.0.0.1:7601; port 0 takes a free one.

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
        match = _PLACE.fullmatch(place)
        if match is None or int(match[2]) > 65535:
            raise AddressError(f"A place for /healthz looks like 127.0.0.1:7601, got {place!r}.")
        host, port = match[1].strip("[]"), int(match[2])
        if not insecure and not Address(transport="tcp", host=host, port=port).is_local:
            raise AddressError(
                f"Anybody who reaches {place} could read the collector's counters: "
                "use 127.0.0.1, or say `--insecure` if the network is trusted."
            )
        try:
            self._server = _Server((host, port), _handler_of(look, metrics))
        except OSError as error:
            raise AddressError(
                f"This machine cannot listen on {place}: {error.strerror}."
            ) from None
        self.address = f"http://{host}:{self._server.server_address[1]}"
        """Where it answers."""
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


def _handler_of(
    look: Callable[[], Health], metrics: Metrics | None
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = QUESTION_S

        def do_GET(self) -> None:
            now, health = time.monotonic(), look()
            code, text = health.status(now)
            match self.path.partition("?")[0]:
                case "/healthz":
                    self._answer(code, {"status": text})
                case "/counters":
                    self._answer(200, _counters(health, now, text))
                case "/metrics" if metrics is not None:
                    accept = self.headers.get("Accept", "")
                    self._send(200, *metrics.render(accept, pipeline_of(health, now), health.sinks))
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


def pipeline_of(health: Health, now: float) -> dict[str, float]:
    """The same as numbers by name, for sinks."""
    counts = {name: float(value) for name, value in asdict(health.counts).items()}
    return {
        **counts,
        "resident_bytes": float(health.resident_bytes),
        "uptime_s": now - health.started,
    }


def _counters(health: Health, now: float, text: str) -> dict[str, Any]:
    return {
        "status": text,
        "address": health.address,
        "uptime_s": round(now - health.started, 3),
        "is_full": health.is_full,
        "resident_bytes": health.resident_bytes,
        **asdict(health.counts),
        "sinks": {name: asdict(counts) for name, counts in health.sinks.items()},
    }
