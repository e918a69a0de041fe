"""Readers in processes of their own, while a run in a bucket is written and cleaned."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from rankscope.store import Record, RunWriter, open_run

if TYPE_CHECKING:
    from .conftest import Bucket

Make = Callable[..., Record]
RECORDS = 60
ASKED = ("rms", "var")

FOLLOW = """
import json, sys
from rankscope.store import open_run
run = open_run(sys.argv[1])
print("ready", flush=True)
seen, wrong, finished = set(), [], False
while not finished:
    run.refresh()
    finished = run.finished
    top, loss = run.scalar("abs_max"), run.training()
    seen.add(len(top))
    if not (len(top) == len(loss) and len(top) % 5 == 0):
        wrong.append(f"{len(top)} of {len(loss)}")
    # A record's largest number is one more than its index.
    right = (top == top["record"] + 1) | top.isnull()
    if not (right.all() and top.notnull().any("site").all()):
        wrong.append(str(top))
print(json.dumps({"seen": sorted(seen), "wrong": wrong}))
"""

STAY = """
import sys
from rankscope.sketch import StoreError
from rankscope.store import open_run
run = open_run(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(repr(run.scalar(line.strip(), steps=3).sum().item()), flush=True)
    except StoreError as error:
        print(error, flush=True)
        run.refresh()
"""


@contextmanager
def process(script: str, url: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, url]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        yield reader
    finally:
        reader.kill()
        reader.communicate()


def answer(reader: subprocess.Popen[str], statistic: str) -> str:
    """What the reader says of step 3."""
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write(f"{statistic}\n")
    reader.stdin.flush()
    return reader.stdout.readline().strip()


def test_several_readers_follow_a_run_while_it_is_written(
    writer: RunWriter, record: Make, bucket: Bucket
) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(process(FOLLOW, bucket.run)) for _ in range(3)]
        for start in range(0, RECORDS, 5):
            tensors = {at: {0: np.full(4, at + 1, np.float32)} for at in range(start, start + 5)}
            writer.commit([record(at, one) for at, one in tensors.items()], streams={})
            writer.compact_if_due()
        writer.finish()

        for reader in readers:
            told = json.loads(reader.communicate(timeout=120)[0])
            assert told["wrong"] == []
            assert told["seen"][-1] == RECORDS


def test_a_reader_of_an_old_snapshot_is_told_to_refresh(
    writer: RunWriter, record: Make, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RETENTION_S": 0.0, "EVERY_S": 0.0, "EVERY_COMMITS": 1}.items():
        monkeypatch.setattr(f"rankscope.store.cleaning.{name}", value)
    monkeypatch.setattr("rankscope.store.writer.FINISH_RETENTION_S", 0.0)
    writer.commit([record(at) for at in range(10)], streams={})
    right = {name: repr(open_run(bucket.run).scalar(name, steps=3).sum().item()) for name in ASKED}
    with process(STAY, bucket.run) as reader:
        assert answer(reader, "rms") == right["rms"]
        chunks = set(bucket.names("team/gpt/chunks"))

        for at in range(10, 100, 10):
            writer.commit([record(index) for index in range(at, at + 10)], streams={})
            writer.compact_if_due()
        writer.finish()

        assert chunks - set(bucket.names("team/gpt/chunks")), "nothing was deleted"
        assert answer(reader, "rms") == right["rms"]  # what it had read it may go on to tell
        assert "can no longer be read; call `refresh()`" in answer(reader, "var")
        assert answer(reader, "var") == right["var"]
    assert len(open_run(bucket.run).records()) == 100
