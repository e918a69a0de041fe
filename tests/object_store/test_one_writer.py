"""One writer a run where no kernel holds a lock: leases, takeovers, and answers that are lost."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import pytest

from rankscope.sketch import BusyError, StoreError
from rankscope.store import Event, Record, RunWriter, open_run

if TYPE_CHECKING:
    from .conftest import Bucket
    from .proxy import Proxy

Make = Callable[..., Record]

HOLD = """
import sys
from rankscope.store import RunWriter
writer = RunWriter.open(sys.argv[1], run="gpt")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process_holding(url: str) -> Generator[subprocess.Popen[bytes]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HOLD, url], **pipes)  # type: ignore[call-overload]
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_collector_is_told_who_writes(bucket: Bucket) -> None:
    with another_process_holding(bucket.run) as holder:
        said = rf"is being written by process {holder.pid} on {socket.gethostname()}; stop that"
        with pytest.raises(BusyError, match=said):
            RunWriter.open(bucket.run, run="gpt")
        command = [sys.executable, "-m", "rankscope", "collect", "--bind", "tcp://127.0.0.1:*"]
        command += ["--store", f"{bucket.url}/team", "--run", "gpt"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert second.returncode == 1
    assert f"process {holder.pid}" in second.stderr


def test_after_kill_9_the_next_one_goes_on_at_once(bucket: Bucket, record: Make) -> None:
    with another_process_holding(bucket.run) as holder:
        holder.kill()
        holder.wait()
        with RunWriter.open(bucket.run, run="gpt") as writer:
            writer.catalog.attempt_of("x")
            writer.commit([record(0, {})], streams={"s": 0})

    assert len(open_run(bucket.run).records()) == 1


def test_one_that_was_taken_for_dead_can_store_nothing(
    writer: RunWriter, record: Make, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.commit([record(0)], streams={"s": 0})
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3600 * 10**9)

    with RunWriter.open(bucket.run, run="gpt") as other:
        for use in (
            lambda: writer.commit([record(1, step=100)], streams={"s": 1}),
            writer.finish,
            lambda: writer.commit([], streams={"s": 2}),
        ):
            with pytest.raises(BusyError, match="by another process since this one was taken for"):
                use()
        other.commit([record(1, step=7)], streams={"s": 1})
        writer.close()
        with pytest.raises(BusyError):  # closing gave back nothing that was another's
            RunWriter.open(bucket.run, run="gpt")

    run = open_run(bucket.run)
    assert run.records()["step"].tolist() == [0, 7]


def test_a_quiet_holder_keeps_its_lease(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.store.lease.TERM_S", 4.0)
    monkeypatch.setattr("rankscope.store.lease.RENEW_S", 0.2)
    with RunWriter.open(bucket.run, run="gpt"):
        time.sleep(5.0)
        with pytest.raises(BusyError):
            RunWriter.open(bucket.run, run="gpt")
    RunWriter.open(bucket.run, run="gpt").close()


@pytest.mark.parametrize("stays_away", [False, True])
def test_a_commit_whose_answer_is_lost_is_made_once(
    bucket: Bucket, proxy: Proxy, record: Make, stays_away: bool
) -> None:
    records = [record(0, {}), record(1, {})]
    events = [Event(kind="gap", time_ns=1, step=0, attempt=0, rank=0, text="told once")]
    with RunWriter.open(bucket.run, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.commit([], streams={}, events=[])
        head = bucket.server.path(bucket.name, "team/gpt/refs/branch.main")
        proxy.lose, proxy.cut = f"PUT {head}".encode(), stays_away
        with pytest.raises(StoreError, match="cannot be reached") if stays_away else nullcontext():
            writer.commit(records, streams={"s": 1}, events=events)
        assert proxy.lost.is_set()
        proxy.lose, proxy.cut = b"", False
        if stays_away:
            writer.commit(records, streams={"s": 1}, events=events)
        writer.commit([record(2, {})], streams={"s": 2})

    run = open_run(bucket.run)
    assert run.records()["step"].tolist() == [0, 1, 2]
    assert run.events()["text"].tolist() == ["told once"]


def test_a_run_that_is_deleted_while_it_is_written_is_told(
    bucket: Bucket, writer: RunWriter, record: Make
) -> None:
    writer.commit([record(0)], streams={})
    bucket.delete(*bucket.names())
    with pytest.raises(StoreError, match=r"Cannot write to .*/gpt: some of it is gone; if it was"):
        writer.commit([record(1)], streams={})
