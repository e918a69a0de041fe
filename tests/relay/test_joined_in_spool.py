"""Joined frames that a relay holds: its spool is full, or some of them came another way."""

from __future__ import annotations

import time
from pathlib import Path

from rankscope.relay.spool import TORN
from rankscope.relay.thinning import FULL
from rankscope.store import Run, open_run

from ..collector.serving import (
    VALUES,
    close_all,
    outbox,
    send,
    start_collector,
)
from .relaying import end, start_relay, statistics_of


def spooled(folder: Path, *options: str) -> list[str]:
    return ["--merge", "--spool", str(folder), "--min-free", "0", *options]


def lost(run: Run, cause: str) -> int:
    """How many frames the run says it lacks for that cause."""
    gaps = run.events().query("kind == 'gap'").text
    assert gaps.str.endswith(f"{cause}.").all()
    return int(gaps.str.extract(r"lost (\d+) frames?")[0].astype(int).sum())


def hold_joined(tmp_path: Path, ranks: int, steps: int, *options: str) -> tuple[str, list[str]]:
    """A killed relay whose spool holds joined frames; their first step is stored.

    Returns:
        The collector's port, and how to start the relay again.
    """
    kept = spooled(tmp_path / "upper", *options)
    collector, at = start_collector(tmp_path / "runs")
    upper, above = start_relay(at, *kept)
    lower, below = start_relay(above, "--merge", "--until-done")
    boxes = [outbox(below, rank, ranks) for rank in range(ranks)]
    for box in boxes:
        send(box, [0])
    for _ in range(50):  # until all know on every level that frames may be joined
        for box in boxes:
            box.poll(time.monotonic())
        time.sleep(0.1)
    collector.kill()
    collector.communicate()
    for step in range(1, steps):
        for box in boxes:
            send(box, [step])
    assert close_all(boxes, timeout_s=60) == [True] * ranks
    assert statistics_of(end(lower))["joined"] > 0
    upper.kill()
    upper.communicate()
    return at.rpartition(":")[2], kept


def test_joined_frames_give_way_for_all_their_ranks_and_are_told(tmp_path: Path) -> None:
    port, kept = hold_joined(tmp_path, 3, 150, "--spool-bytes", "30KB")
    collector, at = start_collector(tmp_path / "runs", "--until-done", port=port)
    upper, _ = start_relay(at, *kept, "--until-done", "--first-agent", "0")
    end(upper)
    end(collector)
    run = open_run(tmp_path / "runs" / "demo")

    steps = run.records().step.tolist()
    assert (steps[0], steps[-1]) == (0, 149)
    assert len(steps) < 150
    counts = run.scalar("count").sel(site="activation:fc").values
    assert lost(run, FULL) == 450 - int(counts.sum() / VALUES)


def test_a_joined_frame_of_which_a_part_came_another_way_is_given_up_and_told(
    tmp_path: Path,
) -> None:
    port, kept = hold_joined(tmp_path, 3, 5)
    collector, at = start_collector(tmp_path / "runs", "--deadline", "2", port=port)
    twice = outbox(at, 1, 3)
    send(twice, range(3))  # as if this rank had found another way
    assert twice.close(timeout_s=40)
    upper, _ = start_relay(at, *kept, "--until-done", "--first-agent", "0")
    told = statistics_of(end(upper))
    collector.terminate()
    end(collector)
    run = open_run(tmp_path / "runs" / "demo")

    counts = run.scalar("count").sel(site="activation:fc").values
    assert run.records().step.tolist() == [0, 1, 2, 3, 4]
    # What is not there is told, and nothing is there twice.
    assert counts.sum() / VALUES == 15 - told["dropped"][TORN]
    assert lost(run, TORN) == told["dropped"][TORN]
    assert told["faults"] == 0
