"""Activations and their gradients, as modules return them while a block runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from rankscope.agent.torch.tensors import Activations
from rankscope.sketch import SettingError


class Net(torch.nn.Module):
    """A module that is called twice, one that returns a nested output, and one that is in place."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = torch.nn.Linear(4, 4)
        self.lstm = torch.nn.LSTM(4, 3)
        self.act = torch.nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.shared(self.act(self.shared(x)))
        out, _ = self.lstm(x)
        return {"out": out, "size": torch.tensor(out.numel())}


def hooks_of(model: torch.nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())  # pyright: ignore[reportPrivateUsage]


def test_all_that_modules_return_is_copied_under_its_name() -> None:
    model, x = Net(), torch.randn(2, 4)
    with Activations(model) as seen:
        found: dict[str, Any] = model(x)
        found["out"].sum().backward()
    first = model.shared(x)

    assert list(seen.activations) == [
        "shared", "act", "shared#1", "lstm[0]", "lstm[1.0]", "lstm[1.1]",
        "(root)[out]", "(root)[size]",
    ]  # fmt: skip
    assert torch.equal(seen.activations["shared"], first)  # though it was changed in place
    assert torch.equal(seen.activations["act"], first.relu())
    assert torch.equal(seen.activations["(root)[out]"], found["out"])
    assert seen.activations["(root)[size]"].item() == 6
    assert seen.gradients["(root)[out]"].tolist() == torch.ones(2, 3).tolist()
    assert set(seen.gradients) == {"shared", "act", "shared#1", "lstm[0]", "(root)[out]"}
    assert seen.activations.describe("count").loc["(root)[size]", "count"] == 1


def test_gradients_are_those_of_autograd() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), torch.randn(2, 4)
    with Activations(model, include=r"^\d") as seen:
        inner = model[0](x)
        outer = model[1](inner)
        wanted = torch.autograd.grad(outer.square().sum(), [inner, outer], retain_graph=True)
        outer.square().sum().backward()

    # Each of the two backwards brought the same, and they add up.
    for name, gradient in zip("01", wanted, strict=True):
        torch.testing.assert_close(seen.gradients[name], 2 * gradient)


def test_nothing_is_left_on_a_model_after_the_block() -> None:
    model, x = Net(), torch.randn(2, 4)
    seen = Activations(model, gradients=False)
    with seen:
        assert hooks_of(copy.deepcopy(model)) == hooks_of(model) == 4
        model(x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), seen:
        model(x[:, :3])
    taken = len(seen.activations)
    model(x)["out"].sum().backward()

    assert hooks_of(model) == 0
    assert len(seen.activations) == taken
    assert not seen.gradients


def test_calls_are_counted_over_all_forwards_of_a_block() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(1.0))
    with Activations(model, include="0", dtype=torch.float64) as seen:
        model(torch.ones(2))
        with torch.no_grad():
            model.eval()(torch.ones(3))

    assert {name: tensor.tolist() for name, tensor in seen.activations.items()} == {
        "0": [0, 0],
        "0#1": [1, 1, 1],
    }
    assert seen.activations["0"].dtype == torch.float64


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_computes_again_is_not_taken_again(reentrant: bool) -> None:
    layer, x = torch.nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    with Activations(layer) as seen:
        made = checkpoint(layer, x, use_reentrant=reentrant)
        assert isinstance(made, torch.Tensor)
        made.sum().backward()

    assert list(seen.activations) == list(seen.gradients) == ["(root)"]
    assert seen.gradients["(root)"].tolist() == torch.ones(2, 3).tolist()


def test_a_compiled_model_is_looked_into() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    compiled, x = torch.compile(model, backend="eager"), torch.randn(2, 3)
    compiled(x)
    with Activations(compiled) as seen:  # pyright: ignore[reportArgumentType]  # a Module
        compiled(x).sum().backward()

    assert list(seen.activations) == ["0", "1", "(root)"]
    assert set(seen.gradients) == {"(root)", "1", "0"}


def test_a_block_cannot_be_opened_twice() -> None:
    seen = Activations(torch.nn.Linear(1, 1))
    with seen, pytest.raises(SettingError, match="open already"):
        seen.__enter__()
