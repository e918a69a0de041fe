"""DeepSpeed's ZeRO on two ranks: weights are seen whole, wherever their pieces are."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from rankscope.store import Run

from .launching import run_of

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is for Linux")

JOB = Path(__file__).with_name("deepspeed_job.py")
Seen = tuple[list[float], list[float], list[dict[str, torch.Tensor]]]


@pytest.fixture(scope="module", params=["1", "3"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, Seen]:
    """The run, by stage of ZeRO, and what the job kept: losses bare and observed, weights."""
    stage: str = request.param
    directory = tmp_path_factory.mktemp("runs")
    run = run_of(JOB, 2, f"zero{stage}", directory, stage)
    return run, torch.load(directory / f"zero{stage}.pt")


def test_losses_are_the_same_to_the_last_bit(trained: tuple[Run, Seen]) -> None:
    _, (bare, observed, _) = trained
    assert observed == bare


def test_weights_are_those_of_all_ranks_together(trained: tuple[Run, Seen]) -> None:
    run, (_, _, weights) = trained
    for step, held in enumerate(weights):
        for name, weight in held.items():
            values, site = weight.double().numpy(), f"weight:{name}"
            told = {
                name: run.scalar(name, site=site, steps=step).item()
                for name in ("count", "l2", "min", "max")
            }
            assert told.pop("l2") == pytest.approx(np.linalg.norm(values), rel=1e-6)
            assert told == {"count": values.size, "min": values.min(), "max": values.max()}


def test_what_ranks_have_of_gradients_and_activations_is_seen(trained: tuple[Run, Seen]) -> None:
    run, _ = trained
    kinds = {"weight": 4, "activation": 4, "activation_gradient": 4, "local_weight_gradient": 4}
    seen = run.sites()["kind"].value_counts().to_dict()
    assert {kind: seen.get(kind) for kind in kinds} == kinds
    assert run.attempts["mesh"].tolist() == [{"dp": 2}]


def test_nothing_is_found_wrong(trained: tuple[Run, Seen]) -> None:
    run, _ = trained
    assert run.alerts()["text"].tolist() == []
    for counter in ("tensors_unsupported", "tensors_stale", "hook_errors", "steps_dropped"):
        assert set(run.health()[counter]["total"]) == {0.0}, counter
