"""A job on several hosts that names no collector; here all of them are this machine.

Each torchrun has one of two ranks and knows that the other is elsewhere. They meet at an address
that is not the loopback one, so that what is tried is what other machines would reach.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from ipaddress import ip_address
from pathlib import Path

import pytest

from rankscope.store import open_run

JOB = Path(__file__).parent / "ddp_job.py"


def outer_address() -> str:
    """An address of this machine that others could reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of no machine (RFC 5737); nothing is sent
        except OSError:
            return ""
        address = probe.getsockname()[0]
    return "" if ip_address(address).is_loopback else address


def free_port(address: str) -> int:
    with socket.create_server((address, 0)) as server:
        return server.getsockname()[1]


@pytest.mark.skipif(not outer_address(), reason="This machine has the loopback address alone.")
def test_ranks_of_several_hosts_share_a_collector_with_keys(tmp_path: Path) -> None:
    address = outer_address()
    port = free_port(address)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    command += ["--nproc-per-node", "1", "--master-addr", address, "--master-port", str(port)]
    nodes = [
        subprocess.Popen(
            [*command, "--node-rank", str(node), str(JOB), "hosts", str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for node in range(2)
    ]
    said = [node.communicate(timeout=150)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(said)
    deadline = time.monotonic() + 45
    while not open_run(tmp_path / "hosts").finished:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    run = open_run(tmp_path / "hosts")

    assert run.records().complete.all()
    assert len(run.records()) == 7
    log = (tmp_path / "hosts.log").read_text()
    assert re.search(rf"Listening on tcp://{re.escape(address)}:\d+, with keys", log), log
