"""Tensors of a model by name: snapshots, arithmetic, statistics, tables, files."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.agent import RankscopeWarning
from rankscope.agent.torch.tensors import (
    NamedTensors,
    adam_update,
    compute_stats,
    gradients,
    learning_rates,
    optimizer_state,
    snapshot,
    trust_ratio,
    update,
    weights,
)
from rankscope.sketch import SettingError

ROOT = Path(__file__).parent.parent
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in json.loads((ROOT / "sketch" / "golden_cases.json").read_text(encoding="utf-8"))
    if case["system"] == "nnstat"
}


def named(**tensors: object) -> NamedTensors:
    return NamedTensors({name: torch.tensor(values) for name, values in tensors.items()})


def right(case: str) -> dict[str, float]:
    return CASES[case]["right"]


def linear(*values: float) -> torch.nn.Linear:
    layer = torch.nn.Linear(len(values), 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([values]))
    return layer


def trained(optimizer: Callable[..., torch.optim.Optimizer]) -> tuple[torch.nn.Module, Any]:
    """A model after two steps, whose decayed weights an optimizer lists before the others."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2), torch.nn.Linear(2, 4))
    decayed = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() <= 1]
    made = optimizer([{"params": decayed, "lr": 0.5}, {"params": others, "lr": 0.25}])
    for _ in range(2):
        made.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        made.step()
    return model, made


# The golden cases of nnstat.


def test_moments_are_those_of_the_golden_case() -> None:
    table = named(x=CASES["nnstat_moments"]["input"]).describe("all")
    golden = right("nnstat_moments")

    assert table.loc["x", "variance"] == pytest.approx(golden["var_unbiased"])
    assert table.loc["x", "std"] == pytest.approx(golden["var_unbiased"] ** 0.5)
    assert table.loc["x", "skew"] == pytest.approx(golden["skew_biased"])
    assert table.loc["x", "kurtosis"] == pytest.approx(golden["kurtosis_excess_biased"])


def test_norms_are_those_of_the_golden_case() -> None:
    tensors = named(a=[[3.0, -4], [0, 1]], b=[[2.0, -2]], c=[1.0])

    for p, norm in right("nnstat_norms").items():
        assert tensors.norm(float(p)) == pytest.approx(norm, rel=1e-12)


