"""How a run ended, as its agents and its collector told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.sketch import StoreError
from rankscope.store import Ending, Event, RankInfo, Record, RunWriter, list_runs, open_run

Make = Callable[..., Record]


def event(
    kind: str, text: str = "", *, rank: int = 0, step: int = 0, attempt: int = 0, second: int = 0
) -> Event:
    time_ns = second * 1_000_000_000
    return Event(kind=kind, attempt=attempt, rank=rank, step=step, text=text, time_ns=time_ns)


def ending(
    path: Path, record: Make, *events: Event, attempts: int = 1, over: bool = True
) -> Ending:
    with RunWriter.open(path / "run", run="run") as writer:
        for number in range(attempts):
            writer.catalog.attempt_of(f"launch {number}")
        writer.commit([record(0, {})], streams={}, events=events)
        if over:
            writer.finish()
    return open_run(path / "run").ending


def test_a_run_that_ended_well_is_finished(tmp_path: Path, record: Make) -> None:
    told = event("report", "A tensor could not be read.")
    found = ending(tmp_path, record, told)
    assert found == Ending(state="finished", text="finished")
    assert not found.is_bad


def test_a_run_that_goes_on_is_open(tmp_path: Path, record: Make) -> None:
    assert ending(tmp_path, record, over=False) == Ending(state="open", text="not finished")


def test_it_can_be_waited_for(tmp_path: Path, record: Make) -> None:
    with RunWriter.open(tmp_path / "run", run="run") as writer:
        writer.catalog.attempt_of("launch")
        writer.commit([record(0, {})], streams={})
        run = open_run(tmp_path / "run")
        with pytest.raises(
            StoreError, match=r"run is not finished after 0.2 s: not finished\. Its"
        ):
            run.wait(0.2)
        ends = threading.Timer(0.5, writer.finish)
        ends.start()

        assert run.wait() is run

        ends.join()
    assert run.finished
    assert run.wait(0) is run


def test_an_error_that_ended_training_is_told_with_its_step(tmp_path: Path, record: Make) -> None:
    told = event("report", "Training ended in step 28: KeyboardInterrupt.")
    found = ending(tmp_path, record, told)
    assert found.is_bad
    assert (found.state, found.text) == (
        "ended early",
        "ended early in step 28: KeyboardInterrupt",
    )


def test_of_several_ranks_each_error_is_told_causes_first(tmp_path: Path, record: Make) -> None:
    own = "Training ended in step 3: ValueError: of: mine."
    other = "The process ended in step 4, in the middle of the block."
    found = ending(tmp_path, record, event("report", own, rank=1), event("report", other, rank=0))
    assert found.text == (
        "ended early in step 3 on rank 1: ValueError: of: mine, "
        "in step 4 on rank 0, in the middle of the block"
    )


def test_who_was_lost_comes_before_what_the_others_met_by_it(tmp_path: Path, record: Make) -> None:
    events = [
        event(
            "report", f"Training ended in step 47: RuntimeError: closed by peer [{port}].", rank=at
        )
        for at, port in ((0, 1), (2, 2), (3, 3))
    ]
    found = ending(tmp_path, record, *events, event("rank-lost", rank=1, step=46))
    assert found.state == "ended early"
    assert found.text == (
        "ranks lost: 1 (last seen in step 46); "
        "ended early in step 47 on rank 0: RuntimeError: closed by peer [1], "
        "in step 47 on rank 2: RuntimeError: closed by peer [2], and otherwise on 1 more"
    )


def test_a_rank_that_fell_silent_is_lost_unless_it_came_back(tmp_path: Path, record: Make) -> None:
    events = [
        event("rank-lost", rank=0, step=7),
        event("rank-lost", rank=1, step=29),
        event("rank-joined", rank=0, step=7),
    ]
    found = ending(tmp_path, record, *events)
    assert (found.state, found.text) == ("ranks lost", "ranks lost: 1 (last seen in step 29)")
    open_one = ending(tmp_path / "open", record, *events, over=False)
    assert open_one.text == "not finished; ranks lost: 1 (last seen in step 29)"


def test_the_node_whose_ranks_were_lost_first_is_told_apart(tmp_path: Path) -> None:
    lost = [("n1", 30, 18), ("n1", 30, 18), ("n2", 29, 0), ("n2", 29, 2)]
    with RunWriter.open(tmp_path / "run", run="run") as writer:
        writer.catalog.attempt_of("launch")
        ranks = [RankInfo(rank=rank, host=host) for rank, (host, _, _) in enumerate(lost)]
        writer.catalog.set_attempt(0, 4, {}, ranks)
        events = [
            event("rank-lost", rank=rank, step=step, second=second)
            for rank, (_, step, second) in enumerate(lost)
        ]
        writer.commit([], streams={}, events=events)
        writer.finish()

    assert open_run(tmp_path / "run").ending.text == (
        "ranks lost: 2, 3 (last seen in step 29, on n2), then 0, 1 (last seen in step 30, on n1)"
    )


def test_the_latest_attempt_counts_and_an_earlier_one_that_ended_badly_is_told(
    tmp_path: Path, record: Make
) -> None:
    lost = event("rank-lost", rank=1, step=29)
    found = ending(tmp_path, record, lost, attempts=3)
    assert (found.state, found.attempt, found.is_bad) == ("finished", 2, False)
    assert found.text == "finished; attempt 0: ranks lost: 1 (last seen in step 29)"
    [earlier] = found.earlier
    assert (earlier.attempt, earlier.state, earlier.is_bad) == (0, "ranks lost", True)
    assert (
        "finished (attempt 0: ranks lost)"
        in CliRunner().invoke(cli, ["runs", str(tmp_path)], env={"COLUMNS": "200"}).output
    )


def test_the_list_of_runs_tells_it(tmp_path: Path, record: Make) -> None:
    ending(tmp_path, record, event("rank-lost", rank=1, step=29))
    [run] = list_runs(tmp_path)
    assert run.ending.state == "ranks lost"
    assert "ranks lost" in CliRunner().invoke(cli, ["runs", str(tmp_path)]).output
