"""Modes of taps: what is taken of the micro-batches of a step, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from rankscope.agent.torch import tap
from rankscope.sketch import SketchTable, derive, sketch_array

if TYPE_CHECKING:
    from conftest import Observed

MODES = ("all", "every(2)", "sum", "final")


class Scores(nn.Module):
    """Taps its scores once in each mode, and may change them in place afterwards."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.linear, self.in_place = nn.Linear(3, 5), in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.linear(x)
        for mode in MODES:
            scores = tap(mode, scores * 1.0, mode=mode)
        return scores.mul_(2.0) if self.in_place else scores * 2.0


class Tapped(nn.Module):
    """Taps what it is given."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.one, self.mode = nn.Parameter(torch.ones(1)), mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tap("x", x, mode=self.mode)


def close(sketch: SketchTable, *calls: torch.Tensor) -> bool:
    """Whether a sketch is that of these calls merged, but for the last bits of its sums."""
    exact = sketch_array(calls[0].detach().numpy())
    for call in calls[1:]:
        exact = exact.merge(sketch_array(call.detach().numpy()))
    return (
        np.array_equal(sketch.counts, exact.counts)
        and np.array_equal(sketch.histogram, exact.histogram)
        and np.allclose(sketch.moments, exact.moments, rtol=1e-5)
    )


# torch 2.13 warns of itself where it traces hooks on gradients.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_mode_says_what_is_taken_of_the_micro_batches(observed: Observed, compiled: bool) -> None:
    torch.manual_seed(0)
    model = Scores(in_place=not compiled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = [torch.randn(4, 3) * scale for scale in (1.0, 10.0, 100.0, 1000.0, 1e4)]
    weights = [1.0, 0.5, 0.25, 2.0, 4.0]
    with observed.observe(model, optimizer, kinds="tap") as scope:
        forward: Callable[[torch.Tensor], torch.Tensor] = (
            torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        )
        for _ in range(2):
            for batch, weight in zip(batches, weights, strict=True):
                (forward(batch) * weight).sum().backward()
            optimizer.step()
            scope.step()
    values = [model.linear(batch) for batch in batches]
    gradients = [torch.full((4, 5), 2.0 * weight) for weight in weights]
    for step in range(2):
        sketches = observed.sketches(step)
        for slot, calls in (("", values), ("[gradient]", gradients)):
            assert close(sketches[f"tap:all{slot}"], *calls)
            assert close(sketches[f"tap:final{slot}"], calls[-1])
            assert close(sketches[f"tap:sum{slot}"], torch.stack(calls).sum(0))
            assert close(sketches[f"tap:every(2){slot}"], calls[1], calls[3])


@pytest.mark.parametrize("inference", [False, True])
def test_a_sum_of_bfloat16_is_one_of_float32(observed: Observed, inference: bool) -> None:
    model = Tapped("sum")
    with observed.observe(model, kinds="tap", training_only=False) as scope:
        with torch.inference_mode(inference):
            for _ in range(300):
                model(torch.ones(2, dtype=torch.bfloat16))
        scope.step()
    assert derive(observed.sketches(0)["tap:x"], "max")[0] == 300.0


def test_complex_numbers_are_added_up_by_their_parts(observed: Observed) -> None:
    model = Tapped("sum")
    with observed.observe(model, kinds="tap") as scope:
        for _ in range(3):
            model(torch.tensor([1.0 + 2.0j]).conj())
        scope.step()
    sketch = observed.sketches(0)["tap:x"]
    assert derive(sketch, "min")[0] == -6.0
    assert derive(sketch, "max")[0] == 3.0


def test_calls_that_cannot_be_added_up_are_told_and_the_next_step_has_its_sum(
    observed: Observed,
) -> None:
    model = Tapped("sum")
    with observed.observe(model, kinds="tap") as scope:
        for sizes in ((2, 3), (3, 2), (4, 4)):
            for size in sizes:
                model(torch.ones(size))
            scope.step()
    assert [*observed.means("tap", "x").items()] == [(2, 2.0)]
    assert observed.reports().count("one has the shape [2], another [3]") == 1


def test_a_wrong_mode_is_told_and_logged_once_and_all_calls_are_measured(
    observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    model = Tapped("last")
    with observed.observe(model, kinds="tap") as scope:
        for _ in range(2):
            model(torch.ones(2))
            model(torch.ones(3))
            scope.step()
    assert observed.sketches(1)["tap:x"].counts[0, 0] == 5
    assert observed.reports().count("'last' is no mode; write all, final, sum or every(4)") == 1
    assert "every(4).." not in observed.reports()
    assert [one for one in caplog.messages if "mode" in one] == [
        "All calls of the tap x are taken: 'last' is no mode; write all, final, sum or every(4)."
    ]


def test_fewer_calls_than_a_period_leave_nothing(observed: Observed) -> None:
    model = Tapped("every(3)")
    with observed.observe(model, kinds="tap") as scope:
        for calls in (2, 3):
            for call in range(calls):
                model(torch.full([2], float(call)))
            scope.step()
    assert observed.means("tap", "x") == {1: 2.0}