def test_weights_before_a_step_stay_what_they_were() -> None:
    model = linear(0, 0, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = weights(model)
    model(torch.tensor([[1.0, 5, 0], [4, 0, 0], [0, 0, math.sqrt(20)]])).sum().backward()
    optimizer.step()
    change = weights(model) - before

    # sqrt(25 + 25 + 20) times the learning rate
    assert change.norm() == pytest.approx(CASES["nnstat_update_alias"]["right"], abs=1e-5)
    assert before.norm() == 0


def test_trust_ratios_are_those_of_the_golden_case() -> None:
    before, after = named(w=[3.0, 4]), named(w=[3.0, 3])
    golden = right("nnstat_trust_ratio")

    assert trust_ratio(before, after) == {"w": pytest.approx(golden["lr=1"])}
    assert trust_ratio(before, after, 0.1) == {"w": pytest.approx(golden["lr=0.1"])}
    assert trust_ratio(before, after, {"w": 0.1})["w"] == pytest.approx(golden["lr=0.1"])
    with pytest.raises(SettingError, match="`lr` has no rate for w"):
        trust_ratio(before, after, {"v": 0.1})
    assert trust_ratio(before, before) == {"w": math.inf}
    assert math.isnan(trust_ratio(named(w=[0.0]), named(w=[0.0]))["w"])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_has_no_trust_ratio(bad: float) -> None:
    before, after = named(w=[3.0, 4], v=[3.0, 4]), named(w=[3.0, bad], v=[3.0, 3])

    for one, two in ((before, after), (after, before), (after, after)):
        assert math.isnan(trust_ratio(one, two)["w"])
    assert trust_ratio(before, after)["v"] == 5


def test_a_frozen_weight_needs_no_learning_rate() -> None:
    model, optimizer = trained(torch.optim.SGD)
    model.register_parameter("frozen", torch.nn.Parameter(torch.ones(2), requires_grad=False))
    before = weights(model)
    optimizer.step()
    after, rates = weights(model), learning_rates(model, optimizer)
    every = {**rates, "frozen": 0.1}

    assert "frozen" not in rates
    assert update(before, after, rates)["frozen"].tolist() == [0, 0]
    assert update(before, after, rates) == update(before, after, every)
    ratios = trust_ratio(before, after, rates)
    assert math.isnan(ratios.pop("frozen"))
    assert ratios == {name: trust_ratio(before, after, every)[name] for name in rates}
    after["frozen"].add_(1)
    for ask in (update, trust_ratio):
        with pytest.raises(SettingError, match=r"no rate for frozen, which changed; give one, or"):
            ask(before, after, rates)


# Snapshots.


def test_snapshots_have_the_device_and_dtype_that_are_asked_for() -> None:
    model = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    taken = weights(model, device="cpu", dtype=torch.float64)

    assert list(taken) == ["weight", "bias"]
    assert taken.kind == "weight"
    assert {tensor.dtype for tensor in taken.values()} == {torch.float64}
    assert not any(tensor.requires_grad for tensor in taken.values())
    assert repr(taken) == "NamedTensors(weight: 2 tensors, 6 elements, 48 bytes)"


def test_a_dtype_may_stand_alone_as_torch_has_it() -> None:
    tensors = named(x=[1.0])

    assert tensors.to(torch.float16) == tensors.to(dtype=torch.float16)
    assert tensors.to("cpu", torch.float16)["x"].dtype == torch.float16
    with pytest.raises(SettingError, match=r"one dtype, got torch\.float16 and torch\.float32"):
        tensors.to(torch.float16, torch.float32)


def test_frozen_and_trained_weights_can_be_told_apart() -> None:
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad_(False)

    assert list(weights(model, requires_grad=True)) == ["weight"]
    assert list(weights(model, requires_grad=False)) == ["bias"]


def test_tied_weights_are_taken_once_and_wrappers_left_out_of_names() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    wrapped = torch.nn.Sequential()
    wrapped.add_module("_orig_mod", model)

    assert list(weights(model)) == ["a.weight", "a.bias", "b.bias"]
    assert list(weights(wrapped)) == ["a.weight", "a.bias", "b.bias"]


def test_parameters_without_a_gradient_are_left_out() -> None:
    model = torch.nn.Linear(2, 2)
    assert model.bias is not None
    model.bias.sum().backward()

    assert list(gradients(model)) == ["bias"]
    assert gradients(model)["bias"].tolist() == [1, 1]
    assert gradients(torch.nn.Linear(1, 1)).describe().empty


def test_a_sparse_gradient_is_taken_whole() -> None:
    model = torch.nn.Embedding(4, 2, sparse=True)
    model(torch.tensor([1, 1, 3])).sum().backward()

    assert gradients(model)["weight"].tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (torch.optim.AdamW, ("exp_avg", "exp_avg_sq")),
        (lambda groups: torch.optim.SGD(groups, momentum=0.9), ("momentum_buffer",)),
        (torch.optim.Adagrad, ("sum",)),
    ],
)
def test_state_belongs_to_its_parameter_whatever_the_order(
    optimizer: Callable[..., torch.optim.Optimizer], slots: tuple[str, ...]
) -> None:
    model, made = trained(optimizer)

    for slot in slots:
        taken = optimizer_state(model, made, slot)
        assert list(taken) == [name for name, _ in model.named_parameters()]
        for name, parameter in model.named_parameters():
            assert torch.equal(taken[name], made.state[parameter][slot])


def test_an_unknown_slot_is_refused_with_those_there_are() -> None:
    model, optimizer = trained(torch.optim.AdamW)

    with pytest.raises(SettingError, match="no state 'momentum'; it has step, exp_avg, exp_avg_sq"):
        optimizer_state(model, optimizer, "momentum")
    assert len(optimizer_state(model, torch.optim.AdamW(model.parameters()), "exp_avg")) == 0


