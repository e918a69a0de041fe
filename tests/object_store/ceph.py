"""S3: Ceph's RADOS gateway, on a cluster of one monitor and one disk in memory.

A real server of objects. It takes conditional writes, on which Icechunk's transactions rest.
"""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import obstore
from obstore.store import S3Store

from .server import START_S, Server, free_port

KEY, SECRET = "rankscope-key", "rankscope-secret"

CONFIGURATION = """
[global]
fsid = {fsid}
mon host = {monitor}
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
rgw frontends = beast endpoint={address}
rgw thread pool size = 16
"""

# Each with what it may do.
IDENTITIES: Sequence[Sequence[str]] = (
    ("mon.", "mon", "allow *"),
    ("client.admin", "mon", "allow *", "osd", "allow *", "mgr", "allow *"),
    ("osd.0", "mon", "allow profile osd", "osd", "allow *"),
    ("client.rgw", "mon", "allow rw", "osd", "allow rwx"),
)


class Ceph(Server):
    scheme = "s3"
    programs = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw")
    install = "Debian: radosgw ceph-mon ceph-osd"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fsid = str(uuid4())
        self.variables["CEPH_CONF"] = str(folder / "ceph.conf")
        self.monitor = f"[v2:127.0.0.1:{free_port()}]"
        (folder / "mon").mkdir()
        (folder / "osd").mkdir()
        (folder / "ceph.conf").write_text(
            CONFIGURATION.format(
                folder=folder,
                fsid=self.fsid,
                monitor=self.monitor,
                address=urlsplit(self.url).netloc,
            )
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
        self.wait()

    def do(self, *command: str) -> None:
        done = subprocess.run(
            command, env=self.variables, capture_output=True, timeout=START_S, text=True
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"

    def environment(self, url: str) -> Mapping[str, str]:
        return {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def make(self, bucket: str) -> None:
        # obstore makes none; a presigned request does it with what the standard library has.
        signed = obstore.sign(self.client(bucket), "PUT", "", timedelta(seconds=60))
        urllib.request.urlopen(urllib.request.Request(signed, method="PUT"), timeout=30).close()

    def client(self, bucket: str) -> S3Store:
        return S3Store(
            bucket,
            endpoint=self.url,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
        )
