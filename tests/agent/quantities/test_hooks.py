"""Hooks are there when something is due, and what passes through them counts once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from rankscope.agent.torch.names import Names
from rankscope.agent.torch.quantities import Quantities
from rankscope.agent.torch.stages import stages_of
from rankscope.sketch import square


def hooks_of(model: torch.nn.Module) -> int:
    """How many hooks are on a model's modules."""
    kinds = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def test_there_are_no_hooks_but_in_steps_in_which_something_is_due(
    watch: Callable[..., Any],
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    before = [vars(module).keys() for module in model.modules()]
    watched = watch(model, {"Linear": [["output_cov_trace", "linear(2, 1)"]]})

    seen: list[int] = []
    for step in range(4):
        watched.step(step, lambda: (model(torch.randn(3, 2)), seen.append(hooks_of(model))))

    assert seen == [0, 2, 0, 2]
    assert hooks_of(model) == 0
    assert [vars(module).keys() for module in model.modules()] == before


def test_a_job_that_is_to_measure_more_rarely_does(watch: Callable[..., Any]) -> None:
    model = torch.nn.Linear(2, 2)
    quantities = watch(model, {"Linear": [["output_cov_trace", "linear(2, 1)"]]}).quantities

    assert [quantities.begins(step, stretch=3) for step in range(9)] == [
        step in (1, 7) for step in range(9)
    ]
    assert quantities.begins(2, in_full=True, stretch=3)
    assert [quantities.begins(step) for step in range(4)] == [False, True, False, True]
    quantities.remove()


def test_hooks_go_when_the_block_ends_in_the_middle_of_a_step(watch: Callable[..., Any]) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    watched = watch(model, {"Linear": ["output_cov_trace", "weight_gradient_cosine"]}, optimizer)

    watched.quantities.begins(0)
    watched.quantities.remove()

    assert hooks_of(model) == 0
    assert not vars(optimizer)["_optimizer_step_pre_hooks"]
    assert watched.quantities.ends(0) == []


@settings(deadline=None, max_examples=30)
@given(
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    features=st.integers(1, 9),
    shift=st.sampled_from([0.0, 1e6]),
    seed=st.integers(0, 99),
)
def test_micro_batches_make_one_covariance(
    rows: list[int], features: int, shift: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    batches = [generator.normal(shift, 1, (count, features)) for count in rows]
    model = torch.nn.Identity()
    quantities = Quantities.of({"(root)": "input_cov_trace"}, Names(stages_of(model)))
    quantities.attach(report=lambda *_: None)

    quantities.begins(0)
    for batch in batches:
        model(torch.from_numpy(batch))
    [taken] = quantities.ends(0)

    whole = np.concatenate(batches)
    centred = whole - whole.mean(0)
    values = taken.values.numpy()
    assert taken.weight == sum(rows)
    assert values[:features] == pytest.approx(whole.mean(0))
    products = square(values[features:], features)
    assert products == pytest.approx(centred.T @ centred, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("features", [300, 513])
def test_a_covariance_of_many_features_is_that_of_numpy(
    watch: Callable[..., Any], features: int
) -> None:
    x = torch.randn(2, 1500, features, generator=torch.Generator().manual_seed(0)) + 100
    model = torch.nn.Identity()
    watched = watch(model, {"(root)": "output_cov_trace"})
    watched.quantities.begins(0)

    model(x)

    [taken] = watched.quantities.ends(0)
    right = np.cov(x.reshape(-1, features).double().numpy().T) * (taken.weight - 1)
    assert square(taken.values[features:].numpy(), features) == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_forward_that_is_computed_again_counts_once(
    watch: Callable[..., Any], reentrant: bool
) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    model, x = Model(), torch.randn(5, 3, requires_grad=True)
    watched = watch(model, {"inner": ["input_cov_trace", "output_grad_cov_trace"]})
    watched.quantities.begins(0)
    model(x).square().sum().backward()
    taken = {one.series.readings[0].quantity: one for one in watched.quantities.ends(0)}

    assert {name: one.weight for name, one in taken.items()} == {
        "input_cov_trace": 5,
        "output_grad_cov_trace": 5,
    }


def test_each_call_of_a_module_is_a_series_of_its_own(watch: Callable[..., Any]) -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(10 * self.inner(x))

    model = Twice()
    watched = watch(model, {"inner": ["input_cov_trace"]})

    def two_micro_batches() -> None:
        for _ in range(2):
            model(torch.randn(8, 3))

    found = watched.step(0, two_micro_batches)

    assert sorted(found) == ["inner", "inner#1"]
    assert found["inner"]["input_cov_trace"][0] < found["inner#1"]["input_cov_trace"][0]


def test_forwards_that_are_no_training_are_left_out(watch: Callable[..., Any]) -> None:
    model = torch.nn.Linear(2, 2)
    watched = watch(model, {"Linear": ["input_channel_mean"]}, recording=lambda: model.training)

    def evaluate_between() -> None:
        model.eval()(torch.full((4, 2), 100.0))
        model.train()(torch.ones(4, 2))

    found = watched.step(0, evaluate_between)

    assert found["(root)"]["input_channel_mean"].tolist() == [1.0, 1.0]


def test_what_runs_compiled_is_told_and_training_goes_on(watch: Callable[..., Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    watched = watch(model, {"Linear": ["output_cov_trace", "weight_spectral_norm"]})
    x = torch.randn(4, 3)
    right = model(x)

    found = [watched.step(step, lambda: compiled(x)) for step in range(3)]

    assert torch.equal(compiled(x), right)
    assert [list(one["0"]) for one in found] == [["weight_spectral_norm"]] * 3
    assert [told.partition(" in a")[0] for told in watched.reports] == [
        "Nothing came of output_cov_trace of 0"
    ]


def test_an_output_may_be_changed_in_place(watch: Callable[..., Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(inplace=True))
    watched = watch(model, {"0": ["output_cov_trace", "output_grad_cov_trace"]})
    x = torch.randn(6, 3)
    inner = model[0](x).detach().double().numpy()

    found = watched.step(0, lambda: model(x).sum().backward())["0"]

    right, of_gradient = (np.trace(np.cov(one.T)) for one in (inner, inner > 0))
    assert found["output_cov_trace"] == pytest.approx([right], rel=1e-5)
    assert found["output_grad_cov_trace"] == pytest.approx([of_gradient], abs=1e-12)
