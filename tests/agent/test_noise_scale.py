"""The gradient noise scale: the estimates, and what a measurement leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from rankscope.agent.toolkit import noise_scale_of
from rankscope.agent.torch.tensors import noise_scale
from rankscope.sketch import SettingError

CASES = {
    case["id"]: case
    for case in json.loads(
        (Path(__file__).parent.parent / "sketch" / "golden_cases.json").read_text(encoding="utf-8")
    )
}
BATCH = 8


class Known(torch.nn.Module):
    """The known problem: gradients of single samples are N(0.1, I) in 50 dimensions."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(50, dtype=dtype))
        self.norm = torch.nn.BatchNorm1d(1)

    def closure(self, seed: int, reduction: str = "mean") -> Callable[[], object]:
        generator = torch.Generator().manual_seed(seed)

        def draw() -> None:
            x = 0.1 + torch.randn(BATCH, 50, generator=generator)
            self.norm(x[:, :1])
            losses = x.to(self.w.dtype) @ self.w
            (losses.mean() if reduction == "mean" else losses.sum()).backward()

        return draw


def test_two_sizes_give_mc_candlishs_formula() -> None:
    golden = CASES["noise_two_point_formula"]
    sizes = golden["input"]
    found = noise_scale_of(
        {sizes["b_small"]: [sizes["sq_small"]], sizes["b_big"]: [sizes["sq_big"]]}
    )

    assert found.g_2 == pytest.approx(golden["right"]["g_2"])
    assert found.trace_sigma == pytest.approx(golden["right"]["tr"])
    assert found.b_noise == pytest.approx(golden["right"]["b_noise"])
    assert math.isnan(found.b_noise_error)


def test_more_sizes_are_fitted_by_a_line() -> None:
    sizes = (8, 16, 64, 256)
    found = noise_scale_of(
        {size: [0.5 + 50 / size - 0.01, 0.5 + 50 / size + 0.01] for size in sizes}
    )

    assert found.b_noise == pytest.approx(100)
    assert found.g_2 == pytest.approx(0.5)
    assert found.batch_sizes == sizes


def test_a_gradient_that_is_lost_in_noise_has_no_noise_scale() -> None:
    found = noise_scale_of({1: [3.0, 3.1], 4: [0.1, 0.2]})

    assert found.g_2 < 0
    assert found.trace_sigma > 0
    assert math.isnan(found.b_noise)
    assert math.isnan(found.b_noise_error)


@pytest.mark.parametrize("sizes", [(1, 32), (1, 2, 4, 8, 16, 32)])
def test_errors_are_honest_on_the_known_problem(sizes: tuple[int, ...]) -> None:
    """Over 400 seeds, with the squares that `noise_scale` would see: about 95 % within two."""
    right, within = CASES["nnstat_noise_scale"]["right"], 0
    for seed in range(400):
        random, squares = np.random.default_rng(seed), dict[int, list[float]]()
        for size in sizes:
            batches = 20 * max(round((sizes[-1] / size) ** 0.5), 1)
            noise = random.standard_normal((batches, 50)) / (size * BATCH) ** 0.5
            squares[size * BATCH] = ((0.1 + noise) ** 2).sum(axis=1).tolist()
        found = noise_scale_of(squares)
        within += abs(found.b_noise - right["b"]) < 2 * found.b_noise_error

    assert 0.92 < within / 400 < 0.98


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("sizes", [(1, 32), (1, 4, 32)])
def test_the_known_problem_is_measured_whatever_the_loss_is(
    reduction: str, sizes: tuple[int, ...]
) -> None:
    right, model = CASES["nnstat_noise_scale"]["right"], Known()
    found = noise_scale(
        model,
        model.closure(3, reduction),
        batch_size=BATCH,
        reduction=reduction,  # pyright: ignore[reportArgumentType]
        sizes=sizes,
        include="^w$",
    )

    assert abs(found.b_noise - right["b"]) < 3 * found.b_noise_error < 30
    assert abs(found.g_2 - right["g_2"]) < 3 * found.g_2_error < 0.15
    assert abs(found.trace_sigma - right["tr"]) < 3 * found.trace_sigma_error < 10


def test_narrow_gradients_are_added_up_in_wide_ones() -> None:
    model = Known(torch.bfloat16)
    found = noise_scale(
        model, model.closure(3), batch_size=BATCH, sizes=(1, 16), rounds=10, include="^w$"
    )

    assert abs(found.b_noise - 100) < 3 * found.b_noise_error < 60


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sizes", [(1, 4), (1, 2, 4)])
def test_a_gradient_that_is_not_finite_has_no_noise_scale(
    bad: float, sizes: tuple[int, ...]
) -> None:
    model, calls = Known(), count(1)
    good = model.closure(3)

    def closure() -> None:
        good()
        if next(calls) == 2:
            assert model.w.grad is not None
            model.w.grad[7] = bad

    found = noise_scale(model, closure, batch_size=BATCH, sizes=sizes, rounds=3, include="^w$")

    assert all(map(math.isnan, (found.b_noise, found.g_2, found.trace_sigma)))
    assert all(map(math.isnan, (found.b_noise_error, found.g_2_error, found.trace_sigma_error)))
    assert [math.isnan(square) for square in found.squares] == [size == 1 for size in sizes]


def test_gradients_and_buffers_are_as_before() -> None:
    model, seed = Known(), 5
    model.closure(seed)()
    gradient, buffers = model.w.grad, {name: x.clone() for name, x in model.named_buffers()}
    assert gradient is not None
    held, weight = gradient.clone(), model.w.detach().clone()
    same = dict(model.named_buffers())
    noise_scale(model, model.closure(seed), batch_size=BATCH, sizes=(1, 2), rounds=2)

    assert model.w.grad is gradient
    assert torch.equal(gradient, held)
    assert torch.equal(model.w, weight)
    assert model.norm.weight.grad is None
    for name, buffer in model.named_buffers():
        assert buffer is same[name]
        assert torch.equal(buffer, buffers[name])


def test_all_is_as_before_though_the_closure_fails() -> None:
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    gradient = model.weight.grad

    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        noise_scale(model, fails, batch_size=1)
    assert model.weight.grad is gradient
    with pytest.raises(SettingError, match="left no gradient"):
        noise_scale(model, lambda: None, batch_size=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": (2, 2)}, r"two or more different numbers of calls.*got \(2, 2\)"),
        ({"sizes": 8}, r"two or more different numbers of calls, as \(1, 32\); got 8\."),
        ({"sizes": (1, 2.5)}, r"got \(1, 2\.5\)"),
        ({"rounds": 0}, r"at least 1 and `reduction`.*got 1, 0, 'mean'"),
        ({"reduction": "none"}, "got 1, 20, 'none'"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        noise_scale(torch.nn.Linear(1, 1), lambda: None, batch_size=1, **options)  # pyright: ignore[reportArgumentType]
