"""A collector that was killed and started again judges as one that never ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import pytest

from rankscope.agent import Outbox
from rankscope.sketch import SketchTable, sketch_array
from rankscope.store import Run, open_run
from rankscope.wire import Frame, Site, pack_frame

from .reducing import SITES, gradients
from .serving import close_all, outbox, start_collector, wait_until

RANKS, STEPS = 2, 64
OBSERVED = [
    msgspec.structs.replace(site, dtype="bfloat16") if site.kind.startswith("local") else site
    for site in SITES
] + [Site(kind="activation", name="fc", placement={"dp": "shard"}, dtype="float32")]
RESTART = "rank-joined", "rank-lost"
"""Kinds of events that may tell of it."""


def frames_of(step: int, faults: dict[str, Sequence[int]]) -> list[Frame]:
    """What each rank says about a step."""
    drawn = gradients(RANKS, step).astype(ml_dtypes.bfloat16).astype(np.float32)
    reduced = (drawn.astype(np.float64).sum(0) / RANKS).astype(np.float32)
    if step in faults.get("nudged", ()):
        reduced[1, 7] += np.abs(reduced[1]).max() / 1000
    if step in faults.get("added", ()):
        reduced *= RANKS
    size = 500.0 if step in faults.get("large", ()) else 1.0
    told = []
    for rank in range(RANKS):
        arrays = [*drawn[rank], *reduced, size * drawn[rank].reshape(-1)]
        told.append(
            Frame(
                step=step,
                time_ns=1_000_000_000 * (1 + step),
                sites=np.arange(len(OBSERVED), dtype=np.uint32),
                table=SketchTable.concatenate([sketch_array(one) for one in arrays]),
                training={"loss": 2.0 + step % 3 / 10},
                unmatched=step in faults.get("unmatched", ()),
            )
        )
    return told


def train(boxes: Sequence[Outbox], steps: range, faults: dict[str, Sequence[int]]) -> None:
    """These steps, and all of them durable."""
    for step in steps:
        for box, frame in zip(boxes, frames_of(step, faults), strict=True):
            box.send(pack_frame(frame))
            box.poll(time.monotonic())

    def all_are() -> bool:
        for box in boxes:
            box.poll(time.monotonic())
        return all(box.statistics().acknowledged == steps.stop for box in boxes)

    wait_until(all_are)


def run_of(store: Path, faults: dict[str, Sequence[int]], killed_after: Sequence[int]) -> Run:
    """The run of a job whose collector is killed after each of these steps, and started again."""
    process, address = start_collector(store, "--until-done")
    boxes = [outbox(address, rank, RANKS) for rank in range(RANKS)]
    for box in boxes:
        box.set_sites(OBSERVED)
    first = 0
    for last in (*killed_after, STEPS - 1):
        train(boxes, range(first, last + 1), faults)
        first = last + 1
        if first < STEPS:
            process.kill()
            process.wait()
            process, _ = start_collector(store, "--until-done", port=address.rpartition(":")[2])
    assert close_all(boxes) == [True] * RANKS
    assert process.wait(timeout=30) == 0
    return open_run(store / "demo")


def said_of(run: Run) -> list[object]:
    """All that was found in it."""
    events = run.events().query("kind not in @RESTART", local_dict={"RESTART": RESTART})
    return [
        run.records().step.tolist(),
        events[["kind", "rank", "step", "text"]].to_numpy().tolist(),
        sorted(map(repr, run.alert_log())),
        [repr(one) for one in run.incidents()],
        run.judged(),
    ]


@pytest.mark.parametrize(
    ("faults", "killed_after"),
    [
        ({"nudged": [34, 50]}, (30,)),
        ({"added": [35, 36, 55]}, (4, 12, 33)),
        ({"large": [35], "unmatched": [10, 45]}, (30,)),
        ({"nudged": [*range(29, 36)]}, (4, 12, 33)),
    ],
)
def test_what_is_found_is_the_same(
    tmp_path: Path, faults: dict[str, Sequence[int]], killed_after: Sequence[int]
) -> None:
    once = said_of(run_of(tmp_path / "once", faults, ()))
    again = said_of(run_of(tmp_path / "again", faults, killed_after))

    assert once[2] or once[1], "there is something to find"
    for one, other in zip(once, again, strict=True):
        assert other == one