def test_several_optimizers_have_what_each_has_of_its_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 4))
    first = torch.optim.AdamW(model[0].parameters(), lr=0.5)
    second = torch.optim.SGD(model[1].parameters(), lr=0.25, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    first.step()
    second.step()
    both = [first, second]

    assert list(optimizer_state(model, both, "exp_avg")) == ["0.weight", "0.bias"]
    assert list(optimizer_state(model, both, "momentum_buffer")) == ["1.weight", "1.bias"]
    assert learning_rates(model, both) == {
        "0.weight": 0.5, "0.bias": 0.5, "1.weight": 0.25, "1.bias": 0.25,
    }  # fmt: skip
    table = compute_stats(model, both, ["exp_avg", "momentum_buffer"], by="tensor")
    assert table.loc["optimizer_state[momentum_buffer]"].index.tolist() == ["1.weight", "1.bias"]
    with pytest.raises(SettingError, match="AdamW, SGD has no state 'sum'; it has step, exp_avg"):
        optimizer_state(model, both, "sum")


@pytest.mark.parametrize("none", [None, []])
def test_a_slot_without_an_optimizer_is_refused(none: Any) -> None:
    for ask in (optimizer_state, compute_stats):
        with pytest.raises(SettingError, match="no optimizer to look for the state 'exp_avg' in"):
            ask(torch.nn.Linear(1, 1), none, "exp_avg")


def test_state_of_another_shape_is_its_parameters_own() -> None:
    model, optimizer = trained(torch.optim.Adafactor)
    taken = optimizer_state(model, optimizer, "row_var")

    assert {name: tuple(tensor.shape) for name, tensor in taken.items()} == {
        "0.weight": (2, 1),
        "2.weight": (4, 1),
    }


def test_state_that_belongs_to_no_single_parameter_is_refused() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # pyright: ignore[reportArgumentType]  # torch wants floats
    for slot, what in (("d", "one tensor of all parameters together"), ("old_dirs", "a list")):
        with pytest.raises(SettingError, match=f"LBFGS keeps {what} as '{slot}', not a tensor or"):
            optimizer_state(model, optimizer, slot)
        with pytest.raises(SettingError, match=f"LBFGS keeps {what}"):
            compute_stats(model, optimizer, slot)


def test_patterns_are_regular_expressions_found_in_names() -> None:
    model, _ = trained(torch.optim.AdamW)

    assert list(weights(model, include=r"^\d\.weight", exclude="1")) == ["0.weight", "2.weight"]
    assert list(weights(model).filter(["^0", "^2"], r"bias$")) == ["0.weight", "2.weight"]
    assert list(weights(model).filter("0.w")) == ["0.weight"]
    with pytest.raises(SettingError, match=r"include='\(' is not a regular expression"):
        weights(model, include="(")
    for ask in (lambda: weights(model, include="w1"), lambda: weights(model).filter("w1")):
        with pytest.warns(RankscopeWarning, match="include='w1' matches no") as told:
            assert not ask()
        assert told[0].filename == __file__


def test_a_name_that_there_is_not_names_what_is_near() -> None:
    taken = named(**{"0.weight": [1.0], "0.bias": [1.0]})

    with pytest.raises(KeyError, match=r"There is no tensor '0\.wieght'; did you mean 0\.weight"):
        taken["0.wieght"]
    with pytest.raises(KeyError, match=r"There is no tensor 'x'; there is 0\.weight, 0\.bias\."):
        taken["x"]
    assert taken.get("x") is None
    assert "x" not in taken


def test_what_is_no_tensor_is_no_part_of_a_snapshot() -> None:
    mixed: Any = {"a": torch.ones(3), "b": np.ones(3)}

    with pytest.raises(SettingError, match=r"takes torch tensors by name, got ndarray as 'b': "):
        snapshot(mixed)
    assert list(snapshot(mixed, exclude="b")) == ["a"]
    model: Any = torch.nn.Linear(1, 1)
    with pytest.raises(SettingError, match=r"by name, got Linear; of a model `weights\(model\)`"):
        snapshot(model)
    assert list(snapshot(torch.nn.ParameterDict({"a": torch.ones(1)}))) == ["a"]  # pyright: ignore[reportArgumentType]  # no Mapping, yet alike


def test_a_model_without_memory_is_refused() -> None:
    with pytest.raises(SettingError, match=r"weight is on the device `meta`.*to_empty"):
        weights(torch.nn.Linear(2, 2, device="meta"))


# Arithmetic.

NUMBERS = st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3)
OPERATIONS = (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow)


