"""What a step changes of weights: against the weights themselves, before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from rankscope.sketch import SettingError, sketch_array
from rankscope.store import open_run

if TYPE_CHECKING:
    from conftest import Observed

STEPS = 4
PARAMETERS = ("0.weight", "0.bias", "2.weight", "2.bias")


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 50), nn.GELU(), nn.Linear(50, 2)).to(dtype)


def backward(model: nn.Module, step: int) -> None:
    torch.manual_seed(100 + step)
    dtype = next(model.parameters()).dtype
    model.zero_grad()
    model(torch.randn(7, 3, dtype=dtype)).square().mean().backward()


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def assert_is_new_less_old(
    observed: Observed, step: int, old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]
) -> None:
    for name in old:
        exact = sketch_array((new[name].float() - old[name].float()).numpy())
        mine = observed.sketches(step)[f"update:{name}"]
        assert np.array_equal(mine.counts, exact.counts), (step, name)
        assert np.array_equal(mine.checksum, exact.checksum), (step, name)


@pytest.mark.parametrize("updates", [1, 2])
def test_an_update_is_new_less_old_of_the_whole_step(observed: Observed, updates: int) -> None:
    model, kept = make_model(), list[dict[str, torch.Tensor]]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with observed.observe(model, optimizer, schedules={"update": 2}) as scope:
        for step in range(STEPS):
            kept.append(weights(model))
            for _ in range(updates):
                backward(model, step)
                optimizer.step()
            scope.step()
    kept.append(weights(model))

    for step in (0, 2):
        assert_is_new_less_old(observed, step, kept[step], kept[step + 1])
    run = open_run(observed.path)
    assert set(run.updates()["step"]) == {0, 2}
    assert {"activation", "weight", "update"} <= set(run.sites()["kind"])


def test_without_an_optimizer_it_is_what_the_step_changed(observed: Observed) -> None:
    model = make_model()
    with observed.observe(model, kinds=("weight", "update")) as scope:
        old = weights(model)
        backward(model, 0)
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= 0.1 * parameter.grad
        scope.step()
    assert_is_new_less_old(observed, 0, old, weights(model))


def test_a_weight_that_no_optimizer_changed_has_none(observed: Observed) -> None:
    model = make_model()
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[2].parameters()], lr=0.1)
    model[0].weight.requires_grad_(False)
    with observed.observe(model, optimizer, kinds=("weight", "update")) as scope:
        backward(model, 0)
        optimizer.step()
        scope.step()
        backward(model, 1)
        scope.step()  # skipped, as a GradScaler does at an overflow
    found = open_run(observed.path).updates()
    assert set(zip(found["step"], found["site"], strict=True)) == {
        (0, f"update:{name}") for name in PARAMETERS[1:]
    }


def test_an_update_that_is_all_nan_is_told_as_unknown(observed: Observed) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observed.observe(model, optimizer, kinds=("weight", "update")) as scope:
        backward(model, 0)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.nan)
        optimizer.step()
        scope.step()
    found = open_run(observed.path).updates()
    assert found["site"].tolist() == [f"update:{name}" for name in PARAMETERS]
    assert found[["update", "ratio", "unchanged"]].isna().to_numpy().all()


def test_what_rounding_swallows_of_bfloat16_is_counted(observed: Observed) -> None:
    model = make_model(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with observed.observe(model, optimizer, kinds=("weight", "update")) as scope:
        old = weights(model)
        backward(model, 0)
        optimizer.step()
        scope.step()
    new = weights(model)
    assert_is_new_less_old(observed, 0, old, new)
    same = {f"update:{name}": (old[name] == new[name]).float().mean().item() for name in old}
    found = open_run(observed.path).updates()
    assert dict(zip(found["site"], found["unchanged"], strict=True)) == pytest.approx(same)
    assert 0 < min(same.values()) < 1


def test_ratios_are_those_of_each_groups_own_learning_rate(observed: Observed) -> None:
    model = make_model()
    groups = [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": [model[2].weight], "lr": 0.1},
        {"params": [model[2].bias], "lr": 0.01},
    ]
    optimizer = torch.optim.SGD(groups)
    with observed.observe(model, optimizer, kinds=("weight", "update")) as scope:
        old = weights(model)
        backward(model, 0)
        optimizer.step()
        scope.step()
    new, run = weights(model), open_run(observed.path)
    found = run.updates().set_index("site")
    for name in PARAMETERS:
        rate = 0.01 if name == "2.bias" else 0.1
        size, change = old[name].norm().item(), (new[name] - old[name]).norm().item()
        row = found.loc[f"update:{name}"]
        assert row["lr"] == pytest.approx(rate)
        assert row["weight"] == pytest.approx(size, rel=1e-6)
        assert row["update"] == pytest.approx(change, rel=1e-6)
        assert row["ratio"] == pytest.approx(change / size, rel=1e-5)
        assert row["trust_ratio"] == pytest.approx(rate * size / change, rel=1e-5)
    assert run.training()["name"].values.tolist() == ["lr", "lr.2"]


def test_a_run_without_updates_says_how_to_have_them(observed: Observed) -> None:
    model = make_model()
    with observed.observe(model, kinds=("weight",)) as scope:
        backward(model, 0)
        scope.step()
    with pytest.raises(SettingError, match=r"schedules=\{'update': 10\}"):
        open_run(observed.path).updates()
