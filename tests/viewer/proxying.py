"""A reverse proxy on a real socket, as nginx and jupyter-server-proxy are."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from threading import Thread
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketClientConnection, WebSocketHandler, websocket_connect


class Proxy:
    """Shows a server under a path, with its own host in the requests, as nginx does by default."""

    def __init__(self, *, path: str, strips: bool) -> None:
        """Start it.

        Args:
            path: what the browser sees before each path, such as `/rankscope`.
            strips: whether the server gets paths without it.
        """
        self.target = ""
        """The server's address, without a path."""
        bound: Future[int] = Future()
        self._thread = Thread(target=self._serve, args=(path, strips, bound), daemon=True)
        self._thread.start()
        self.port = bound.result()
        self.address = f"http://127.0.0.1:{self.port}{path}/"

    def _serve(self, path: str, strips: bool, bound: Future[int]) -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        self._loop = IOLoop.current()
        settings = {"proxy": self, "kept": "" if strips else path}
        routes = [(f"{path}(/.*ws)", Sockets, settings), (f"{path}(/.*)", Pages, settings)]
        self._server = HTTPServer(Application(routes))
        sockets = bind_sockets(0, "127.0.0.1")
        self._server.add_sockets(sockets)
        bound.set_result(sockets[0].getsockname()[1])
        self._loop.start()
        self._loop.close(all_fds=True)

    def stop(self) -> None:
        """Free the port."""

        async def end() -> None:
            self._server.stop()
            await self._server.close_all_connections()
            self._loop.stop()

        self._loop.add_callback(end)
        self._thread.join(timeout=10)


# `Any`: Tornado's settings of a route.
class Pages(RequestHandler):
    def initialize(self, proxy: Any, kept: str) -> None:
        self.proxy, self.kept = proxy, kept

    async def get(self, path: str) -> None:
        await self.pass_on(path)

    async def post(self, path: str) -> None:
        await self.pass_on(path)

    async def pass_on(self, path: str) -> None:
        query = f"?{self.request.query}" if self.request.query else ""
        headers = {name: value for name, value in self.request.headers.items() if name != "Host"}
        request = HTTPRequest(
            self.proxy.target + self.kept + path + query,
            method=self.request.method or "",
            headers={**headers, "Accept-Encoding": "identity"},
            body=self.request.body or None,
            follow_redirects=False,
            allow_nonstandard_methods=True,
        )
        try:
            answer = await AsyncHTTPClient().fetch(request, raise_error=False)
        except OSError:
            self.send_error(502)
            return
        self.set_status(answer.code)
        for name in ("Content-Type", "Location", "Set-Cookie", "Cache-Control"):
            for value in answer.headers.get_list(name):
                self.add_header(name, value)
        self.finish(answer.body)


class Sockets(WebSocketHandler):
    inner: WebSocketClientConnection

    def initialize(self, proxy: Any, kept: str) -> None:
        self.proxy, self.kept = proxy, kept

    def check_origin(self, origin: str) -> bool:
        return True

    async def prepare(self) -> None:
        """Be refused before anything is promised to the browser."""
        names = ("Origin", "Cookie", "Sec-Websocket-Protocol")
        headers = {
            name: self.request.headers[name] for name in names if name in self.request.headers
        }
        address = self.proxy.target.replace("http", "ws") + self.kept + self.path_args[0]
        try:
            self.inner = await websocket_connect(
                HTTPRequest(address, headers=headers), on_message_callback=self.came
            )
        except Exception:
            self.set_status(403)
            self.finish()

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return subprotocols[0] if subprotocols else None

    def came(self, message: str | bytes | None) -> None:
        if message is None:
            self.close()
        else:
            self.write_message(message, binary=isinstance(message, bytes))

    async def on_message(self, message: str | bytes) -> None:
        await self.inner.write_message(message, binary=isinstance(message, bytes))

    def on_close(self) -> None:
        self.inner.close()
