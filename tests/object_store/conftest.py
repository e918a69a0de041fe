"""A real S3 server: Ceph's RADOS gateway, on a cluster of one monitor and one disk in memory.

Debian has it (`apt-get install --no-install-recommends radosgw ceph-mon ceph-osd`). It takes
conditional writes, on which Icechunk's transactions rest.
"""

from __future__ import annotations

import os
import runpy
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from uuid import uuid4

import obstore
import pytest
from obstore.store import S3Store

from rankscope.store import Record, RunWriter, SiteInfo

OF_THE_STORE = runpy.run_path(str(Path(__file__).parents[1] / "store" / "conftest.py"))
SITES: list[SiteInfo] = OF_THE_STORE["SITES"]

PROGRAMS = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw")
KEY, SECRET = "rankscope-key", "rankscope-secret"
START_S = 120.0

CONFIGURATION = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{mon_port}]
mon initial members = a
keyring = {folder}/keyring
run dir = {folder}
log file = {folder}/$name.log
mon cluster log file = {folder}/cluster.log
admin socket = {folder}/$name.asok
mon data = {folder}/mon
osd data = {folder}/osd
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr1 = false
mon allow pool size one = true
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 2147483648
osd heartbeat grace = 600
paxos propose interval = 0.05
paxos min wait = 0.01
rgw frontends = beast endpoint=127.0.0.1:{s3_port}
rgw thread pool size = 16
"""

# Each with what it may do.
IDENTITIES: Sequence[Sequence[str]] = (
    ("mon.", "mon", "allow *"),
    ("client.admin", "mon", "allow *", "osd", "allow *", "mgr", "allow *"),
    ("osd.0", "mon", "allow profile osd", "osd", "allow *"),
    ("client.rgw", "mon", "allow rw", "osd", "allow rwx"),
)


class Ceph:
    """The processes of one small cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fsid = str(uuid4())
        mon_port, s3_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{s3_port}"
        self.environment = os.environ | {"CEPH_CONF": str(folder / "ceph.conf")}
        self.servers: list[subprocess.Popen[bytes]] = []
        self.monitor = f"[v2:127.0.0.1:{mon_port}]"
        (folder / "mon").mkdir()
        (folder / "osd").mkdir()
        (folder / "ceph.conf").write_text(
            CONFIGURATION.format(folder=folder, fsid=self.fsid, mon_port=mon_port, s3_port=s3_port)
        )

    def start(self) -> None:
        keyring, osd = str(self.folder / "keyring"), str(uuid4())
        self.do("ceph-authtool", "--create-keyring", keyring)
        for name, *rights in IDENTITIES:
            pairs = zip(rights[::2], rights[1::2], strict=True)
            caps = [word for pair in pairs for word in ("--cap", *pair)]
            self.do("ceph-authtool", keyring, "--gen-key", "-n", name, *caps)
        monmap = str(self.folder / "monmap")
        self.do("monmaptool", "--create", "--addv", "a", self.monitor, "--fsid", self.fsid, monmap)
        self.do("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        self.serve("ceph-mon", "-i", "a", "-f")
        self.do("ceph", "--connect-timeout", str(int(START_S)), "osd", "new", osd)
        self.do("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self.serve("ceph-osd", "-i", "0", "-f")
        user = ("user", "create", "--uid", "rankscope", "--display-name", "rankscope")
        self.do("radosgw-admin", *user, "--access-key", KEY, "--secret-key", SECRET)
        self.serve("radosgw", "-n", "client.rgw", "-f")
        wait_for(lambda: answers(self.url), self.last_words)

    def do(self, *command: str) -> None:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, timeout=START_S, text=True
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"

    def serve(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("wb") as out:
            server = subprocess.Popen(command, env=self.environment, stdout=out, stderr=out)
        self.servers.append(server)

    def last_words(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.out"))

    def stop(self) -> None:
        for server in reversed(self.servers):
            server.kill()
            server.wait()


@dataclass(frozen=True, slots=True)
class Bucket:
    """An empty bucket, and how to look into it beside the store's own way."""

    name: str
    endpoint: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def run(self) -> str:
        """Where the run `gpt` lies."""
        return f"{self.url}/team/gpt"

    def client(self) -> S3Store:
        return S3Store(
            self.name,
            endpoint=self.endpoint,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def names(self, prefix: str = "") -> list[str]:
        """All objects whose names begin so."""
        return sorted(item["path"] for item in obstore.list(self.client(), prefix).collect())


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running S3 server."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        reason = f"no S3 server here: {missing[0]} is missing (Debian: radosgw ceph-mon ceph-osd)"
        if os.environ.get("RANKSCOPE_REQUIRE_S3"):
            pytest.fail(reason)
        pytest.skip(reason)
    ceph = Ceph(tmp_path_factory.mktemp("ceph"))
    try:
        ceph.start()
        yield ceph.url
    finally:
        ceph.stop()


@pytest.fixture
def aws(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment that names the server and its keys, for this process and its children."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return s3


_numbers = count()


@pytest.fixture
def bucket(aws: str) -> Bucket:
    """An empty bucket."""
    name = f"runs-{os.getpid()}-{next(_numbers)}"
    make_bucket(aws, name)
    return Bucket(name, aws)


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
    writer.set_attempt(writer.attempt_of("first launch"), 2, {"dp": 2}, [])
    writer.add_sites(SITES)
    return writer


def make_bucket(endpoint: str, name: str) -> None:
    """obstore makes none; a presigned request does it with what the standard library has."""
    signed = obstore.sign(
        S3Store(
            name,
            endpoint=endpoint,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
        ),
        "PUT",
        "",
        timedelta(seconds=60),
    )
    urllib.request.urlopen(urllib.request.Request(signed, method="PUT"), timeout=30).close()


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def wait_for(happened: Callable[[], bool], said: Callable[[], str]) -> None:
    until = time.monotonic() + START_S
    while not happened():
        assert time.monotonic() < until, said()
        time.sleep(0.05)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
