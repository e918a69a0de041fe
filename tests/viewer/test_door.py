"""The door: what is said to whom, asked over real sockets."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import logging
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode, urljoin, urlsplit

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from rankscope.viewer import Server, serve
from rankscope.viewer.door import PAUSE_S, TokenLock

from .proxying import Proxy

TOKEN = "correct horse & <b>"
SECRETS = (TOKEN, quote(TOKEN), "correct")


class Answer(NamedTuple):
    status: int
    place: str
    cookie: str
    text: str
    waits: str


def ask(
    address: str, path: str = "", *, cookie: str = "", typed: str | None = None, scheme: str = ""
) -> Answer:
    """One request of a browser that follows nothing by itself; a proxy says which scheme it has."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    headers = {"Cookie": cookie} if cookie else {}
    headers |= {"X-Forwarded-Proto": scheme} if scheme else {}
    body = None
    if typed is not None:
        body = urlencode({"token": typed})
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    query = f"?{parts.query}" if parts.query else ""
    connection.request("POST" if body else "GET", parts.path + query + path, body, headers)
    got = connection.getresponse()
    told = {name: got.headers.get(name) or "" for name in ("Location", "Set-Cookie", "Retry-After")}
    text = got.read().decode(errors="replace")
    connection.close()
    return Answer(got.status, told["Location"], told["Set-Cookie"], text, told["Retry-After"])


def open_websocket(address: str, page: str, *, cookie: str = "", origin: str = "") -> int:
    """The answer's code to who asks for a websocket for the session in `page`."""
    [session] = re.findall(r'"token":"([^"]+)"', page)
    headers = {"Sec-WebSocket-Protocol": f"bokeh, {session}"}
    headers |= {"Cookie": cookie} if cookie else {}
    headers |= {"Origin": origin} if origin else {}

    async def connect() -> int:
        request = HTTPRequest(address.replace("http", "ws", 1) + "ws", headers=headers)
        try:
            socket = await websocket_connect(request)
        except HTTPClientError as error:
            return error.code
        assert await socket.read_message() is not None
        socket.close()
        while await socket.read_message() is not None:
            pass
        return 101

    return asyncio.run(connect())


@pytest.fixture(scope="module")
def locked(broken_job: Path) -> Iterator[Server]:
    server = serve(broken_job, token=TOKEN)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cookie(locked: Server) -> str:
    """What a browser has that has shown the token."""
    return ask(locked.address, "login", typed=TOKEN).cookie.partition(";")[0]


