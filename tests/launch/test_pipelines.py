"""`rankscope run`: the stages of a pipeline are found, and what their ranks are to each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.store import Run, open_run

JOB = Path(__file__).parent / "pipelines.py"
RANKS = {"in_a_v": 2, "of_shards": 4, "of_copies": 4}
MESHES = {
    "in_a_v": {"pp": 2},
    "of_shards": {"pp": 2, "data": 2},
    "of_copies": {"pp": 2, "dp": 2},
}
STAGES = {"in_a_v": 4, "of_shards": 2, "of_copies": 2}


@pytest.fixture(scope="module", params=list(RANKS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of an unmodified script of several ranks."""
    folder = tmp_path_factory.mktemp("runs")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rankscope", "run", "--run", request.param, "--"),
            *(sys.executable, *torchrun, str(RANKS[request.param]), str(JOB), request.param),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (folder / "rankscope-runs").glob("*/")] == [request.param]
    return open_run(folder / "rankscope-runs" / request.param)


def test_the_axis_of_the_pipeline_is_known(run: Run) -> None:
    assert run.attempts["mesh"].tolist() == [MESHES[run.name]]
    assert run.records()["complete"].tolist() == [True] * 4


def test_each_stage_has_names_of_its_own(run: Run) -> None:
    labels = set(run.sites(kind="weight").index)
    begin = ["", *(f"stage{number}." for number in range(1, STAGES[run.name]))]
    assert labels == {
        f"weight:{beginning}{layer}.{name}"
        for beginning in begin
        for layer in (0, 2)
        for name in ("weight", "bias")
    }
    for number in range(STAGES[run.name]):
        held = run.ranks("l2", site=f"weight:{begin[number]}0.weight", steps=1)
        ranks = held.squeeze("step").notnull().values.tolist()
        at = min(number, 3 - number) if run.name == "in_a_v" else number
        assert ranks == [rank * 2 // len(ranks) == at for rank in range(len(ranks))]


def test_micro_batches_alone_are_counted(run: Run) -> None:
    """In the first step pipelining runs each stage once more, for the sizes of what it returns."""
    counts = run.scalar("count", kind="activation").isel(step=slice(3))
    assert counts.notnull().all()
    assert (counts == counts.isel(step=-1)).all()


def test_nothing_is_found_wrong(run: Run) -> None:
    assert run.alerts()["text"].tolist() == []
    # On a busy machine a stage may wait for another so long that it is told.
    assert [one for one in run.events()["text"] if "No tensor was seen for" not in one] == []
