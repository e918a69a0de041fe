"""Alerts that are posted to servers: one that is well, one that fails, one that hangs."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rankscope.sinks import Feed, Rejected, Trouble
from rankscope.sinks.webhook import Webhook
from rankscope.sketch import SettingError

from ..collector.serving import wait_until
from .telling import ALERT, found, numbers


@dataclass
class Server:
    """What a server was posted; and the codes that it answers, the last of them for ever."""

    codes: list[int]
    posted: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    types: list[str] = field(default_factory=list[str])
    url: str = ""


@contextmanager
def answering(*codes: int) -> Generator[Server]:
    """A server on loopback."""
    state = Server(list(codes))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            state.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            state.types.append(self.headers["Content-Type"])
            code = state.codes.pop(0) if len(state.codes) > 1 else state.codes[0]
            self.send_response(code)
            if code == 302:
                self.send_header("Location", state.url)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_address[1]}/hook/secret-token"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


def test_an_alert_is_a_sentence_for_people_and_fields_for_programs() -> None:
    with answering(200) as server:
        sink = Webhook(server.url)
        sink.take(found())
        sink.take(found(alert=replace(ALERT, last_step=9)))
        sink.take(numbers())

    begins, ends = server.posted
    assert begins["text"] == (
        "demo, step 3: error replica-divergence. Copies of &lt;it&gt; differ between ranks."
    )
    assert begins["rankscope"]["rule"] == "replica-divergence"
    assert begins["rankscope"]["ranks"] == [2]
    assert ends["text"].startswith("demo, step 3, over since step 9: ")
    assert server.types == ["application/json"] * 2


def test_that_ranks_are_lost_is_posted() -> None:
    lost = Trouble(
        run="demo", launch="one", attempt=1, kind="ranks-lost", ranks=(0, 3), step=46,
        text="Ranks lost: 0, 3 (last seen in step 46).", time_ns=ALERT.time_ns,
    )  # fmt: skip
    with answering(200) as server:
        Webhook(server.url).take(lost)

    [posted] = server.posted
    assert posted["text"] == "demo, step 46: Ranks lost: 0, 3 (last seen in step 46)."
    assert posted["rankscope"]["event"] == "ranks-lost"
    assert (posted["rankscope"]["attempt"], posted["rankscope"]["ranks"]) == (1, [0, 3])


def test_a_server_that_fails_is_asked_again() -> None:
    with answering(500, 429, 200) as server:
        feed = Feed("webhook", Webhook(server.url), pauses_s=(0.01, 0.01, 0.01))
        feed.put(found())
        wait_until(lambda: feed.counts().delivered)

        assert len(server.posted) == 3
        assert feed.counts().retried == 2
        feed.end()
        assert feed.join(time.monotonic() + 5)


def test_one_that_fails_for_good_is_given_up_and_no_secret_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with answering(500) as server, caplog.at_level(logging.DEBUG):
        feed = Feed("webhook", Webhook(server.url), pauses_s=(0.01, 0.01))
        feed.put(found())
        wait_until(lambda: feed.counts().dropped)
        feed.end()
        assert feed.join(time.monotonic() + 5)

    assert len(server.posted) == 3
    assert "127.0.0.1 answered 500" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("code", [302, 404, 410])
def test_one_that_does_not_want_it_is_not_asked_again(code: int) -> None:
    with answering(code) as server, pytest.raises(Rejected, match=f"127.0.0.1 answered {code}"):
        Webhook(server.url).take(found())

    assert len(server.posted) == 1


def test_one_that_hangs_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes the connection, and is silent
        sink = Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout_s=0.2)
        began = time.monotonic()
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1 did not answer: timed out"):
            sink.take(found())

        assert time.monotonic() - began < 2.0


def test_one_that_is_not_there_is_an_error_that_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionError, match="Connection refused"):
        Webhook(f"http://127.0.0.1:{port}/").take(found())


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/x", "hooks.slack.com/x", "http://"]
)
def test_only_addresses_for_http_are_taken(url: str) -> None:
    with pytest.raises(SettingError, match="takes an address as https://host/path"):
        Webhook(url)


def test_an_address_that_cannot_be_read_is_not_repeated() -> None:
    with pytest.raises(SettingError, match="cannot be read") as error:
        Webhook("https://[secret/x")

    assert "secret" not in str(error.value)
