"""Joined frames that a relay holds: its spool is full, or some of them came another way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.relay.spool import TORN
from rankscope.relay.thinning import FULL
from rankscope.store import Run, open_run

from ..collector.serving import outbox, send, start_collector, stop_collectors
from .relaying import end, free_port, start_relay, statistics_of
from .test_forwarding import run_job


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    """Whatever happens to a test."""
    yield
    stop_collectors()


def spooled(folder: Path, *options: str) -> list[str]:
    return ["--merge", "--spool", str(folder), "--min-free", "0", *options]


def lost(run: Run, cause: str) -> int:
    """How many frames the run says it lacks for that cause."""
    gaps = run.events().query("kind == 'gap'").text
    assert gaps.str.endswith(f"{cause}.").all()
    return int(gaps.str.extract(r"lost (\d+) frames?")[0].astype(int).sum())


def test_joined_frames_give_way_for_all_their_ranks_and_are_told(tmp_path: Path) -> None:
    port = free_port()
    kept = spooled(tmp_path / "upper", "--spool-bytes", "30KB")
    upper, above = start_relay(f"tcp://127.0.0.1:{port}", *kept, "--until-done")
    lower, below = start_relay(above, "--merge", "--until-done")
    run_job(below, 3, 150)
    end(lower)
    collector, _ = start_collector(tmp_path / "runs", "--until-done", port=port)
    told = statistics_of(end(upper))
    end(collector)
    run = open_run(tmp_path / "runs" / "demo")

    assert told["joined"] > 0
    assert 0 < told["dropped"][FULL] < 450
    assert lost(run, FULL) == told["dropped"][FULL]
    assert run.records().step.iloc[-1] == 149
    # A step is lost as a whole, but for the first, which may have come before all ranks did.
    assert run.records().complete.iloc[5:].all()
    assert told["faults"] == 0


def test_a_joined_frame_of_which_a_part_came_another_way_is_given_up_and_told(
    tmp_path: Path,
) -> None:
    port = free_port()
    to, kept = f"tcp://127.0.0.1:{port}", spooled(tmp_path / "upper")
    upper, above = start_relay(to, *kept)
    lower, below = start_relay(above, "--merge", "--until-done")
    run_job(below, 3, 4)
    end(lower)
    upper.kill()
    upper.communicate()
    collector, at = start_collector(tmp_path / "runs", port=port)
    twice = outbox(at, 1, 3)
    send(twice, range(2))  # as if this rank had found another way
    assert twice.close(timeout_s=40)
    upper, _ = start_relay(to, *kept, "--until-done")
    told = statistics_of(end(upper))
    collector.terminate()
    end(collector)
    run = open_run(tmp_path / "runs" / "demo")

    counts = run.scalar("count").sel(site="activation:fc").values
    per_rank = counts[-1] / 3
    assert run.records().step.tolist() == [0, 1, 2, 3]
    assert run.records().complete.tolist()[2:] == [True, True]
    # What is not there is told, and nothing is there twice.
    assert counts.sum() / per_rank == 12 - told["dropped"].get(TORN, 0)
    assert lost(run, TORN) == told["dropped"][TORN]
    assert told["faults"] == 0
