"""Buckets of real servers, one for each kind of URL: see `ceph.py`, `azurite.py`, `fake_gcs.py`."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import obstore
import pytest

from rankscope.store import Record, RunWriter, SiteInfo

from ..required import do_without
from .azurite import Azurite
from .ceph import Ceph
from .fake_gcs import FakeGcs
from .proxy import Proxy
from .server import Server

OF_THE_STORE = runpy.run_path(str(Path(__file__).parents[1] / "store" / "conftest.py"))
SITES: list[SiteInfo] = OF_THE_STORE["SITES"]

SERVERS: dict[str, type[Server]] = {one.scheme: one for one in (Ceph, Azurite, FakeGcs)}
THEIR_VARIABLES = ("AWS_", "AZURE_", "AZURITE_", "GOOGLE_")


@dataclass(frozen=True, slots=True)
class Bucket:
    """An empty bucket, and how to look into it beside the store's own way."""

    name: str
    server: Server

    @property
    def url(self) -> str:
        return f"{self.server.scheme}://{self.name}"

    @property
    def run(self) -> str:
        """Where the run `gpt` lies."""
        return f"{self.url}/team/gpt"

    def put(self, name: str, what: bytes) -> None:
        obstore.put(self.server.client(self.name), name, what)

    def delete(self, *names: str) -> None:
        for name in names:
            obstore.delete(self.server.client(self.name), name)

    def names(self, prefix: str = "") -> list[str]:
        """All objects whose names begin so."""
        found = obstore.list(self.server.client(self.name), prefix).collect()
        return sorted(item["path"] for item in found)


@pytest.fixture(scope="session")
def running() -> Iterator[dict[str, Server]]:
    """The servers that were started, by scheme; they go on until the last test."""
    servers: dict[str, Server] = {}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture(params=SERVERS)
def server(
    request: pytest.FixtureRequest,
    running: dict[str, Server],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Server:
    """One that answers, named with its keys in the environment of this process and its children."""
    kind = SERVERS[request.param]
    missing = kind.missing()
    if missing:
        reason = f"no server for {kind.scheme}:// here: {missing} is missing ({kind.install})"
        do_without(reason, "RANKSCOPE_REQUIRE_OBJECT_STORES")
    if kind.scheme not in running:
        running[kind.scheme] = kind(tmp_path_factory.mktemp(kind.scheme))
        running[kind.scheme].start()
    server = running[kind.scheme]
    for name in [name for name in os.environ if name.startswith(THEIR_VARIABLES)]:
        monkeypatch.delenv(name)
    for name, value in server.environment(server.url).items():
        monkeypatch.setenv(name, value)
    return server


_numbers = count()


@pytest.fixture
def bucket(server: Server) -> Bucket:
    """An empty bucket."""
    name = f"runs-{os.getpid()}-{next(_numbers)}"
    server.make(name)
    return Bucket(name, server)


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Generator[Proxy]:
    proxy = Proxy(server.url)
    for name, value in server.environment(proxy.url).items():
        monkeypatch.setenv(name, value)
    yield proxy
    proxy.close()


@pytest.fixture
def record() -> Callable[..., Record]:
    """Makes a record, as for the tests of the store on disk."""
    return OF_THE_STORE["build_record"]


@pytest.fixture
def writer(bucket: Bucket) -> Iterator[RunWriter]:
    """A writer of `bucket.run`, with one attempt and four sites."""
    with open_writer(bucket.run) as writer:
        yield writer


def open_writer(url: str) -> RunWriter:
    writer = RunWriter.open(url, run="gpt")
    writer.catalog.set_attempt(writer.catalog.attempt_of("first launch"), 2, {"dp": 2}, [])
    writer.catalog.add_sites(SITES)
    return writer
