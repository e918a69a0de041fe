"""Bounds of what sketches tell: judged where nothing was derived, at the sites of their kind."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from rankscope.rules import RuleBook
from rankscope.rules.bounds import Bound, Side
from rankscope.store import Alert, SiteInfo

from .conftest import Job

WEIGHT = SiteInfo(kind="weight", name="blocks.0.up.weight")
HEAD = SiteInfo(kind="weight", name="head.weight")
OUTPUT = SiteInfo(kind="activation", name="blocks.0.up", slot="1", occurrence=2)
SITES = WEIGHT, HEAD, OUTPUT


def job_of(quantity: str, side: Side, value: float, of: str = "", records: int = 1) -> Job:
    bound = Bound(quantity=quantity, side=side, value=value, of=re.compile(of), records=records)
    return Job(SITES, book=RuleBook(rules=(), bounds=(bound,)))


def told(job: Job, *norms: float, **facts: bool) -> list[Alert]:
    """What is told of one more record, in which all sites have a tensor of that norm."""
    job.record(*(np.array([one, 0.0]) for one in norms), training=None, **facts)
    return job.watch.judge_quantities(job.kept[-1], [], SITES)


def test_a_norm_above_its_bound_is_told_at_its_site_until_it_is_back() -> None:
    job = job_of("weight_norm", "above", 5.0, records=2)

    assert told(job, 6, 1, 9) == []
    [begun] = told(job, 7, 1, 9)
    assert (begun.rule, begun.severity) == ("weight_norm above", "warning")
    assert (begun.site, begun.first_step, begun.last_step) == ("weight:blocks.0.up.weight", 0, None)
    assert (begun.value, begun.threshold) == (7, 5)
    assert begun.text == "weight_norm of blocks.0.up.weight is 7, above 5."
    assert told(job, 8, 1, 9) == []
    assert told(job, 5, 1, 9) == [replace(begun, last_step=2)]
    assert job.watch.judged == {"weight_norm above": 4}


def test_a_bound_is_of_the_sites_of_its_kind_whose_name_matches() -> None:
    below = job_of("weight_norm", "below", 2.0, of="head")
    [alert] = told(below, 1, 1.5, 1)
    assert (alert.site, alert.value, alert.threshold) == ("weight:head.weight", 1.5, 2)
    assert alert.text == "weight_norm of head.weight is 1.5, below 2."

    [alert] = told(job_of("output_norm", "above", 2.0), 9, 9, 3)
    assert alert.site == "activation:blocks.0.up[1]#2"
    assert alert.text == "output_norm of blocks.0.up[1]#2 is 3, above 2."


def test_a_bound_of_what_a_run_does_not_observe_judges_nothing() -> None:
    job = job_of("update_norm", "below", 1e9)

    assert told(job, 1, 1, 1) == []
    assert job.watch.judged == {}


@pytest.mark.parametrize("quantity", ["weight_norm", "gradient_flow"])
def test_what_is_not_known_is_beyond_no_bound(quantity: str) -> None:
    sites = [replace(WEIGHT, kind=kind) for kind in ("weight", "weight_gradient")]
    bound = Bound(quantity=quantity, side="below", value=1e9)
    job = Job(sites, book=RuleBook(rules=(), bounds=(bound,)))
    job.record(np.array([np.nan]), np.array([np.nan]))

    assert job.watch.judge_quantities(job.kept[-1], [], sites) == []


def test_a_step_that_had_not_ended_is_not_judged() -> None:
    job = job_of("weight_norm", "above", 5.0)

    assert told(job, 6, 6, 6, partial=True) == []
    assert len(told(job, 6, 6, 6)) == 2


def test_a_record_that_a_late_rank_has_patched_is_no_second_one() -> None:
    job = job_of("weight_norm", "above", 5.0, of="head", records=2)
    told(job, 6, 6, 6)

    assert job.watch.judge_quantities(job.kept[0], [], SITES) == []
    assert len(told(job, 6, 6, 6)) == 1


def test_a_step_that_was_kept_back_ends_nothing() -> None:
    job = job_of("weight_norm", "above", 5.0, of="head")
    [begun] = told(job, 6, 6, 6)

    assert told(job, 1, 1, 1, kept=True) == []
    assert told(job, 1, 1, 1) == [replace(begun, last_step=0)]
