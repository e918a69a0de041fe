"""The server: sessions of one directory of runs, in a thread, behind one handle."""

from __future__ import annotations

import asyncio
import atexit
import errno
import socket
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import panel as pn
from tornado.ioloop import IOLoop
from tornado.websocket import WebSocketClosedError

from ..sketch.errors import AddressError, NotARunError, StoreError
from ..store.naming import is_there, repositories_in
from ..store.place import Place, place_of
from ..store.query import open_run
from ..store.runs import list_runs
from . import markup, words
from .access import Access
from .app import App
from .door import Alive, Door, TokenLock, log_request
from .figures.colours import LIGHT, THEMES
from .follow import INTERVAL_S, Follower
from .session import Others
from .views import forget, prepare, text

if TYPE_CHECKING:
    from bokeh.application.application import SessionContext
    from bokeh.server.server import Server as BokehServer

    from ..store.query import Run
    from ..store.runs import RunSummary

FORGET_S = 30.0
"""Seconds after which a session is freed that no browser is connected to."""
BODY_BYTES = 64 * 1024
"""The longest body of a request that is read: nothing but tokens is sent so."""


class Runs:
    """The runs under a path, each opened once and followed by one poller."""

    def __init__(self, path: str | Place, *, interval_s: float = INTERVAL_S) -> None:
        self.path = str(path)
        self.interval_s = interval_s
        self._followers: dict[str, Follower] = {}
        self._lock = Lock()
        try:
            self.only = self._follower(self.path, open_run(self.path))
        except NotARunError:
            if not is_there(place_of(self.path)):
                raise
            self.only = None

    def _follower(self, path: str, run: Run) -> Follower:
        return self._followers.setdefault(path, Follower(run, interval_s=self.interval_s))

    def find(self, name: str) -> Follower | None:
        """The run in the folder of that name; None where there is none that can be read."""
        if self.only is not None:
            return self.only
        places = repositories_in(place_of(self.path))
        path = next((place for place in places if place.name == name), None)
        if path is None:
            return None
        with self._lock, suppress(NotARunError, StoreError):  # the list of runs logs why
            return self._followers.get(str(path)) or self._follower(str(path), open_run(path))
        return None

    def list(self) -> list[RunSummary]:
        """The runs in the directory, the latest first."""
        return list_runs(self.path)

    def names(self) -> Sequence[str]:
        """The names of their folders."""
        return [run.path.name for run in self.list()]

    def stop(self) -> None:
        """End all pollers."""
        for follower in self._followers.values():
            follower.stop()


class Server:
    """A running viewer."""

    def __init__(self, runs: Runs, access: Access, *, forget_s: float) -> None:
        self.runs, self.access = runs, access
        self.open: list[App] = []
        """The sessions that are alive."""
        self._bound: Future[BokehServer] = Future()
        self._thread = Thread(
            target=self._serve, args=(forget_s,), name="rankscope-view", daemon=True
        )
        self._thread.start()
        self._server = self._bound.result()
        self.address = f"http://{access.host}:{self._server.port}{access.prefix}/"
        """Where to point a browser."""
        # A thread that is in Icechunk when the interpreter is taken apart aborts the process.
        atexit.register(self.stop)

    def _serve(self, forget_s: float) -> None:
        serving = asyncio.new_event_loop()
        serving.set_exception_handler(tell_failure)
        asyncio.set_event_loop(serving)
        loop = IOLoop.current()
        try:
            self._server = _bind(self._session, loop, self.access, forget_s=forget_s)
            self._server.start()
        except BaseException as error:
            self._bound.set_exception(error)
            loop.close(all_fds=True)
            return
        self._bound.set_result(self._server)
        loop.start()
        loop.close(all_fds=True)

    def _session(self) -> pn.viewable.Viewable:
        """What a browser gets that opens the address."""
        document = pn.state.curdoc  # Bokeh's own is one for all threads, and for all servers
        assert document is not None
        query = {key: values[-1].decode() for key, values in pn.state.session_args.items()}
        prepare(document, query.get("theme", ""), self.access.hosts(self._server.port or 0))
        name = query.get("run", "")
        follower = self.runs.find(name)
        if follower is None:
            return self._index(name, theme=query.get("theme", ""))
        run_key = "" if self.runs.only is not None else name
        soon = IOLoop.current().add_callback
        others = None
        if self.runs.only is None:
            others = Others(names=self.runs.names, find=self.runs.find)
        app = App(
            follower, document=document, soon=soon, run_key=run_key, query=query, others=others
        )
        self.open.append(app)

        def gone(_: SessionContext) -> None:
            app.stop()
            self.open.remove(app)
            forget(document)

        # No work for a client that never loads the page, such as a health check.
        pn.state.onload(app.start)
        pn.state.on_session_destroyed(gone)
        return app.view

    def _index(self, missing: str, *, theme: str) -> pn.viewable.Viewable:
        theme = theme if theme in THEMES else LIGHT.name
        body = markup.title(f"Runs in {self.runs.path}", level=1) + markup.index(
            self.runs.list(), path=self.runs.path, now_s=time.time(), theme=theme
        )
        if missing:
            body = markup.problem(f"There is no run “{words.shorten(missing, 60)}” here.") + body
        return text(body)

    def wait(self) -> None:
        """Block until the server stops."""
        self._thread.join()

    def stop(self) -> None:
        """Close all sessions and free the port."""
        atexit.unregister(self.stop)
        self.runs.stop()
        loop = self._server.io_loop

        def end() -> None:
            self._server.stop()
            loop.stop()

        if self._thread.is_alive():
            loop.add_callback(end)
            self._thread.join(timeout=10)