@pytest.mark.parametrize(
    "path",
    ["", "?run=x&theme=dark", "metadata", "autoload.js?bokeh-autoload-element=x", "?bokeh-token=x"],
)
def test_nothing_of_a_run_is_answered_without_the_token(
    locked: Server, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    for has in ("", "rankscope-1=2|1:0|10:1|4:user|8:cmVhZGVy|0", "user=reader"):
        answer = ask(locked.address, path, cookie=has)

        assert answer.status == 302
        assert answer.place == "./login?" + path.partition("?")[2]
        assert answer.text == ""
    assert locked.open == []
    assert caplog.records == []


def test_only_liveness_is_told_to_all_and_makes_no_page(locked: Server) -> None:
    for path in ("liveness", "liveness?endpoint=/"):
        assert json.loads(ask(locked.address, path).text) == {"alive": True}
    assert locked.open == []


def test_the_token_gives_a_cookie_for_this_path_which_opens_pages_and_websockets(
    locked: Server,
) -> None:
    answer = ask(locked.address, "login?run=a%20b&theme=dark", typed=f" {TOKEN} ")
    cookie, *ways = answer.cookie.split("; ")

    assert answer.status == 303
    assert answer.place == "./?run=a+b&theme=dark"
    # No path: the browser takes that of the login page, as it sees it.
    assert ways == ["HttpOnly", "SameSite=Lax"]
    assert "Secure" in ask(locked.address, "login", typed=TOKEN, scheme="https").cookie.split("; ")
    page = ask(locked.address, cookie=cookie)
    assert page.status == 200
    assert open_websocket(locked.address, page.text, cookie=cookie) == 101
    assert open_websocket(locked.address, page.text) == 403
    assert open_websocket(locked.address, page.text, cookie=cookie[:-1] + "!") == 403


def test_a_link_with_the_token_leaves_no_trace_of_it(
    locked: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    link = f"?run=broken&token={quote(TOKEN)}&step=4"

    sent = ask(locked.address, link)
    let_in = ask(locked.address, sent.place.removeprefix("./"))
    cookie = let_in.cookie.partition(";")[0]
    page = ask(locked.address, let_in.place.removeprefix("./"), cookie=cookie)
    again = ask(locked.address, link, cookie=cookie)

    assert (let_in.status, let_in.place) == (303, "./?run=broken&step=4")
    assert page.status == 200
    assert again.place == sent.place, "also of one who is in already"
    ask(locked.address, f"nowhere{link}")
    ask(locked.address, "liveness")  # the server logs once it has answered
    told = " ".join(record.getMessage() for record in caplog.records)
    assert "404 GET /nowhere" in told
    assert not [secret for secret in SECRETS if secret in told + page.text + let_in.cookie]


def test_a_page_does_not_hold_the_headers_and_cookies_of_its_request(
    locked: Server, cookie: str
) -> None:
    page = ask(locked.address, cookie=f"{cookie}; other=private").text
    [session] = re.findall(r'"token":"([^"]+)"', page)

    sent = json.loads(base64.urlsafe_b64decode(session + "==="))
    payload = json.loads(zlib.decompress(base64.urlsafe_b64decode(sent["__bk__zlib_"] + "===")))

    assert (payload["headers"], payload["cookies"]) == ({}, {})


def test_a_wrong_token_is_told_and_costs_a_second_for_all(broken_job: Path) -> None:
    server = serve(broken_job, token=TOKEN)
    try:
        wrong = ask(server.address, "login?theme=dark", typed="<script>")
        soon = ask(server.address, "login", typed=TOKEN)
    finally:
        server.stop()

    assert (wrong.status, wrong.cookie) == (403, "")
    assert "This is not the token. Another can be tried in a second." in wrong.text
    assert "<script>" not in wrong.text
    assert "color-scheme: dark" in wrong.text
    assert (soon.status, soon.cookie, soon.waits) == (429, "", "1")
    assert "Wait a second." in soon.text


def test_a_lock_rests_after_a_wrong_token_and_no_longer() -> None:
    now = [100.0]
    lock = TokenLock(TOKEN, port=1, clock=lambda: now[0])

    assert not lock.is_resting()
    assert not lock.is_opened_by(b"\xff")
    now[0] += PAUSE_S * 0.9
    assert lock.is_resting()
    now[0] += PAUSE_S * 0.2
    assert not lock.is_resting()
    assert lock.is_opened_by(TOKEN.encode())
    assert not lock.is_resting()


def test_cookies_outlive_a_restart_but_not_another_token_or_port() -> None:
    cookie = TokenLock(TOKEN, port=5006).new_cookie().decode()

    assert TokenLock(TOKEN, port=5006).knows(cookie)
    assert not TokenLock(TOKEN + "!", port=5006).knows(cookie)
    assert not TokenLock(TOKEN, port=5007).knows(cookie)
    assert not TokenLock(TOKEN, port=5006).knows(None)


def test_pages_of_foreign_origins_are_refused_and_the_log_says_which_flag_lets_them_in(
    broken_job: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(broken_job, origins=["lab.org"])
    foreign = ["http://evil.org", "https://lab.org:8443", "null", "http://a;reboot"]
    try:
        page = ask(server.address).text
        # A session is there for the one that comes first; the others make their own.
        assert open_websocket(server.address, page, origin=server.address.rstrip("/")) == 101
        assert open_websocket(server.address, page, origin="https://lab.org") == 101
        assert open_websocket(server.address, page) == 101, "what is no browser has no origin"
        for origin in foreign * 2:
            assert open_websocket(server.address, page, origin=origin) == 403
    finally:
        server.stop()

    told = [one.getMessage() for one in caplog.records if one.name == "rankscope.viewer.door"]
    assert len(told) == len(foreign), "each once"
    assert "'http://evil.org' asked for a run and was refused" in told[0]
    assert told[0].endswith("start it with --allow-origin evil.org")
    assert told[1].endswith("start it with --allow-origin lab.org:8443")
    assert all(line.endswith("That is no host that could be allowed.") for line in told[2:])


def test_a_prefix_stands_before_all_that_is_answered(broken_job: Path) -> None:
    server = serve(broken_job, token=TOKEN, prefix="/lab/runs")
    root = server.address.removesuffix("/lab/runs/")
    try:
        assert server.address == f"{root}/lab/runs/"
        assert ask(server.address).place == "./login?"
        # Relative to /lab/runs this is /lab/runs/.
        assert ask(root, "/lab/runs?step=1").place == "runs/?step=1"
        assert ask(server.address, "liveness").status == 200
        assert [ask(root, path).status for path in ("/", "/login", "/liveness")] == [404] * 3
    finally:
        server.stop()


def test_behind_a_proxy_that_takes_its_path_away_all_is_found(broken_job: Path) -> None:
    proxy = Proxy(path="/user/x/proxy/5006", strips=True)
    origin = f"http://127.0.0.1:{proxy.port}"
    server = serve(broken_job, token=TOKEN, origins=[origin.removeprefix("http://")])
    proxy.target = server.address.rstrip("/")
    try:
        login = urljoin(proxy.address, ask(proxy.address, "?step=3").place)
        let_in = ask(login, typed=TOKEN)
        cookie = let_in.cookie.partition(";")[0]
        page = ask(urljoin(login, let_in.place), cookie=cookie).text
        files = re.findall(r'(?:src|href)="([^"]+)"', page)

        assert login == f"{proxy.address}login?step=3"
        assert urljoin(login, let_in.place) == f"{proxy.address}?step=3"
        assert len(files) > 5
        assert {ask(urljoin(proxy.address, file)).status for file in files} == {200}
        assert open_websocket(proxy.address, page, cookie=cookie, origin=origin) == 101
        assert open_websocket(proxy.address, page, origin=origin) == 403
    finally:
        proxy.stop()
        server.stop()
