"""What can be asked for, and what is refused, in so many words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rankscope.agent.torch import Schedule
from rankscope.agent.torch.names import Names
from rankscope.agent.torch.quantities import (
    Quantities,
    known_aliases,
    known_quantities,
    named,
    quantity,
)
from rankscope.agent.torch.stages import stages_of
from rankscope.sketch import SettingError

SEVENTEEN = [
    "InputSndNorm",
    "OutputGradSndNorm",
    "InputMean",
    "InputStd",
    "WeightNorm",
    "WeightGradNorm",
    "InputCovMaxEig",
    "InputCovStableRank",
    "InputCovCondition",
    "InputCovCondition20",
    "InputCovCondition50",
    "InputCovCondition80",
    "LinearDeadNeuronNum",
    "RankMe",
    "MeanTID",
    "VarTID",
    "WeightParamJump",
]


def asked(config: Any) -> Quantities:
    """What is made of a configuration for a small model."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    return Quantities.of(config, Names(stages_of(model)))


@pytest.mark.parametrize("name", SEVENTEEN)
def test_all_of_taiyis_names_are_known(name: str) -> None:
    made = asked({"Linear": name})

    assert bool(made) or made.kinds


@pytest.mark.parametrize("name", sorted(known_quantities()))
def test_every_quantity_says_what_it_is(name: str) -> None:
    assert len(known_quantities()[name].describe) > 150
    assert not set(known_aliases()) & set(known_quantities())


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"Liner": ["rank_me"]}, r"No module, parameter or class of the model is 'Liner'.*Linear"),
        ({torch.nn.Conv2d: ["rank_me"]}, r"'Conv2d' in `quantities`; it has Linear, ReLU"),
        ({"0": ["rank_mee"]}, r"There is no quantity 'rank_mee'; did you mean rank_me"),
        (
            {"0": ["rank_me(limits=3)"]},
            r"There is no option 'limits' of rank_me; it has channels, limit",
        ),
        ({"0": ["rank_me(limit=True)"]}, r"`limit` of rank_me must be .*, got True"),
        ({"0": ["dead_neurons(channels='a')"]}, r"`channels` of dead_neurons .* axis, got 'a'"),
        ({"0": ["InputMean(x=1)"]}, r"input_mean is told by sketches, and has no options"),
        ({"0.weight": "input_norm"}, r"input_norm is of modules, and '0.weight' is a parameter"),
        ([("0", "rank_me")], r"`quantities` must be lists of quantities by module, as .*; got \["),
        ({"0": ["rank_me(limit=0)"]}, r"`limit` of rank_me must be .* 1 to 4096, got 0"),
        ({"0": ["dead_neurons('x')"]}, r"is no quantity with options"),
        ({"0": ["dead_neurons(threshold='x')"]}, r"`threshold` .* must be a number, got 'x'"),
        ({"0": [["rank_me", "linear(1", 3]]}, r"write a quantity as 'rank_me', or"),
        ({"0": [["rank_me", "linaer(1)"]]}, r"'linaer\(1\)' is no schedule"),
        (
            {"0": ["rank_me", "linear(5)"]},
            r"quantities\['0'\] has 'linear\(5\)', which is a schedule and no quantity; "
            r".* are a list of their own: \[\['rank_me', 'linear\(5\)'\]\]\.",
        ),
        ({"0": "on_alert"}, r"a list of their own: \[\['rank_me', 'on_alert'\]\]"),
        ({"0": [["rank_me", 1.5]]}, r"The schedule of 'rank_me of 0' must be"),
        ({"0": 3}, r"quantities\['0'\] must be a list of quantities, got 3"),
        ({"0.weight": ["rank_me"]}, r"rank_me is of modules, and '0.weight' is a parameter"),
        ("/nowhere.toml", r"cannot be read from /nowhere.toml"),
    ],
)
def test_what_does_not_exist_is_refused(config: Any, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        asked(config)


def test_a_toml_file_says_the_same(tmp_path: Path, watch: Callable[..., Any]) -> None:
    path = tmp_path / "asked.toml"
    path.write_text(
        '[quantities]\nLinear = ["input_cov_trace", ["dead_neurons(threshold=1)", "linear(2, 1)"]]'
    )
    model = torch.nn.Linear(2, 2)
    watched = watch(model, path)

    found = [watched.step(step, lambda: model(torch.randn(4, 2))) for step in range(2)]

    assert [sorted(one["(root)"]) for one in found] == [
        ["input_cov_trace"],
        ["dead_neurons(threshold=1)", "input_cov_trace"],
    ]


def test_a_modules_own_entry_counts_above_that_of_its_class(watch: Callable[..., Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    config = {"0": [["rank_me", Schedule(every=3)]], torch.nn.Linear: ["rank_me"]}
    watched = watch(model, config)

    found = [sorted(watched.step(step, lambda: model(torch.randn(3, 2)))) for step in range(4)]

    assert found == [["0", "1"], ["1"], ["1"], ["0", "1"]]


def test_quantities_with_different_schedules_are_read_off_one_array(
    watch: Callable[..., Any],
) -> None:
    model = torch.nn.Linear(2, 2)
    watched = watch(model, {"Linear": ["input_cov_trace", ["input_cov_spectrum", 2]]})
    watched.quantities.begins(0)
    model(torch.randn(3, 2))

    one, other = watched.quantities.ends(0)

    assert one.values is other.values


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"name": "Spread", "needs": ["input"]}, "lower-case words as input_spread, got 'Spread'"),
        ({"name": "rank_me", "needs": ["input"]}, "There is a quantity 'rank_me' already"),
        ({"name": "one", "needs": ["inputs"]}, "one needs 'inputs', which is none of"),
        ({"name": "one", "needs": []}, "one needs nothing"),
        ({"name": "one", "needs": ["input", "update"]}, "needs update together with tensors"),
        ({"name": "one", "needs": ["input"], "statistic": "largest"}, "no largest of values"),
        ({"name": "one", "needs": ["input"], "merge": "avg"}, "one of mean, sum, .* got 'avg'"),
        ({"name": "one", "needs": ["input"], "form": "cov"}, "one of values, .*, got 'cov'"),
        ({"name": "one", "needs": ["input"], "statistic": "maxeig"}, "largest, .* got 'maxeig'"),
        ({"name": "one", "needs": "input"}, r"must be a list, as \['input'\]"),
        ({"name": "input_norm", "needs": ["input"]}, "'input_norm' already, which sketches tell"),
    ],
)
def test_a_quantity_that_makes_no_sense_is_refused(how: Any, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        quantity(**how)(torch.sum)


def test_a_module_in_two_places_may_go_by_either_name(watch: Callable[..., Any]) -> None:
    layer = torch.nn.Linear(2, 2)
    model = torch.nn.Sequential()
    model.add_module("encoder", layer)
    model.add_module("decoder", layer)
    watched = watch(model, {"decoder": "input_channel_mean"})

    found = watched.step(0, lambda: model(torch.randn(3, 2)))

    assert sorted(found) == ["encoder", "encoder#1"]


def test_options_are_part_of_the_name() -> None:
    assert named("LinearDeadNeuronNum").label == "dead_neurons(threshold=-2)"
    assert named("rank_me(limit=2048)").limit == 2048


def test_what_sketches_tell_is_asked_of_modules_that_there_are(watch: Callable[..., Any]) -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(SettingError, match=r"is 'Linaer' in .*; did you mean Linear"):
        watch(model, {"Linaer": "input_norm"})

    assert watch(model, {"Linear": "gradient_flow"}).quantities.kinds.keys() == {"weight_gradient"}
    assert watch(model, {"weight": "trust_ratio"}).quantities.kinds.keys() == {"weight", "update"}
