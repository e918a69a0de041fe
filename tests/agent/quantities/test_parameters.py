"""Weights, gradients, updates and optimizer state: each at its own moment, and what is held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of two tensors."""
    return torch.cosine_similarity(one.double().flatten(), other.double().flatten(), dim=0).item()


@pytest.fixture
def job() -> tuple[torch.nn.Linear, torch.optim.Adam, Callable[[], None]]:
    """A layer, its optimizer, and one step of it."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 3)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        layer(torch.randn(8, 5)).square().mean().backward()
        optimizer.step()

    return layer, optimizer, step


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 2, 3, 3)])
def test_singular_values_are_those_of_the_weight(
    watch: Callable[..., Any], shape: tuple[int, ...]
) -> None:
    weight = torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    model = torch.nn.ParameterDict({"w": weight})
    asked = ["weight_spectral_norm", "weight_stable_rank", "weight_effective_rank"]
    watched = watch(model, {"w": [*asked, "weight_spectrum"]})

    found = watched.step(0, lambda: None)["w"]

    right = np.linalg.svd(weight.detach().double().flatten(1).numpy(), compute_uv=False)
    share = right / right.sum()
    expected = [right[0], (right**2).sum() / right[0] ** 2, np.exp(-(share * np.log(share)).sum())]
    assert [found[name][0] for name in asked] == pytest.approx(expected)
    assert found["weight_spectrum"] == pytest.approx(right)


def test_cosines_are_between_successive_steps(
    watch: Callable[..., Any], job: tuple[Any, Any, Callable[[], None]]
) -> None:
    layer, optimizer, step = job
    config = {"Linear": [["weight_gradient_cosine", "linear(3, 2)"], ["update_cosine", 2]]}
    watched = watch(layer, config, optimizer)
    gradients, updates, found = list[torch.Tensor](), list[torch.Tensor](), list[Any]()

    for number in range(6):
        before = layer.weight.detach().clone()
        found.append(watched.step(number, step).get("(root)", {}))
        gradients.append(layer.weight.grad.clone())
        updates.append(layer.weight.detach() - before)

    assert [sorted(one) for one in found] == [
        [],
        [],
        ["update_cosine", "weight_gradient_cosine"],
        [],
        ["update_cosine"],
        ["weight_gradient_cosine"],
    ]
    for number in (2, 5):
        right = cosine(gradients[number - 1], gradients[number])
        assert found[number]["weight_gradient_cosine"] == pytest.approx([right], rel=1e-6)
    for number in (2, 4):
        right = cosine(updates[number - 1], updates[number])
        assert found[number]["update_cosine"] == pytest.approx([right], rel=1e-5)
    assert watched.reports == []


def test_nothing_is_held_where_the_next_step_needs_nothing(
    watch: Callable[..., Any], job: tuple[Any, Any, Callable[[], None]]
) -> None:
    layer, optimizer, step = job
    watched = watch(layer, {"Linear": [["update_cosine", "linear(4, 3)"]]}, optimizer)
    held = watched.quantities.held_bytes

    seen: list[int] = []
    for number in range(5):
        watched.step(number, step)
        seen.append(held())

    assert seen == [0, 0, layer.weight.nbytes, 0, 0]


def test_a_users_quantity_sees_weight_gradient_and_state(
    watch: Callable[..., Any],
    registered: Callable[..., None],
    job: tuple[Any, Any, Callable[[], None]],
) -> None:
    def direction(
        weight: torch.Tensor, gradient: torch.Tensor, first: torch.Tensor
    ) -> torch.Tensor:
        return torch.stack([weight.sum(), gradient.sum(), first.sum()])

    needs = ["weight", "weight_gradient", "optimizer:exp_avg"]
    registered("direction", direction, needs=needs)
    layer, optimizer, step = job
    before = layer.weight.detach().clone()
    watched = watch(layer, {"Linear": ["direction"]}, optimizer)

    found = watched.step(0, step)["(root)"]["direction"]

    state = optimizer.state[layer.weight]["exp_avg"]
    right = [float(one.sum()) for one in (before, layer.weight.grad, state)]
    assert found == pytest.approx(right, rel=1e-5)


def test_without_an_optimizer_the_step_s_end_is_the_moment(watch: Callable[..., Any]) -> None:
    layer = torch.nn.Linear(3, 2)
    watched = watch(layer, {"Linear": ["weight_gradient_cosine"]})

    def step() -> None:
        layer.weight.grad = torch.ones(2, 3)

    found = [watched.step(number, step) for number in range(2)]

    assert found == [{}, {"(root)": {"weight_gradient_cosine": pytest.approx([1.0])}}]


def test_what_does_not_come_is_told_once(
    watch: Callable[..., Any], registered: Callable[..., None]
) -> None:
    registered("gradient_sum", torch.sum, needs=["weight_gradient"])
    layer = torch.nn.Linear(3, 2).requires_grad_(False)
    watched = watch(layer, {"Linear": ["gradient_sum", "input_cov_trace"]})

    for number in range(3):
        watched.step(number, lambda: None)

    came = "of (root) in a step in which it was due"
    assert sorted(watched.reports) == [
        f"Nothing came of gradient_sum {came}: it has no gradient",
        f"Nothing came of input_cov_trace {came}: its module did not run, runs compiled, or has no "
        "gradient",
    ]


def test_why_nothing_came_of_a_weight_is_told(
    watch: Callable[..., Any],
    registered: Callable[..., None],
    job: tuple[Any, Any, Callable[[], None]],
) -> None:
    registered("moment", torch.sum, needs=["optimizer:exp_avgg"])
    layer, optimizer, step = job
    model = torch.nn.ModuleDict({"trained": layer, "frozen": torch.nn.Linear(3, 2)})
    config = {"trained": "moment", "frozen": "update_cosine"}
    watched = watch(model.requires_grad_(), config, optimizer)

    for number in range(3):
        assert watched.step(number, step) == {}

    came = "in a step in which it was due"
    assert watched.reports == [
        f"Nothing came of moment of trained {came}: there is no 'exp_avgg' in the optimizer's "
        "state of it; it has exp_avg, exp_avg_sq, step",
        f"Nothing came of update_cosine of frozen {came}: no optimizer that is observed has "
        "updated it",
    ]


def test_sparse_gradients_of_different_rows_have_no_cosine(watch: Callable[..., Any]) -> None:
    embedding = torch.nn.Embedding(100, 4, sparse=True)
    watched = watch(embedding, {"Embedding": "weight_gradient_cosine"})

    def step(first: int) -> None:
        embedding.zero_grad()
        embedding(torch.arange(first, first + 8)).sum().backward()

    assert [watched.step(number, lambda n=number: step(50 * n)) for number in range(2)] == [{}, {}]
    [told] = watched.reports
    assert told.endswith("its gradient is sparse, and has other elements in each step")


def test_of_complex_weights_no_matrix_is_made_up(watch: Callable[..., Any]) -> None:
    layer = torch.nn.Linear(4, 3, dtype=torch.complex64)
    config = {"Linear": ["weight_spectral_norm", "input_cov_trace", "dead_neurons"]}
    watched = watch(layer, config)

    assert watched.step(0, lambda: layer(torch.randn(5, 4, dtype=torch.complex64))) == {}

    assert sorted(watched.reports) == [
        "dead_neurons of (root) is no longer computed: it is of complex64, and is not read",
        "input_cov_trace of (root) is no longer computed: it is of complex64, and is not read",
        "weight_spectral_norm of (root) is no longer computed: matrices of complex numbers are not "
        "computed",
    ]
