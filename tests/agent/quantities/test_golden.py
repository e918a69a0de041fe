"""Taiyi's quantities on its own cases, with the right values where Taiyi's are wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

GOLDEN = Path(__file__).parents[2] / "sketch" / "golden_cases.json"
CASES = {case["id"]: case for case in json.loads(GOLDEN.read_text(encoding="utf-8"))}
COVARIANCE = [
    "InputCovMaxEig",
    "InputCovStableRank",
    "InputCovCondition",
    "input_cov_spectrum",
]


def linear(weight: Any) -> torch.nn.Linear:
    """A layer with that weight, and no bias."""
    matrix = torch.tensor(weight)
    layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
    layer.weight.data = matrix
    return layer


def test_a_linear_layer_has_the_right_spectrum(watch: Callable[..., Any]) -> None:
    case = CASES["taiyi_linear"]
    x, right = torch.tensor(case["input"]["X"]), case["right"]
    layer = linear(case["input"]["W"])
    asked = [*COVARIANCE, "InputCovCondition20", "InputCovCondition50", "InputCovCondition80"]
    watched = watch(layer, {"Linear": [*asked, "RankMe", "LinearDeadNeuronNum"]})

    found = watched.step(0, lambda: layer(x).square().sum().backward())["(root)"]

    names = ("max_eig", "stable_rank", "condition")
    expected = [right["InputCovMaxEig"], right["InputCovStableRank"], right["InputCovCondition"]]
    assert [found[f"input_cov_{name}"][0] for name in names] == pytest.approx(expected)
    assert found["input_cov_spectrum"] == pytest.approx(right["eig"])
    shares = [found[f"input_cov_condition{share}"][0] for share in (20, 50, 80)]
    assert shares == pytest.approx([1.0, right["InputCovCondition"], right["InputCovCondition"]])
    assert found["rank_me"][0] == pytest.approx(right["RankMe"])
    assert found["dead_neurons(threshold=-2)"][0] == 0
    assert watched.reports == []


def test_dead_neurons_are_a_share(watch: Callable[..., Any]) -> None:
    case = CASES["taiyi_dead"]["input"]
    layer = linear(case["W"])
    watched = watch(layer, {"(root)": "LinearDeadNeuronNum"})

    found = watched.step(0, lambda: layer(torch.tensor(case["X"])))

    assert found["(root)"]["dead_neurons(threshold=-2)"] == pytest.approx([1 / 3])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_number_is_made_up_of_what_is_not_finite(watch: Callable[..., Any], bad: float) -> None:
    layer, x = torch.nn.Linear(4, 3), torch.randn(8, 4)
    x[2, 1] = bad
    watched = watch(layer, {"Linear": [*COVARIANCE, "RankMe"]})

    found = watched.step(0, lambda: layer(x))["(root)"]

    assert all(np.isnan(value).all() for value in found.values())
    assert len(found) == 5


def test_channels_of_a_convolution_are_variables(watch: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 2, 4, 4)
    x[:, 1] *= 100
    model = torch.nn.Conv2d(2, 3, 1)
    watched = watch(model, {torch.nn.Conv2d: COVARIANCE})

    found = watched.step(0, lambda: model(x))["(root)"]

    right = CASES["taiyi_conv_cov"]["right"]
    assert found["input_cov_max_eig"][0] == pytest.approx(right["InputCovMaxEig"])
    assert found["input_cov_condition"][0] == pytest.approx(right["InputCovCondition"])


def test_weights_that_all_change_their_sign_are_counted(watch: Callable[..., Any]) -> None:
    layer = linear([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]])
    watched = watch(layer, {"(root)": [["WeightParamJump", "linear(2, 1)"]]})

    def flip() -> None:
        with torch.no_grad():
            layer.weight.neg_()

    found = [watched.step(step, flip) for step in range(4)]

    jumps = [one["(root)"]["weight_sign_changes"].tolist() if one else None for one in found]
    assert jumps == [None, [6.0], None, [6.0]]


def test_batch_statistics_are_set_beside_the_running_ones(watch: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(4, 3, 5, 5) + i for i in range(4)]
    norm = torch.nn.BatchNorm2d(3)
    schedule = "linear(2, 1)"
    watched = watch(norm, {"BatchNorm2d": [["MeanTID", schedule], ["VarTID", schedule]]})

    found = [watched.step(step, lambda x=batch: norm(x)) for step, batch in enumerate(batches)]

    right = CASES["taiyi_tid"]["seed"]
    for step in (1, 3):
        of = found[step]["(root)"]
        assert of["mean_tid"][0] == pytest.approx(right["MeanTID"][str(step)], rel=1e-5)
        assert of["var_tid"][0] == pytest.approx(right["VarTID"][str(step)], rel=1e-5)
    assert [bool(one) for one in found] == [False, True, False, True]


def test_a_batch_norm_of_sequences_has_its_channels_second(watch: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5)
    norm = torch.nn.BatchNorm1d(3, momentum=None)
    watched = watch(norm, {"BatchNorm1d": ["mean_tid", "input_channel_mean"]})

    found = watched.step(0, lambda: norm(x))["(root)"]

    assert found["mean_tid"][0] == pytest.approx(0, abs=1e-6)
    assert found["input_channel_mean"] == pytest.approx(x.double().mean((0, 2)).numpy(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_statistics_of_narrow_inputs_are_not_rounded(
    watch: Callable[..., Any], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = (100 + 300 * torch.randn(64, 3)).to(dtype)
    norm = torch.nn.BatchNorm1d(3, momentum=1.0)
    watched = watch(norm, {"BatchNorm1d": ["mean_tid", "var_tid"]})

    with torch.autocast("cpu", dtype):
        found = watched.step(0, lambda: norm(x))["(root)"]

    assert [found["mean_tid"][0], found["var_tid"][0]] == pytest.approx([0, 0], abs=1e-4)


@pytest.mark.parametrize(
    ("module", "shape", "axis"),
    [
        (torch.nn.InstanceNorm2d(4), (4, 6, 5), 0),
        (torch.nn.MaxPool2d(2), (3, 4, 6, 6), 1),
        (torch.nn.Dropout2d(0.5), (3, 4, 6, 6), 1),
        (torch.nn.PReLU(4), (3, 4, 6, 6), 1),
        (torch.nn.ReLU(), (3, 6, 6, 4), 3),
    ],
)
def test_channels_are_where_a_module_has_them(
    watch: Callable[..., Any], module: torch.nn.Module, shape: tuple[int, ...], axis: int
) -> None:
    x = torch.randn(shape)
    watched = watch(module, {"(root)": "input_channel_mean"})

    found = watched.step(0, lambda: module(x))["(root)"]["input_channel_mean"]

    others = [other for other in range(len(shape)) if other != axis]
    assert found == pytest.approx(x.double().mean(others).numpy(), abs=1e-6)


def test_channels_may_be_said_where_a_module_does_not_tell(watch: Callable[..., Any]) -> None:
    relu = torch.nn.ReLU()
    x = torch.randn(8, 3, 4, 4)
    x[:, 1] = -1.0
    asked = ["input_cov_trace(channels=1)", "dead_neurons(channels=-3)", "rank_me(channels=7)"]
    watched = watch(relu, {"ReLU": asked})

    found = watched.step(0, lambda: relu(x))["(root)"]

    samples = x.movedim(1, 0).reshape(3, -1).double().numpy()
    assert found["input_cov_trace(channels=1)"][0] == pytest.approx(np.trace(np.cov(samples)))
    assert found["dead_neurons(channels=-3)"][0] == pytest.approx(1 / 3)
    [told] = watched.reports
    assert told.endswith("`channels=7` is no axis of a shape [8, 3, 4, 4]")


def test_rank_me_takes_tokens_as_samples(watch: Callable[..., Any]) -> None:
    tokens = torch.randn(8, 128, 1024, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Identity()
    watched = watch(model, {"Identity": "RankMe"})

    found = watched.step(0, lambda: model(tokens))["(root)"]

    right = CASES["taiyi_rankme_3d"]["right"]["on_tokens_1024_x_1024"]
    assert found["rank_me"][0] == pytest.approx(right, rel=1e-6)


def test_steps_are_those_of_the_schedule(watch: Callable[..., Any]) -> None:
    layer = torch.nn.Linear(2, 2)
    watched = watch(layer, {"Linear": [["InputCovTrace", "linear(5, 2)"]]})

    due = [step for step in range(14) if watched.step(step, lambda: layer(torch.randn(3, 2)))]

    assert due == CASES["taiyi_schedule"]["right"]
