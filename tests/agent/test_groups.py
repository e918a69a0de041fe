"""What is measured together step after step, while the job changes it: each held against itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from rankscope.sketch import sketch_array
from rankscope.sketch.reference import glance_at

from .engines import in_cuda

if TYPE_CHECKING:
    from conftest import Observed

KINDS = ("weight", "weight_gradient", "optimizer_state")
WAYS: dict[str, dict[str, Any]] = {
    "every step": {},
    "every third, else a sentinel": {"every": 3, "sentinel": True},
    "in turn": {"every": 3, "staggered": True},
    "in turn, else a sentinel": {"every": 3, "staggered": True, "sentinel": True},
}
on_each_kernel = pytest.mark.parametrize("kernel", ["numba", "torch", "cuda"])


def use(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it read the tensors of the CPU."""
    if kernel != "numba":
        monkeypatch.setattr("rankscope.agent.torch.meters.find_spec", lambda _: None)
    if kernel == "cuda":
        monkeypatch.setattr("rankscope.agent.torch.meters.Plain", in_cuda)


class Experts(nn.Module):
    """A layer, then of three others the one that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 200)
        self.experts = nn.ModuleList(nn.Linear(200, 3) for _ in range(3))
        self.late = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        """[batch, 3], of [batch, 6]."""
        return self.experts[which](self.first(x)) + self.late


@pytest.fixture
def one_thread() -> Iterator[None]:
    """With more of them torch's threads would read tensors when they are noted."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


Kept = dict[tuple[int, str], torch.Tensor]


def keep(kept: Kept, step: int, kind: str, found: dict[str, Any]) -> None:
    for name, one in found.items():
        if isinstance(one, torch.Tensor) and one.dim():
            kept[step, f"{kind}:{name}"] = one.detach().clone(memory_format=torch.preserve_format)


def assert_all_stored(observed: Observed, kept: Kept, steps: int, options: dict[str, Any]) -> None:
    whole = 0
    for step in range(steps):
        stored = observed.sketches(step)
        expected = {label: one for (at, label), one in kept.items() if at == step}
        if not options.get("staggered") or options.get("sentinel"):
            assert set(stored) == set(expected), step
        for label, sketch in stored.items():
            # In the order in which the elements lie in memory.
            x = expected[label]
            exact = x.T.contiguous().numpy() if not x.is_contiguous() else x.numpy()
            is_whole = bool(sketch.histogram.any()) or not exact.any()
            whole += is_whole
            should = sketch_array(exact) if is_whole else glance_at(exact)
            assert np.array_equal(sketch.counts, should.counts), (step, label)
            assert np.array_equal(sketch.histogram, should.histogram), (step, label)
            if is_whole:
                assert np.array_equal(sketch.checksum, should.checksum), (step, label)
                np.testing.assert_allclose(sketch.moments, should.moments, rtol=1e-9)
            else:
                assert np.array_equal(sketch.moments, should.moments), (step, label)
    assert whole >= len(kept) // 4


def changes(model: Experts, optimizer: torch.optim.Optimizer) -> dict[int, Callable[[], None]]:
    """What the job does to its tensors before that step."""
    first, expert = model.first.weight, model.experts[1].weight

    def transpose() -> None:
        first.data = first.detach().T.contiguous().T

    def move() -> None:
        for parameter in model.parameters():
            parameter.data = parameter.detach().clone()

    return {
        4: lambda: optimizer.load_state_dict(deepcopy(optimizer.state_dict())),
        6: move,
        8: transpose,
        10: lambda: optimizer.add_param_group({"params": [model.late], "lr": 0.5}),
        12: lambda: setattr(expert, "requires_grad", False),
    }


