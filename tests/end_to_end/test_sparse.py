"""Sparse gradients: each rank has those of other rows, and their sums are judged all the same."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from rankscope.sketch import derive
from rankscope.store import Run

from .launching import run_of

JOB = Path(__file__).with_name("sparse_job.py")
RANKS = 3
OWN, REDUCED = (f"{kind}:0.weight[values]" for kind in ("local_weight_gradient", "weight_gradient"))


def job() -> dict[str, Any]:
    return runpy.run_path(str(JOB))


def sum_by_hand(rank: int) -> float:
    """Of one rank's own gradient of the table in the first step."""
    names = job()
    model = names["make_model"]()
    model(names["batch"](0, rank)).square().mean().backward()
    return model[0].weight.grad.to_dense().double().sum().item()


def test_values_are_summed_and_nothing_is_found_where_all_went_well(tmp_path: Path) -> None:
    run = run_of(JOB, RANKS, "sparse", tmp_path)
    sums = [sum_by_hand(rank) for rank in range(RANKS)]
    for site, expected in ((OWN, sum(sums)), (REDUCED, sum(sums) / RANKS)):
        _, table = run.table(0, [site])
        assert float(derive(table, "sum")[0]) == pytest.approx(expected, rel=1e-4), site
    assert run.alerts()["text"].tolist() == []
    assert run.events()["text"].tolist() == []
    assert run.judged()["conservation"] == job()["STEPS"]


def test_a_share_that_is_lost_is_found_in_its_step_and_its_rank_is_named(tmp_path: Path) -> None:
    run: Run = run_of(JOB, RANKS, "lost", tmp_path, "lost")
    [alert] = run.alerts().to_dict("records")
    assert (alert["rule"], alert["site"], alert["ranks"]) == ("conservation", REDUCED, (1,))
    assert alert["first_step"] == alert["last_step"] == job()["FAULTY"]
