"""The door: asked by Bokeh before each page and websocket who that is."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from bokeh.server.auth_provider import AuthProvider
from bokeh.server.util import check_allowlist
from tornado.httputil import HTTPServerRequest
from tornado.log import access_log
from tornado.web import RequestHandler, create_signed_value, decode_signed_value
from tornado.websocket import WebSocketHandler

from . import markup
from .access import ORIGIN
from .figures.colours import LIGHT, THEMES
from .views.themes import root_css

CSS = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
PAGE = Template(Path(__file__).with_name("login.html").read_text(encoding="utf-8"))

PAUSE_S = 1.0
"""Seconds after a wrong token in which none is tried, whoever offers it."""
LASTS_DAYS = 31
"""How long a cookie is good; the browser forgets it when it is closed."""
MOST_TOLD = 100
"""Foreign origins that are logged, each once."""

_log = logging.getLogger(__name__)


class TokenLock:
    """A token, and the cookies that browsers have instead once they have shown it."""

    def __init__(
        self, token: str, *, port: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make it.

        Args:
            token: opens it.
            port: of the server: browsers send a cookie to all ports of a host.
            clock: seconds.
        """
        self.cookie = f"rankscope-{port}"
        self._clock, self._closed_until = clock, 0.0
        self._digest = hashlib.sha256(token.encode()).digest()
        # Of the token, so that another token ends what was given for this one, and a restart does
        # not. Slow to compute, so that no cookie gives a short token away.
        self._key = hashlib.scrypt(token.encode(), salt=b"rankscope view", n=2**14, r=8, p=1)

    def is_resting(self) -> bool:
        """Whether no token is tried now."""
        return self._clock() < self._closed_until

    def is_opened_by(self, token: bytes) -> bool:
        """Whether that is the token; after a wrong one the lock rests."""
        right = hmac.compare_digest(hashlib.sha256(token).digest(), self._digest)
        if not right:
            self._closed_until = self._clock() + PAUSE_S
        return right

    def knows(self, cookie: str | None) -> bool:
        """Whether it gave that cookie."""
        days = LASTS_DAYS
        return decode_signed_value(self._key, self.cookie, cookie, max_age_days=days) is not None

    def new_cookie(self) -> bytes:
        """What to give to a browser that has shown the token."""
        # Not by `cookie_secret`, which Panel has once for all servers of a process.
        return create_signed_value(self._key, self.cookie, "reader")


class Door(AuthProvider):
    """Lets in who has shown the token, if there is one, and pages of known origins only.

    All that it answers is relative, so it need not know under which path a proxy shows it.
    """

    def __init__(self, *, prefix: str, hosts: Sequence[str], lock: TokenLock | None) -> None:
        """Make it.

        Args:
            prefix: stands before every path.
            hosts: `name:port`, whose pages may open a websocket.
            lock: None lets everybody in.
        """
        self.prefix, self.hosts, self.lock = prefix, hosts, lock
        self._told: set[str] = set()
        super().__init__()

    @property
    def get_user_async(self) -> Any:  # Bokeh declares a request, and gives the handler
        """Says who asks, or sends away."""
        return self._look

    @property
    def login_url(self) -> str:
        """Where the token is asked for."""
        return "/login"

    @property
    def login_handler(self) -> type[RequestHandler] | None:
        """Asks for it."""
        return Login if self.lock is not None else None

    async def _look(self, handler: RequestHandler) -> str | None:
        request = handler.request
        if isinstance(handler, WebSocketHandler):
            # Panel refuses one who is nobody.
            return "reader" if self._is_known(request) and self._may_enter(handler) else None
        if self.prefix and request.path == self.prefix:
            # What is relative to /rankscope is in /, not in /rankscope/.
            handler.redirect(f"{self.prefix.rpartition('/')[2]}/?{request.query}")
        elif self._may_enter(handler):
            return "reader"
        else:
            handler.redirect(f"./login?{request.query}")
        return None

    def _may_enter(self, handler: RequestHandler) -> bool:
        if self.lock is None:
            return True
        shows = "token" in handler.request.query_arguments
        return not shows and self.lock.knows(handler.get_cookie(self.lock.cookie))

    def _is_known(self, request: HTTPServerRequest) -> bool:
        origin = request.headers.get("Origin")
        if origin is None:  # no browser
            return True
        host = urlsplit(origin).netloc.lower()
        known = bool(host) and check_allowlist(host, self.hosts)
        if not known and origin not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(origin)
            cure = "That is no host that could be allowed."
            if ORIGIN.fullmatch(host):
                cure = f"If you reach the viewer so, start it with --allow-origin {host}"
            _log.warning("A page of %s asked for a run and was refused. %s", ascii(origin), cure)
        return known


class Login(RequestHandler):
    """Asks for the token: of a person with a page, of a link in its address."""

    def get(self) -> None:
        """Try the token of a link, or ask."""
        tokens = self.request.query_arguments.get("token")
        if tokens is None:
            self._ask()
        else:
            self._try(tokens[-1])

    def post(self) -> None:
        """Try what was typed. It changes nothing but one's own cookie, so that forging is idle."""
        self._try(self.request.body_arguments.get("token", [b""])[-1].strip())

    def _try(self, token: bytes) -> None:
        door: Door = self.application.auth_provider  # pyright: ignore  # Bokeh's own attribute
        lock = door.lock
        assert lock is not None, "there is no login without a lock"
        if lock.is_resting():
            self.set_header("Retry-After", "1")
            return self._ask("A wrong token was tried just now. Wait a second.", status=429)
        if not lock.is_opened_by(token):
            return self._ask("This is not the token. Another can be tried in a second.", status=403)
        proto = self.request.headers.get("X-Forwarded-Proto", self.request.protocol)
        # Without a path the browser takes that of this page, as it sees it: also behind a proxy.
        self.set_cookie(
            lock.cookie, lock.new_cookie(),
            path="", httponly=True, samesite="Lax", secure=proto.startswith("https"),
        )  # fmt: skip
        self.redirect(_address(self), status=303)

    def _ask(self, problem: str = "", *, status: int = 200) -> None:
        query = _query(self)
        theme = THEMES.get(query.get("theme", ""), LIGHT)
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        self.set_header("Referrer-Policy", "no-referrer")
        page = PAGE.substitute(
            css=CSS + root_css(theme),
            logo=markup.LOGO,
            problem=markup.problem(problem),
            action=escape(f"login?{urlencode(query)}"),
        )
        self.finish(page)


class Alive(RequestHandler):
    """Tells everybody that the server is there. Panel's own would build a page for who asks so."""

    def get(self) -> None:
        """Say so."""
        self.set_header("Cache-Control", "no-store")
        self.finish({"alive": True})


def _query(handler: RequestHandler) -> Mapping[str, str]:
    """What the address asks for, without the token."""
    pairs = parse_qsl(handler.request.query, keep_blank_values=True, errors="replace")
    return {name: value for name, value in pairs if name != "token"}


def _address(handler: RequestHandler) -> str:
    """The relative address of what was asked for, without the token."""
    query = urlencode(_query(handler), safe=":.,[]")
    return f"./?{query}" if query else "./"


def log_request(handler: RequestHandler) -> None:
    """Log as Tornado does, without the query: a link may hold the token."""
    request, status = handler.request, handler.get_status()
    write = access_log.info if status < 400 else access_log.warning
    took_ms = 1000 * request.request_time()
    write("%d %s %s (%s) %.2fms", status, request.method, request.path, request.remote_ip, took_ms)
