"""A user's DistributedDataParallel script under plain torchrun, with nothing started by hand."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankscope.sketch import COUNTS
from rankscope.store import Run, open_run

JOB = Path(__file__).parent / "ddp_job.py"
COUNT = COUNTS.index("count")


def torchrun(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, "--nproc-per-node", "2", str(JOB), *arguments],
        timeout=120,
        check=False,
        stderr=subprocess.PIPE,
    )


def eventually(condition: Callable[[], bool], *, seconds: float = 45) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of a job that went well."""
    directory = tmp_path_factory.mktemp("runs")
    job = torchrun("good", str(directory))
    assert job.returncode == 0, job.stderr.decode()
    eventually(lambda: open_run(directory / "good").finished)
    return open_run(directory / "good")


def test_every_step_of_every_rank_is_stored(run: Run) -> None:
    records = run.records()
    assert records["step"].tolist() == list(range(7))
    assert records["complete"].tolist() == [True] * 7
    assert records["ranks"].tolist() == [2] * 7
    assert records["final"].tolist() == [False] * 6 + [True]


def test_samples_of_both_ranks_are_united_and_weights_are_counted_once(run: Run) -> None:
    labels, table = run.table(3)
    count = dict(zip(labels, table.counts[:, COUNT].tolist(), strict=True))
    assert count["activation:0"] == (2 + 3) * 8
    assert count["weight:0.weight"] == count["weight_gradient:0.weight"] == 32
    assert count["optimizer_state:2.weight[exp_avg]"] == 8


def test_each_rank_can_be_seen_apart(run: Run) -> None:
    rms = run.ranks("rms", site="activation:0")
    assert rms["rank"].values.tolist() == [0, 1]
    assert np.all(
        rms.sel(step=slice(1, 5), rank=0).values != rms.sel(step=slice(1, 5), rank=1).values
    )
    gradients = run.ranks("rms", site="weight_gradient:0.weight").sel(step=slice(0, 5))
    assert np.array_equal(gradients.sel(rank=0), gradients.sel(rank=1)), "they are reduced"
    losses = run.training().sel(name="loss", step=slice(0, 5))
    assert losses.shape == (6, 2)
    assert losses.notnull().all()


def test_names_are_without_the_wrapper(run: Run) -> None:
    assert {"0", "1", "2", "(root)"} == set(run.sites(kind="activation")["name"])
    assert not any("module" in label for label in run.sites().index)


def test_a_killed_rank_is_named_and_the_others_steps_are_kept(tmp_path: Path) -> None:
    job = torchrun("killed", str(tmp_path), "die")
    assert job.returncode != 0
    eventually(
        lambda: bool((open_run(tmp_path / "killed").events()["kind"] == "rank-lost").any()),
        seconds=70,
    )
    run = open_run(tmp_path / "killed")
    lost = run.events().query("kind == 'rank-lost'")
    assert 1 in lost["rank"].tolist()
    assert run.records()["step"].tolist()[:4] == [0, 1, 2, 3]
    assert run.records()["complete"].tolist()[:4] == [True] * 4
