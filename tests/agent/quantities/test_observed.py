"""Quantities of an observed run, as they are asked for of its store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rankscope.store import open_run


def trained(observed: Any, quantities: Any, steps: int = 4, **options: Any) -> tuple[Any, Any]:
    """A run of a small job, and its batches."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randn(16, 4) for _ in range(steps)]
    with observed.observe(model, optimizer, quantities=quantities, **options) as scope:
        for batch in batches:
            model(batch).square().sum().backward()
            optimizer.step()
            scope.step()
            optimizer.zero_grad()
    return open_run(observed.path), batches


def test_a_run_keeps_what_was_asked_for(observed: Any) -> None:
    asked = {
        "0": ["InputCovMaxEig", "input_cov_spectrum", ["weight_spectral_norm", 2]],
        "Linear": [["weight_gradient_cosine", "linear(1, 2)"]],
        "1": ["dead_neurons"],
    }

    run, batches = trained(observed, asked, kinds="weight", every=4)

    right = [np.linalg.eigvalsh(np.cov(batch.double().numpy().T))[::-1] for batch in batches]
    largest = run.quantity("input_cov_max_eig")
    assert largest["step"].tolist() == [0, 1, 2, 3]
    assert largest["value"].tolist() == pytest.approx([one[0] for one in right])
    spectrum = run.quantity("input_cov_spectrum")
    assert spectrum["value"].to_numpy() == pytest.approx(np.concatenate(right))
    assert run.quantity("weight_spectral_norm")["step"].tolist() == [0, 2]
    cosines = run.quantity("weight_gradient_cosine")
    assert sorted(cosines["of"].unique()) == ["0", "2"]
    assert sorted(cosines["step"].unique()) == [2, 3]
    assert cosines["value"].between(-1, 1).all()
    assert run.quantity("dead_neurons")["value"].between(0, 1).all()


def test_what_sketches_tell_turns_their_kind_on(observed: Any) -> None:
    run, batches = trained(observed, {"Linear": [["InputMean", 2]]}, kinds="weight")

    means = run.quantity("input_mean", of="0")

    assert means["step"].tolist() == [0, 2]
    assert means["value"].tolist() == pytest.approx([batches[i].mean().item() for i in (0, 2)])


def test_what_a_function_raises_is_told_and_training_goes_on(
    observed: Any, registered: Callable[..., None]
) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"no idea what {x.shape[0]} rows are")

    registered("no_idea", fails, needs=["input"])

    run, _ = trained(observed, {"Linear": ["no_idea", "input_cov_trace"]})

    told = run.events().query("kind == 'report'")["text"].tolist()
    assert told == [
        "no_idea of 0 is no longer computed: RuntimeError: no idea what 16 rows are.",
        "no_idea of 2 is no longer computed, either: RuntimeError.",
    ]
    assert len(run.quantity("input_cov_trace")) == 8


def test_what_is_told_is_cut_between_words(observed: Any, registered: Callable[..., None]) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("words " * 300)

    registered("no_idea", fails, needs=["input"])

    run, _ = trained(observed, {"0": ["no_idea"]}, steps=1)

    [told] = run.events().query("kind == 'report'")["text"]
    assert 990 < len(told) <= 1000
    assert told.endswith(" words words …")
