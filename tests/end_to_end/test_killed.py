"""A rank is killed, and the others train on: theirs is kept, and the run says who is gone."""

from __future__ import annotations

import json
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from rankscope.store import Run, open_run

JOB = Path(__file__).with_name("killed_job.py")
USERS = runpy.run_path(str(JOB))
RANKS, STEPS, LAST = (int(USERS[name]) for name in ("RANKS", "STEPS", "LAST"))
VICTIMS = {"apart": 1, "embedded": 0}
"""By where the collector is, which names the run: who is killed. Rank 0 had started the embedded
collector."""
LOST_AFTER_S = {"apart": 6, "embedded": 30}


def collect(directory: Path) -> subprocess.Popen[bytes]:
    """A collector of its own, which gives ranks up early."""
    command = [sys.executable, "-m", "rankscope", "collect", "--bind", "tcp://127.0.0.1:*"]
    command += ["--store", str(directory), "--announce", "--deadline", "2"]
    command += ["--lost-after", str(LOST_AFTER_S["apart"])]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def address_of(collector: subprocess.Popen[bytes]) -> str:
    """Where it listens."""
    assert collector.stdout is not None
    with collector.stdout as said:
        return json.loads(said.readline())["address"]


def train(run: str, directory: Path, *to: str) -> list[subprocess.Popen[bytes]]:
    """The ranks of a job."""
    command = [sys.executable, str(JOB), run, str(directory)]
    ranks = [[*command, str(rank), str(VICTIMS[run]), *to] for rank in range(RANKS)]
    return [subprocess.Popen(rank) for rank in ranks]


def finished(path: Path) -> Run:
    """The run, once its collector has ended it."""
    deadline = time.monotonic() + 60
    while not open_run(path).finished:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return open_run(path)


def survivors(run: str) -> list[int]:
    """The ranks that train on."""
    return [rank for rank in range(RANKS) if rank != VICTIMS[run]]


@pytest.fixture(scope="module")
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes, of which none outlives the tests."""
    every: list[subprocess.Popen[bytes]] = []
    yield every
    for process in every:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def runs(
    started: list[subprocess.Popen[bytes]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """By name: what is left of both jobs, which ran beside each other."""
    directory = tmp_path_factory.mktemp("runs")
    started.append(collect(directory))
    apart = train("apart", directory, address_of(started[0]))
    embedded = train("embedded", directory)
    started += apart + embedded
    for run, ranks in (("apart", apart), ("embedded", embedded)):
        ended = [rank.wait(240) for rank in ranks]
        assert ended == [-signal.SIGKILL if rank == VICTIMS[run] else 0 for rank in range(RANKS)]
    return {run: finished(directory / run) for run in VICTIMS}


@pytest.fixture(params=list(VICTIMS))
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    """One of them."""
    return runs[request.param]


def mean_of(step: int, ranks: Sequence[int]) -> float:
    """Of what some ranks trained on: rank r has 2 + r samples, each of them step + 10 r."""
    sizes = [2 + rank for rank in ranks]
    total = sum(size * (step + 10 * rank) for size, rank in zip(sizes, ranks, strict=True))
    return total / sum(sizes)


def test_all_steps_of_the_others_are_stored_in_order_and_once(run: Run) -> None:
    records = run.records(all_attempts=True)
    assert records["step"].tolist() == list(range(STEPS + 1))
    assert records["final"].tolist() == [False] * STEPS + [True]
    seen = run.ranks("rms", site="tap:data", steps=(0, STEPS - 1))
    for rank in survivors(run.name):
        np.testing.assert_allclose(seen.sel(rank=rank), np.arange(STEPS) + 10 * rank, rtol=1e-6)


def test_records_after_the_kill_name_the_rank_that_is_missing(run: Run) -> None:
    records, after = run.records(), STEPS - LAST
    assert records["complete"].tolist() == [True] * (LAST + 1) + [False] * after
    assert records["missing"].tolist() == [[]] * (LAST + 1) + [[VICTIMS[run.name]]] * after
    assert records["partial"].tolist() == [step == LAST for step in range(STEPS + 1)]


def test_an_event_tells_where_the_lost_rank_was_seen_last(run: Run) -> None:
    events, victim = run.events(), VICTIMS[run.name]
    lost, told = events.query("kind == 'rank-lost'"), events.query("kind == 'report'")
    assert set(events["kind"]) <= {"rank-lost", "report", "stalled"}  # as a busy machine does
    assert (lost["rank"].tolist(), lost["step"].tolist()) == ([victim], [LAST])
    assert lost["text"].tolist() == [
        f"Rank {victim} was silent for {LOST_AFTER_S[run.name]} s; "
        f"it was last seen in step {LAST}, last at activation:0, its tensor 6."
    ], "four weights, the data, and what the first layer made of them"
    last_words = told[told["rank"] == victim]["text"].tolist()
    # Before them a busy machine may have made it wait as long.
    assert last_words[-1] == "No tensor was seen for 1 s; last was activation:0."


def test_the_run_says_that_the_rank_was_lost(run: Run) -> None:
    assert run.ending.text == f"ranks lost: {VICTIMS[run.name]} (last seen in step {LAST})"


def test_merged_numbers_are_of_those_that_are_left(run: Run) -> None:
    mean = run.scalar("mean", sites="tap:data").squeeze("site")
    for step in range(STEPS):
        ranks = range(RANKS) if step < LAST else survivors(run.name)
        if step != LAST:  # of which the victim told the first half
            assert mean.sel(step=step).item() == pytest.approx(mean_of(step, ranks), rel=1e-6)


def test_nothing_else_is_found_wrong(run: Run) -> None:
    assert set(run.alerts()["rule"]) <= {"missing-rank"}
    assert [label for label in run.sites().index if "#" in label] == [], "micro-batches are united"


def test_the_others_did_not_wait_for_the_agent(run: Run) -> None:
    for rank in survivors(run.name):
        told = json.loads(Path(f"{run.path}-{rank}.json").read_text())
        assert len(told["seconds"]) == STEPS - LAST - 1
        assert max(told["seconds"]) < 2, "a record waits for 2 s or 10 s for the one that is gone"
        assert told["dropped"] == 0
