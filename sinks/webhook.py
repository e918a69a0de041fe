"""Incidents as JSON that is posted to an address, in the form that Slack's webhooks take."""

from __future__ import annotations

import json
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ..sketch.errors import SettingError
from .json_lines import summary_of, trouble_of
from .news import Found, News, Rejected, Trouble

TIMEOUT_S = 5.0
AGAIN = (408, 425, 429)
"""Of the codes that blame who asks those after which it is worth to ask again."""


class Webhook:
    """Posts each incident when it begins, gets worse, is over, and has turned out to have another
    cause.

    The address is a secret, and in no message and no log line: who has it can post.

    Args:
        url: where to.
        timeout_s: to connect, and for the answer.

    Raises:
        SettingError: it is no address for HTTP.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.host = host_of(url)
        """Whom it calls."""
        self._url = url
        self._timeout_s = timeout_s
        self._opener = build_opener(_NoRedirect)

    def take(self, news: News) -> None:
        """Post an incident, or what ranks met; all else is no news here."""
        match news:
            case Found():
                message = message_of(news)
            case Trouble():
                text = f"{news.run}, step {news.step}: {news.text}"
                fields = {"event": news.kind, **trouble_of(news)}
                message = {"text": _escaped(text), "rankscope": fields}
            case _:
                return
        body = json.dumps(message).encode()
        request = Request(self._url, body, {"Content-Type": "application/json"}, method="POST")
        try:
            self._opener.open(request, timeout=self._timeout_s).close()
        except HTTPError as error:
            code = error.code
            error.close()
            if code < 500 and code not in AGAIN:
                raise Rejected(f"{self.host} answered {code}") from None
            raise ConnectionError(f"{self.host} answered {code}") from None
        except (URLError, OSError) as error:
            raise ConnectionError(f"{self.host} did not answer: {_reason(error)}") from None

    def close(self) -> None:
        """Nothing is kept open."""


class _NoRedirect(HTTPRedirectHandler):
    """A moved webhook must be told anew: a POST that is redirected becomes a GET."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


def host_of(url: str) -> str:
    """The host of an address for HTTP.

    Raises:
        SettingError: it is none. The address is not told, for it is a secret.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise SettingError("The address of `--sink webhook:` cannot be read.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise SettingError(
            "`--sink webhook:` takes an address as https://host/path, "
            f"got one that begins with {parts.scheme + ':' if parts.scheme else 'no scheme'!r}."
        )
    return host


def message_of(news: Found) -> dict[str, Any]:
    """Sentences for people as `text`, and the incident's fields for programs."""
    incident = news.incident
    state = "" if incident.last_step is None else f", over since step {incident.last_step}"
    more = len(incident.alerts) - 1
    also = f" ({more} more alert{'s' * (more > 1)}, {incident.sites} sites)" if more else ""
    text = (
        f"{news.run}, step {incident.first_step}{state}: {incident.severity_at_first} "
        f"{incident.cause.rule}. {incident.text}{also}"
    )
    return {"text": _escaped(text), "rankscope": {"run": news.run, **summary_of(incident)}}


def _escaped(text: str) -> str:
    """Names of tensors are other people's words: they must not call a whole channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _reason(error: OSError) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    return str(reason)