@given(NUMBERS, NUMBERS, st.sampled_from(OPERATIONS))
def test_arithmetic_is_that_of_torch_by_name(
    left: list[float], right: list[float], operation: Callable[[Any, Any], Any]
) -> None:
    a, b = named(x=left, y=[1.0]), named(y=[2.0], x=right)
    made, kept = operation(a, b), a.clone()

    assert torch.equal(
        made["x"].nan_to_num(), operation(torch.tensor(left), torch.tensor(right)).nan_to_num()
    )
    assert made["y"].tolist() == [operation(1.0, 2.0)]
    for number in (2, 0.5, torch.tensor(3.0), np.float64(1.5), np.float32(3)):
        for mine, theirs in ((a, number), (number, a)):
            one = torch.tensor(left)
            wanted = operation(*(one if side is a else side for side in (mine, theirs)))
            assert torch.equal(operation(mine, theirs)["x"].nan_to_num(), wanted.nan_to_num())
    assert a == kept


def test_a_number_of_numpys_is_a_number_on_either_side() -> None:
    tensors = NamedTensors({"x": torch.tensor([1.0, 2], dtype=torch.bfloat16)})

    numbers: list[Any] = [np.float64(2), np.float32(2), np.int64(2), np.array(2.0)]
    for number in numbers:
        assert number * tensors == tensors * number == 2 * tensors
        assert number - tensors == 2 - tensors


def test_other_functions_of_each_element_make_new_tensors() -> None:
    tensors = named(x=[-4.0, 0, 9])
    kept = tensors.clone()

    assert (-tensors)["x"].tolist() == [4, 0, -9]
    assert abs(tensors) == tensors.abs() == named(x=[4.0, 0, 9])
    assert tensors.abs().sqrt() == named(x=[2.0, 0, 3])
    assert tensors.sign() == named(x=[-1.0, 0, 1])
    assert tensors.clip(-1, 2) == named(x=[-1.0, 0, 2])
    assert tensors.clip(min=0) == named(x=[0.0, 0, 9])
    assert tensors.zeros_like() == named(x=[0.0, 0, 0])
    assert tensors.ones_like() == named(x=[1.0, 1, 1])
    assert tensors.apply(lambda x: x.mul_(2)) == named(x=[-8.0, 0, 18])
    assert tensors == kept
    assert tensors != named(x=[-4.0, 0]) != named(y=[-4.0, 0])


def test_tensors_of_other_names_are_refused_and_named() -> None:
    with pytest.raises(SettingError, match=r"Only the left side has a; only the right side has c"):
        operator.add(named(a=[1.0], b=[1.0]), named(b=[1.0], c=[1.0]))
    with pytest.raises(SettingError, match="only the right side has x0, x1, x2, x3, x4 and 3 more"):
        operator.sub(NamedTensors({}), {f"x{number}": 1.0 for number in range(8)})
    others: list[Any] = [torch.ones(2), np.ones(2)]
    for other in others:
        for sides in ((named(a=[1.0, 2]), other), (other, named(a=[1.0, 2]))):
            with pytest.raises(SettingError, match=r"a tensor of shape \(2,\)"):
                operator.mul(*sides)
    with pytest.raises(
        SettingError, match=r"`\+` takes .* got \(2,\) and \(3,\) of b; leave it out"
    ):
        operator.add(named(a=[1.0], b=[1.0, 2]), named(a=[1.0], b=[1.0, 2, 3]))
    with pytest.raises(SettingError, match=r"must return a tensor, got 3\.0 of a"):
        named(a=[1.0, 2]).apply(lambda x: float(x.sum()))  # pyright: ignore[reportArgumentType]


def test_an_update_is_divided_by_the_learning_rate_of_its_group() -> None:
    model, optimizer = trained(torch.optim.SGD)
    before = weights(model)
    optimizer.step()
    rates = learning_rates(model, optimizer)
    made = update(before, weights(model), rates)

    assert rates["0.weight"] == 0.5
    assert rates["1.weight"] == 0.25
    assert made.kind == "update"
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(made[name], -gradient, atol=1e-6, rtol=1e-5)


def test_the_direction_of_adam_with_correction_is_what_adam_does() -> None:
    model, optimizer = trained(torch.optim.Adam)
    before = weights(model)
    optimizer.step()
    first, second, steps = (
        optimizer_state(model, optimizer, slot) for slot in ("exp_avg", "exp_avg_sq", "step")
    )
    done = update(before, weights(model), learning_rates(model, optimizer))

    corrected = adam_update(first, second, steps=steps)
    for name in done:
        torch.testing.assert_close(done[name], -corrected[name], atol=1e-5, rtol=1e-4)
    assert adam_update(first, second, steps=3) == corrected
    assert adam_update(named(w=[1.0]), named(w=[4.0]), eps=1e-6)["w"].item() == pytest.approx(0.5)
