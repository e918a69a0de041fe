"""Whatever a DTensor's axes are called, and wherever its mesh lies: ranks decide what is merged."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from math import prod
from pathlib import Path

import pytest

from rankscope.store import Run

from .launching import run_of, run_ranks
from .one_process import Tensors, as_ranks_see_it, assert_exact, assert_same, one_process

JOB = Path(__file__).with_name("meshes_job.py")
SCRIPT = runpy.run_path(str(JOB))
SHARDS = SCRIPT["SHARDS"]
MESHES = {
    "flat": {"dp_shard": 2, "cp": 2},
    "model": {"data": 2, "tp": 2},
    "empty": {"fsdp": 4},
    "unnamed": {"tp": 2},
    "replicate": {"dp": 2},
    "accumulate": {"dp": 2},
}
REPLICATE = "torch.distributed._composable.replicate_with_fsdp"


@pytest.fixture(scope="module", params=list(MESHES))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run, called by its mode."""
    mode = request.param
    if mode == "replicate" and find_spec(REPLICATE) is None:
        pytest.skip("this torch has no such `replicate`")
    return run_of(JOB, prod(MESHES[mode].values()), mode, tmp_path_factory.mktemp("runs"), mode)


@pytest.fixture(scope="module")
def whole(run: Run) -> list[Tensors]:
    """By step: what one process makes."""
    model = SCRIPT["make_model"](run.name)
    optimizer = SHARDS["make_optimizer"](model)
    steps = SCRIPT["STEPS"]
    return one_process(
        model, optimizer, lambda step: SHARDS["train"](model, SHARDS["batch"](step)), steps
    )


def test_the_jobs_own_axes_are_told(run: Run) -> None:
    assert run.attempts["mesh"].tolist() == [MESHES[run.name]]


def test_every_site_has_the_numbers_of_one_process(run: Run, whole: list[Tensors]) -> None:
    samples = SCRIPT["SAMPLES"][run.name]
    for step, tensors in enumerate(whole):
        labels, merged = run.table(step)
        seen = as_ranks_see_it(tensors, samples, gathered=False)
        assert set(seen) <= set(labels)
        for row, label in enumerate(labels):
            kind = label.partition(":")[0]
            if label not in seen or kind.startswith("local_"):
                continue
            if (step, kind) == (0, "weight"):
                assert_exact(merged.take([row]), seen[label], label)
            numbered = not kind.startswith("activation")
            assert_same(merged.take([row]), seen[label], label, numbered=numbered)


def test_where_pieces_lie_is_told_in_the_jobs_axes(run: Run) -> None:
    found = run.regions(kind="weight", name="down.weight")
    cells = {
        "flat": [f"cp={cp},dp_shard={dp}" for dp in (0, 1) for cp in (0, 1)],
        "model": [f"data={data},tp={tp}" for data in (0, 1) for tp in (0, 1)],
        "unnamed": ["tp=0", "tp=1"],
        "empty": [f"fsdp={rank}" for rank in range(4)],
        "replicate": [],
        "accumulate": [],
    }
    assert sorted(found["cell"]) == sorted(cells[run.name])
    assert sum(rows * columns for rows, columns in found["shape"]) in (0, 300 * 102)


def test_a_rank_without_a_row_has_no_number(run: Run) -> None:
    held = run.ranks("rms", site="weight:head.weight", steps=0).squeeze("step").notnull()
    ranks = range(prod(MESHES[run.name].values()))
    assert held.values.tolist() == [run.name != "empty" or rank < 3 for rank in ranks]


def test_nothing_is_found_wrong(run: Run) -> None:
    assert run.alerts()["text"].tolist() == []
    for counter in ("tensors_unsupported", "tensors_stale", "hook_errors", "steps_dropped"):
        assert set(run.health()[counter]["total"]) == {0.0}, counter


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("part", "none of the job's, {'dp': 4}: pass mesh=, the DeviceMesh of all ranks"),
        ("ddp", "DistributedDataParallel over tensor parallelism is not supported"),
    ],
)
def test_what_would_be_told_wrongly_is_refused(mode: str, text: str, tmp_path: Path) -> None:
    run_ranks(str(JOB), 4, [mode, str(tmp_path), mode], tmp_path / "output")

    assert text in (tmp_path / f"{mode}.error").read_text()