# `Any`: asyncio's description of what failed.
def tell_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what failed in a task that nobody awaits, but for a write to a page that was left."""
    if not isinstance(context.get("exception"), WebSocketClosedError):
        loop.default_exception_handler(context)


# `session` is what Panel takes: a function that makes a viewable for each browser.
def _bind(session: Any, loop: IOLoop, access: Access, *, forget_s: float) -> BokehServer:
    address, port = access.address, access.port
    try:
        port = _free_port(address, port)
        hosts = access.hosts(port)
        lock = TokenLock(access.token, port=port) if access.token is not None else None
        return pn.io.server.get_server(
            {"/": session},
            port=port,
            address=address,
            prefix=access.prefix,
            loop=loop,
            websocket_origin=hosts,
            auth_provider=Door(prefix=access.prefix, hosts=hosts, lock=lock),
            # Bokeh would show both to the page's scripts, and send them along with each websocket.
            include_headers=[],
            include_cookies=[],
            log_function=log_request,
            http_server_kwargs={"max_body_size": BODY_BYTES},
            unused_session_lifetime_milliseconds=int(forget_s * 1000),
            check_unused_sessions_milliseconds=int(max(forget_s * 500, 100)),
            extra_patterns=[("/liveness", Alive)],
            # Panel's model of the address would take a prefix out of the paths of style sheets.
            location=False,
            title="rankscope",
            show=False,
            start=False,
            verbose=False,
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            cure = f"take another with --port {port + 1}, or --port 0 for any that is free"
            raise AddressError(f"Port {port} on {address} is in use: {cure}.") from error
        raise AddressError(
            f"Cannot listen on {address}:{port}: {error.strerror or error}."
        ) from error


def _free_port(address: str, port: int) -> int:
    """The port, or any free one for 0. Bokeh wants to know it before it binds, for its origins."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, port), family=family) as probe:
        return int(probe.getsockname()[1])


def serve(
    path: str | Place,
    *,
    port: int = 0,
    address: str = "127.0.0.1",
    prefix: str = "",
    origins: Sequence[str] = (),
    token: str | None = None,
    insecure: bool = False,
    interval_s: float = INTERVAL_S,
    forget_s: float = FORGET_S,
) -> Server:
    """Show a run, or a directory of runs, in the browser; returns at once.

    Args:
        path: a run, or a directory that holds runs.
        port: 0 takes any that is free.
        address: where to listen. Any but this machine's own wants a `token`, or `insecure`.
        prefix: what stands before every path, such as `/rankscope`, where a proxy keeps it.
        origins: hosts, `NAME` or `NAME:PORT`, under which browsers reach the server otherwise.
        token: who knows it may look; None: who reaches the server.
        insecure: let all look who reach the address.
        interval_s: seconds between two looks at a run that is watched.
        forget_s: seconds after which a closed page is freed.

    Raises:
        NotARunError: there is neither a run nor a directory at `path`.
        SettingError: the prefix, an origin or the token cannot be used.
        AddressError: the port is taken, or the address is not one of this machine's, or it wants a
            token.
    """
    access = Access(
        address=address, port=port, prefix=prefix, origins=tuple(origins), token=token,
        insecure=insecure,
    )  # fmt: skip
    return Server(Runs(path, interval_s=interval_s), access, forget_s=forget_s)
