"""Several stages of a pipeline on each rank: the store holds what one process would."""

from __future__ import annotations

import runpy
import time
from pathlib import Path

import pytest
from torch import nn

from rankscope.agent.torch import observe
from rankscope.sketch import SettingError
from rankscope.store import Run, open_run

from .launching import run_of
from .one_process import Tensors, as_ranks_see_it, assert_same, one_process

JOB = Path(__file__).with_name("stages_job.py")
USERS = runpy.run_path(str(JOB))
SCHEDULES = list(USERS["SPELLINGS"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """By schedule: the finished run of two ranks."""
    directory = tmp_path_factory.mktemp("runs")
    run_of(JOB, USERS["RANKS"], SCHEDULES[-1], directory)
    deadline = time.monotonic() + 20
    while not all(open_run(directory / name).finished for name in SCHEDULES):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return {name: open_run(directory / name) for name in SCHEDULES}


@pytest.fixture(params=SCHEDULES)
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    """One of them."""
    return runs[request.param]


@pytest.fixture(scope="module")
def expected() -> list[Tensors]:
    """By step: what is to be in the store."""
    model = USERS["make_model"]()

    def train(step: int) -> None:
        data, target = USERS["batch"](step)
        USERS["loss_of"](model(data), target).backward()

    optimizer = USERS["make_optimizer"](model.parameters())
    whole = one_process(model, optimizer, train, USERS["STEPS"])
    # Each micro-batch averages over its own samples, and nothing is reduced between ranks.
    seen = [as_ranks_see_it(one, USERS["MICRO_BATCHES"], gathered=False) for one in whole]
    return [in_stages(one) for one in seen]


def in_stages(tensors: Tensors) -> Tensors:
    """With a root and a trunk for each stage; what they return is what its last module does."""
    seen, last = Tensors(), USERS["STAGES"] - 1
    for label, tensor in tensors.items():
        kind, _, name = label.partition(":")
        if kind.startswith("local_") or name in ("trunk", "(root)"):
            continue
        seen[label] = tensor
        _, _, number = name.partition("trunk.blocks.")
        if kind.startswith("activation") and number.isdecimal():
            seen[f"{kind}:trunk (stage {number})"] = tensor
            if int(number) < last:
                seen[f"{kind}:(stage {number})"] = tensor
        if kind.startswith("activation") and name == "head":
            seen[f"{kind}:(stage {last})"] = tensor
    return seen


def test_every_site_has_the_numbers_of_one_process(run: Run, expected: list[Tensors]) -> None:
    for step, tensors in enumerate(expected):
        labels, merged = run.table(step)
        assert set(labels) == set(tensors)
        for row, label in enumerate(labels):
            numbered = not label.startswith("activation")
            assert_same(merged.take([row]), tensors[label], label, numbered=numbered)


def test_what_each_rank_held_can_be_told(run: Run) -> None:
    for number in range(USERS["STAGES"]):
        for site in (f"activation:(stage {number})", f"weight:trunk.blocks.{number}.0.weight"):
            held = run.ranks("l2", site=site, steps=0).squeeze("step").notnull()
            ranks = [number in USERS["stages_of"](run.name, rank) for rank in range(USERS["RANKS"])]
            assert held.values.tolist() == ranks, site


def test_nothing_is_found_wrong(run: Run) -> None:
    assert run.alerts()["text"].tolist() == []
    assert run.events()["text"].tolist() == []
    assert run.records()["complete"].tolist() == [True] * (USERS["STEPS"] + 1)


def test_stages_that_all_count_from_0_are_refused() -> None:
    stages = [nn.Sequential(nn.Linear(2, 2)) for _ in range(2)]
    with pytest.raises(SettingError, match=r"2 things in these stages are called '0.weight'; name"):
        observe(stages, run="x")
    with pytest.raises(SettingError, match=r"`model` is empty; pass the module that is trained"):
        observe(nn.ModuleList(), run="x")
