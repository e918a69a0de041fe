"""What the senders wrote down, held against what the store has, read as plain Zarr."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.store import Run, open_run
from rankscope.store.layout import COLUMNS

from .sender import ELEMENTS, loss


@dataclass
class Ledger:
    """One sender's account."""

    rank: int
    sent: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    """By step: counts and checksums of what it was going to send."""
    acknowledged: int = 0
    dropped: int = 0
    durable: bool | None = None
    """What its `close` said; None: it did not come so far."""

    @classmethod
    def read(cls, path: Path, rank: int) -> Ledger:
        """What a sender has written; the last line may be cut off."""
        own = cls(rank)
        if not path.exists():
            return own
        for text in path.read_bytes().split(b"\n")[:-1]:
            line = json.loads(text)
            if "step" in line:
                own.sent[line["step"]] = line
            else:
                own.acknowledged, own.dropped = line["acknowledged"], line["dropped"]
                own.durable = line.get("durable")
        return own


@dataclass
class Stored:
    """One record, as it lies in the arrays of a finished run."""

    step: int
    attempt: int
    ranks: list[int]
    complete: bool
    counts: np.ndarray
    """int64 [sites, counts]"""
    checksum: np.ndarray
    """uint64 [sites]"""
    losses: np.ndarray
    """float64 [ranks], NaN for those that it does not hold."""


def records_of(run: Run) -> Iterator[Stored]:
    """All records of a finished run, which lies in its history alone."""
    assert run.finished
    root: Any = run.zarr()  # zarr's groups say little of what is in them
    total, names = int(root["state"].attrs["records"]), list(COLUMNS)
    history = {
        name: np.asarray(root[f"history/{name}"][:total])
        for name in ("records", "counts", "checksum", "training")
    }
    for place in range(total):
        facts = dict(zip(names, history["records"][place], strict=False))
        words = history["records"][place][len(names) :].astype(np.uint64)
        ranks = [rank for rank in range(64 * len(words)) if int(words[rank // 64]) >> rank % 64 & 1]
        yield Stored(
            step=int(facts["step"]),
            attempt=int(facts["attempt"]),
            ranks=ranks,
            complete=bool(facts["complete"]),
            counts=history["counts"][place],
            checksum=history["checksum"][place],
            losses=history["training"][place][:, 0],
        )


def check(path: Path, ledgers: list[Ledger], *, attempt: int = 0) -> Run:
    """Every frame is stored once, or counted as lost by its sender and told as a gap."""
    run = open_run(path)
    times: Counter[tuple[int, int]] = Counter()
    for record in records_of(run):
        if record.attempt != attempt:
            continue
        _check_sums(record, ledgers)
        times.update((rank, record.step) for rank in record.ranks)
    twice = [key for key, count in times.items() if count > 1]
    assert not twice, f"stored twice: {sorted(twice)[:10]}"
    for own in ledgers:
        _check_losses(run, own, {step for rank, step in times if rank == own.rank}, attempt)
    return run


def _check_sums(record: Stored, ledgers: list[Ledger]) -> None:
    """The record holds exactly what the ranks that it names had written down."""
    where = f"step {record.step} with ranks {record.ranks}"
    lines = [ledgers[rank].sent[record.step] for rank in record.ranks]
    count, nan = (sum(line["counts"][place] for line in lines) for place in (0, 1))
    assert record.counts[0, :2].tolist() == [count, nan], where
    assert record.counts[1, 0] == ELEMENTS, where  # a copy is counted once
    assert int(record.checksum[0]) == sum(line["checksum"][0] for line in lines) % 2**64, where
    assert int(record.checksum[1]) == lines[0]["checksum"][1], where
    told = {rank: own for rank, own in enumerate(record.losses.tolist()) if own == own}
    assert told == {rank: loss(rank, record.step) for rank in record.ranks}, where


def _check_losses(run: Run, own: Ledger, stored: set[int], attempt: int) -> None:
    """What is not there was dropped and counted, and the run says so."""
    who = f"rank {own.rank}"
    assert stored <= own.sent.keys(), who
    missing = sorted(own.sent.keys() - stored)
    if own.durable is None:  # it was killed: of what was not acknowledged nobody knows
        if not own.dropped:
            assert set(range(own.acknowledged)) <= stored, who
        return
    assert len(missing) == own.dropped, f"{who} lacks {missing[:20]} and counts {own.dropped}"
    assert own.acknowledged == len(stored), who
    gaps = run.gaps().query(f"rank == {own.rank} and attempt == {attempt}")
    assert sum(gaps["frames"].tolist()) == own.dropped, f"{who}: {gaps}"
    spans = list(zip(gaps["first_step"], gaps["last_step"], strict=True))
    assert all(any(a <= step <= b for a, b in spans) for step in missing), f"{who}: {gaps}"
