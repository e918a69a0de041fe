"""Pipeline stages, context parallelism and experts: the store holds what one process would."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from rankscope.store import Run

from .launching import run_of
from .one_process import (
    Tensors,
    as_ranks_see_it,
    assert_same_as_one_process,
    assert_same_weights,
    mode_and_dtype,
    one_process,
    runs_of,
)

JOB = Path(__file__).with_name("parts_job.py")
SCRIPT = runpy.run_path(str(JOB))


@pytest.fixture(scope="module", params=["pp", "cp", "ep", "local-ep", "one-ep"])
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """By dtype: the runs of two ranks; their names say how they share the work."""
    return runs_of(JOB, 2, request.param, tmp_path_factory.mktemp("runs"))


def expected_of(run: Run) -> list[Tensors]:
    """By step: what is to be in the store."""
    mode, dtype = mode_and_dtype(run)
    model = SCRIPT["make_model"](mode, dtype)

    def train(step: int) -> None:
        data, target = SCRIPT["batch"](step, dtype)
        SCRIPT["loss_of"](model(data), target).backward()

    whole = one_process(model, SCRIPT["make_optimizer"](model), train, SCRIPT["STEPS"])
    # Ranks, or micro-batches, average over half of the samples.
    seen = [as_ranks_see_it(tensors, 2, gathered=False) for tensors in whole]
    return seen if mode != "pp" else [in_pipeline(tensors) for tensors in seen]


def in_pipeline(tensors: Tensors) -> Tensors:
    """With the names of stages, which do not reduce gradients and have no common root."""
    return {
        re.sub(r":(\d)$", r":(stage \1)", re.sub(r":\d[.]", ":", label)): tensor
        for label, tensor in tensors.items()
        if not label.startswith("local_") and not label.endswith("(root)")
    }


def test_every_site_has_the_numbers_of_one_process(run: Run) -> None:
    assert_same_as_one_process(
        run,
        expected_of(run),
        lambda label: label.startswith("local_") and not label.endswith(":experts"),
        lambda label: not re.match(r"activation|.*:experts($|\[)", label),
    )


def test_initial_weights_are_those_of_one_process_to_the_last_bit(run: Run) -> None:
    if run.name.startswith("one-ep"):
        pytest.skip("the elements of what Megatron joins have no numbers in the whole")
    assert_same_weights(run, expected_of(run)[0])


def test_what_each_rank_held_can_be_told(run: Run) -> None:
    mode, _ = mode_and_dtype(run)
    name = {
        "pp": "layers.3.weight",
        "cp": "key.weight",
        "ep": "experts.1.weight",
        "local-ep": "local_experts.1.weight",
        "one-ep": "experts",
    }[mode]
    held = run.ranks("l2", site=f"weight:{name}", steps=0).squeeze("step").notnull().values
    assert held.tolist() == ([True, True] if mode in ("cp", "one-ep") else [False, True])


def test_nothing_is_found_wrong(run: Run) -> None:
    assert run.alerts()["text"].tolist() == []
    assert run.events()["text"].tolist() == []
    assert run.records()["complete"].tolist() == [True] * (SCRIPT["STEPS"] + 1)


def test_what_stages_call_alike_is_no_copy(tmp_path: Path) -> None:
    run = run_of(JOB.with_name("containers_job.py"), 2, "containers", tmp_path)
    assert run.alerts()["text"].tolist() == []
    counts = run.scalar("count", kind="activation", steps=0).to_series()
    assert counts.loc[0, "activation:model"] == 2 * 4 * 8
    assert counts.loc[0, "activation:model.layers.1"] == 4 * 8
