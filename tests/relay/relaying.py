"""Relay processes on loopback, for tests with real sockets."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from queue import Queue
from typing import Any

from rankscope.relay import RelaySettings, Service
from rankscope.store import Run
from rankscope.wire.keys import RelayKeys

from ..collector.serving import STARTED, VALUES


def start_relay(to: str, *options: str, port: str = "*") -> tuple[subprocess.Popen[str], str]:
    """A relay process, and where it listens; ended by `stop_collectors`."""
    command = [sys.executable, "-m", "rankscope", "relay", "--announce", "--to", to]
    process = subprocess.Popen(
        [*command, "--bind", f"tcp://127.0.0.1:{port}", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    STARTED.append(process)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return process, json.loads(line)["address"]


@contextmanager
def relaying(
    to: str, keys: RelayKeys | None = None, address: str = "tcp://127.0.0.1:*"
) -> Generator[Service]:
    """A relay without a spool, on a thread; when the block ends it is stopped."""
    # Its share of memory is that of a process, which is the tests' here and takes some by itself.
    settings = RelaySettings(drain_s=0.5, memory_bytes=2 << 30)
    ended, began = threading.Event(), Queue[Service]()

    def serve() -> None:
        service = Service(address, to, settings=settings, keys=keys)
        began.put(service)
        service.run(ended.is_set)
        service.close()

    thread = threading.Thread(target=serve)  # SQLite stays on the thread that opened it
    thread.start()
    try:
        yield began.get(timeout=60)
    finally:
        ended.set()
        thread.join()


def end(process: subprocess.Popen[str]) -> str:
    """Wait for a process that ends well by itself; what it logged."""
    log = process.communicate(timeout=60)[1]
    assert process.returncode == 0, log
    return log


def statistics_of(log: str) -> dict[str, Any]:
    """What a relay that has ended says of itself."""
    last = log.splitlines()[-1]
    return json.loads(last[last.index("{") :])


def assert_each_frame_is_stored_once(run: Run, ranks: int, steps: int) -> None:
    """Every step of every rank, and nothing twice."""
    records = run.records(all_attempts=True)
    assert records.step.tolist() == list(range(steps))
    assert records.complete.all()
    counts = run.scalar("count").sel(site="activation:fc").values
    assert counts.tolist() == [float(ranks * VALUES)] * steps
    assert not run.events().kind.eq("gap").any()


def everything(run: Run) -> list[object]:
    """What two runs of the same frames have alike: records, and each sketch bit for bit."""
    records = run.records()
    whole = records[["step", "complete", "partial"]].values.tolist()
    return [whole, *(run.table(step) for step in records.step.tolist())]


def free_port() -> str:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