@pytest.mark.parametrize("way", WAYS)
@on_each_kernel
def test_what_changes_from_step_to_step_is_seen_as_it_is(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, way: str, kernel: str
) -> None:
    use(kernel, monkeypatch)
    model, kept, steps = Experts(), Kept(), 16
    held = [parameter for name, parameter in model.named_parameters() if name != "late"]
    optimizer = torch.optim.AdamW(held, lr=0.01)
    due = changes(model, optimizer)
    names = dict(model.named_parameters())
    with observed.observe(model, optimizer, kinds=KINDS, **WAYS[way]) as scope:
        for step in range(steps):
            due.get(step, lambda: None)()
            keep(kept, step, "weight", names)
            model(torch.randn(5, 6), step % 3).square().mean().backward()
            keep(kept, step, "weight_gradient", {name: one.grad for name, one in names.items()})
            optimizer.step()
            for name, parameter in names.items():
                state = optimizer.state.get(parameter, {})
                slots = {f"{name}[{slot}]": value for slot, value in state.items()}
                keep(kept, step, "optimizer_state", slots)
            scope.step()
            optimizer.zero_grad()
            model.late.grad = None
        health = scope.health()
    assert health["hook_errors"] == health["tensors_stale"] == 0
    assert observed.reports() == ""
    assert_all_stored(observed, kept, steps, WAYS[way])


@pytest.mark.usefixtures("one_thread")
def test_weights_that_change_before_they_are_read_are_left_out_and_then_read_at_once(
    observed: Observed,
) -> None:
    model, kept = Experts(), Kept()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model.first.weight
    with observed.observe(model, optimizer, kinds=["weight"]) as scope:
        for step in range(5):
            keep(kept, step, "weight", dict(model.named_parameters()))
            loss = model(torch.randn(5, 6), 0).sum()
            if step >= 2:
                weight.detach().clamp_(-0.1, 0.1)
            loss.backward()
            optimizer.step()
            scope.step()
            optimizer.zero_grad()
        assert scope.health()["tensors_stale"] == 1
    assert "weight:first.weight" not in observed.sketches(2)
    kept.pop((2, "weight:first.weight"))
    assert_all_stored(observed, kept, 5, {})


@pytest.mark.usefixtures("one_thread")
@on_each_kernel
def test_weights_that_are_swapped_before_they_are_read_are_those_of_the_forward(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    use(kernel, monkeypatch)
    model, kept = Experts(), Kept()
    optimizer = torch.optim.SGD([model.late], lr=0.1)
    first = model.first.weight.requires_grad_(False)
    with observed.observe(model, optimizer, kinds=["weight"]) as scope:
        for step in range(4):
            keep(kept, step, "weight", dict(model.named_parameters()))
            model(torch.randn(5, 6), 0).sum().backward()
            first.data = torch.zeros(2)  # as of a model that is moved away, or averaged
            optimizer.step()
            scope.step()
            first.data = torch.randn(200, 6)
    assert_all_stored(observed, kept, 4, {})


@on_each_kernel
def test_a_weight_that_cannot_be_read_leaves_the_others_right(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    use(kernel, monkeypatch)
    model, kept = Experts(), Kept()
    packed, halved = (model.get_parameter(f"experts.{one}.weight") for one in (2, 1))
    optimizer = torch.optim.SGD([model.late], lr=0.1)
    with observed.observe(model, optimizer, kinds=["weight"]) as scope:
        for step in range(4):
            if step == 2:
                packed.requires_grad = False
                packed.data = torch.zeros(3, 200, dtype=torch.int8)  # as in a quantised layer
                halved.data = halved.detach().half()
            model(torch.randn(5, 6), 0).sum().backward()
            keep(kept, step, "weight", dict(model.named_parameters()))
            optimizer.step()
            scope.step()
        assert scope.health()["hook_errors"] == 0
    for (step, label), weight in kept.items():
        if weight.dtype == torch.int8:
            assert label not in observed.sketches(step)
        else:
            exact = sketch_array(weight.numpy())
            assert np.array_equal(observed.sketches(step)[label].checksum, exact.checksum)
