"""In which steps a site is sketched, and what the sentinel sees in between."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from rankscope.agent.torch import Schedule
from rankscope.sketch import SettingError, derive
from rankscope.store import open_run

if TYPE_CHECKING:
    from conftest import Observed

Train = Callable[..., list[float]]


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_schedules_are_kept_per_kind(observed: Observed, train: Train) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = sgd(model)
    schedules = {"weight": Schedule(every=3, offset=1), "activation": Schedule(ranges=((2, 3),))}
    with observed.observe(model, optimizer, every=2, schedules=schedules) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)] * 6)
    assert set(observed.means("weight_gradient", "0.weight")) == {0, 2, 4}
    assert set(observed.means("weight", "0.weight")) == {1, 4, 6}
    assert set(observed.means("activation", "0")) == {2, 3}


def test_a_schedule_may_be_a_number_a_text_or_a_function(observed: Observed, train: Train) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = sgd(model)

    def odd_or_wrong(step: int) -> bool:
        return step % 2 == 1 or step // (4 - step) < 0  # fails at 4

    schedules = {
        "weight_gradient": 4,
        "activation": "linear(3, 1)",
        "activation_gradient": odd_or_wrong,
        "optimizer_state": "on_alert",
    }
    with observed.observe(model, optimizer, schedules=schedules) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)] * 6)
    assert set(observed.means("weight_gradient", "0.weight")) == {0, 4}
    assert set(observed.means("activation", "0")) == {1, 4}
    assert set(observed.means("activation_gradient", "0")) == {1, 3, 5}
    assert not any(label.startswith("optimizer_state") for label in observed.labels())


def test_a_logarithmic_schedule_has_as_many_steps_in_each_decade() -> None:
    def due(schedule: Schedule) -> list[int]:
        return [step for step in range(10_001) if schedule.due(step)]

    three = [0, 1, 2, 5, 10, 22, 46, 100, 215, 464, 1000, 2154, 4642, 10_000]
    assert due(Schedule.logarithmic(3)) == due(Schedule.parse("logarithmic(3)")) == three
    assert due(Schedule.logarithmic(1)) == [0, 1, 10, 100, 1000, 10_000]
    ten = [step for step in due(Schedule.parse(" logarithmic ")) if step >= 100]
    assert len([step for step in ten if step < 1000]) == 10


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("linear", Schedule()),
        ("linear()", Schedule()),
        ("linear(10)", Schedule(every=10)),
        ("linear( 10,5 )", Schedule(every=10, offset=5)),
        ("on_alert", Schedule.on_alert()),
    ],
)
def test_schedules_in_words(text: str, same: Schedule) -> None:
    assert Schedule.parse(text) == same


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("linaer(10)", "did you mean linear"),
        ("linear(1, 2, 3)", "is no schedule"),
        ("linear(ten)", "is no schedule"),
        ("linear(0, 0)", "`every` must be a positive number of steps, got 0"),
        ("logarithmic(0)", "`per_decade` must be a positive number, got 0"),
        ("", "did you mean linear or logarithmic or on_alert"),
    ],
)
def test_words_that_are_no_schedule_are_refused(text: str, why: str) -> None:
    with pytest.raises(SettingError, match=re.escape(why)):
        Schedule.parse(text)


def test_staggered_sites_take_turns(observed: Observed, train: Train) -> None:
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(8)])
    optimizer = sgd(model)
    with observed.observe(model, optimizer, every=4, staggered=True) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)] * 8)
    steps = {
        (kind, name): set(observed.means(kind, name)) - {8}  # the last weights are all recorded
        for kind, name in open_run(observed.path).sites()[["kind", "name"]].to_numpy().tolist()
    }
    assert all(len(own) == 2 and max(own) == min(own) + 4 for own in steps.values())
    assert len({min(own) for own in steps.values()}) == 4
    for layer in range(8):
        activations = steps["activation", f"{layer}"]
        assert activations == steps["activation_gradient", f"{layer}"]
        parameter = f"{layer}.weight"
        assert steps["weight", parameter] == steps["weight_gradient", parameter]
    assert len(observed.means("weight", "0.weight")) == 3
    assert observed.steps() == list(range(9))


def test_the_sentinel_finds_the_very_step(observed: Observed, train: Train) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    batches = [torch.ones(3, 2) for _ in range(8)]
    batches[5][1, 0] = torch.inf
    optimizer = sgd(model)
    with observed.observe(model, optimizer, every=4, sentinel=True) as scope:
        train(scope, model, optimizer, batches)
    run = open_run(observed.path)
    found = run.first_bad()
    assert found is not None
    assert (found.site, found.step, found.cause) == ("activation:0", 5, "forward")
    assert observed.steps() == list(range(9))
    largest = run.scalar("abs_max", sites=["activation:0"])
    assert largest["step"].values.tolist() == list(range(9))
    assert np.isfinite(largest.values[:5]).all()
    # What is not sketched has no other numbers, but a step that went wrong is never left out.
    rms = run.scalar("rms", sites=["activation:0"])
    assert rms["step"].values.tolist() == [0, 4, 5, 6, 7, 8]
    assert np.isnan(rms.values[:, 0]).tolist() == [False, False, True, True, True, True]
    assert run.records()["sketched"].tolist()[:8] == [8, 0, 0, 0, 8, 0, 0, 0]


def test_the_sentinel_looks_at_those_whose_turn_it_is_not(observed: Observed, train: Train) -> None:
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)])
    optimizer = sgd(model)
    with observed.observe(model, optimizer, every=3, staggered=True, sentinel=True) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)] * 6)
    run = open_run(observed.path)
    assert run.scalar("abs_max", steps=(0, 5)).notnull().all()
    rms = run.scalar("rms", kind="activation", steps=(0, 5))
    assert rms.notnull().sum("step").values.tolist() == [2] * 5
    for step in range(6):
        for label, sketch in observed.sketches(step).items():
            glanced = bool(np.isnan(derive(sketch, "rms")[0]))
            assert glanced == bool(sketch.is_glance()[0]) == (not sketch.histogram.any()), label


def test_what_the_sentinel_sees_of_micro_batches_merges(observed: Observed) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    with observed.observe(model, every=2, sentinel=True, kinds=["activation"]) as scope:
        for _ in range(2):
            for value in (1.0, -7.0, 3.0):
                model(torch.full((5, 1), value))
            scope.step()
    seen = observed.sketches(1)["activation:(root)"]
    assert derive(seen, "count") == 15
    assert (derive(seen, "min"), derive(seen, "max")) == (-7, 3)
    assert seen.is_glance().all()
    assert derive(observed.sketches(0)["activation:(root)"], "mean") == -1


def test_without_a_sentinel_other_steps_are_not_recorded(observed: Observed, train: Train) -> None:
    model = nn.Sequential(nn.Linear(2, 2))  # on the CPU there is none unless it is asked for
    optimizer = sgd(model)
    with observed.observe(model, optimizer, every=4) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)] * 8)
    assert observed.steps() == [0, 4, 8]


def test_a_site_that_was_left_to_the_sentinel_says_so(observed: Observed, train: Train) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = sgd(model)
    with observed.observe(model, optimizer, every=4, sentinel=True) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)] * 4)
    run = open_run(observed.path)
    with pytest.raises(SettingError, match="left to the sentinel in step 2, which takes no histo"):
        run.formats(site="activation:0", step=2)
    assert run.exponents(sites=["activation:0"])["step"].values.tolist() == [0, 4]
    assert set(run.logframe()["metadata"]["step"]) == {0, 4}


def test_the_budget_is_held_by_stretching_schedules(observed: Observed) -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(40)])
    optimizer = sgd(model)
    began = time.monotonic()
    with observed.observe(model, optimizer, budget=0.02, kinds=["weight", "activation"]) as scope:
        while "stretch" not in scope.health() or scope.health()["stretch"] == 1:
            assert time.monotonic() - began < 30, "nothing was stretched"
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            scope.step()
            optimizer.zero_grad()
            time.sleep(0.02)  # as long as a larger model takes
    run = open_run(observed.path)
    told = run.events().query("kind == 'budget'")
    assert "above the budget" in told["text"].iloc[0] or "the budget is" in told["text"].iloc[0]
    by_step = run.records().set_index("step")["sites"]
    assert by_step.loc[0] == 41 + 80
    last = by_step.loc[int(told["step"].iloc[0])]
    assert 0 < last < 100
    assert run.health().to_dict("list")["stretch", "latest"][0] > 1


@pytest.mark.parametrize("budget", [0.0, -0.1, 1.5])
def test_a_budget_is_a_share(observed: Observed, budget: float) -> None:
    with pytest.raises(SettingError, match=r"must be a share of step time as 0\.01, got"):
        observed.observe(nn.Linear(1, 1), budget=budget)
