"""The stretch of schedules follows what ranks say of their cost; ranks here are a few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from rankscope.collector.budget import Budget, Change

STEP_S = 0.1


class Job:
    """Ranks whose agents take `cost(stretch)` seconds a step beside `STEP_S` of training."""

    def __init__(self, cost: Callable[[int], float], share: float = 0.01, ranks: int = 3) -> None:
        self.budget, self.cost, self.ranks = Budget(share), cost, range(ranks)
        self.step = 0
        self.stretch = 1
        self.hook_s = self.wall_s = 0.0
        self.changes: list[Change] = []

    def train(self, seconds: float) -> None:
        """Steps of all ranks, each of which hears at once what is decided."""
        end = self.wall_s + seconds
        while self.wall_s < end:
            control = self.budget.control
            if control is not None and self.step >= control.from_step:
                self.stretch = control.stretch
            spent = self.cost(self.stretch)
            self.hook_s += spent
            self.wall_s += STEP_S + spent
            for rank in self.ranks:
                self.budget.hear(rank, self.step, self.health(rank))
            self.step += 1
            change = self.budget.decide(self.ranks)
            if change is not None:
                self.changes.append(change)

    def health(self, rank: int) -> dict[str, float]:
        hook_s = self.hook_s if rank == 1 else self.hook_s / 2  # rank 1 takes longest
        return {"hook_seconds": hook_s, "wall_seconds": self.wall_s, "stretch": self.stretch}

    def share(self) -> float:
        return self.cost(self.stretch) / STEP_S


def test_a_job_within_its_budget_is_left_alone() -> None:
    job = Job(lambda _: 0.0005)
    job.train(120)
    assert job.changes == []
    assert job.budget.control is None


def test_schedules_are_stretched_until_the_share_fits_and_then_stay() -> None:
    job = Job(lambda stretch: 0.0003 + 0.008 / stretch)
    job.train(60)
    settled = len(job.changes)
    assert job.share() <= 0.01
    assert 2 <= settled <= 4
    assert all(change.rank == 1 for change in job.changes)
    assert "The agent added 8.3" in job.changes[0].text
    assert "to the step time of rank 1; the budget" in job.changes[0].text
    assert f"sketched {job.stretch} times as rarely as asked for" in job.changes[-1].text
    job.train(600)
    assert len(job.changes) == settled


def test_all_ranks_hear_of_a_change_before_it_begins() -> None:
    job = Job(lambda stretch: 0.02 / stretch)
    job.train(10)
    first = job.changes[0]
    assert first.step * (STEP_S + 0.02) >= 3.0 + 2.0  # a window, and two seconds


def test_schedules_are_tightened_when_steps_take_longer() -> None:
    slow = False
    job = Job(lambda stretch: 0.0001 if slow else 0.04 / stretch)
    job.train(60)
    stretched = job.stretch
    slow = True
    job.train(600)
    assert stretched > 40
    assert job.stretch == 1
    assert "as often as asked for" in job.changes[-1].text


def test_what_stretching_cannot_help_is_told_once_and_left_at_that() -> None:
    job = Job(lambda stretch: 0.005 + 0.002 / stretch)
    job.train(300)
    assert "of no use" in job.changes[-1].text
    assert sum("of no use" in change.text for change in job.changes) == 1
    assert job.stretch <= 256


def test_a_collector_that_was_started_again_goes_on_where_it_was() -> None:
    job = Job(lambda stretch: 0.0003 + 0.008 / stretch)
    job.train(60)
    stretch, changes = job.stretch, len(job.changes)
    job.budget = Budget(0.01)
    job.train(60)
    assert (job.stretch, len(job.changes)) == (stretch, changes)


def test_a_rank_that_was_started_again_does_not_stop_the_others() -> None:
    job = Job(lambda stretch: 0.0005)
    job.train(30)
    job.hook_s = job.wall_s = 0.0
    job.cost = lambda stretch: 0.008 / stretch
    job.train(30)
    assert job.share() <= 0.01


def test_a_sentinel_that_costs_most_is_stretched_in_the_end() -> None:
    job = Job(lambda stretch: 0.0005 / stretch + 0.005 / max(1, stretch // 16))
    job.train(200)
    assert job.share() <= 0.01
    assert not any("of no use" in change.text for change in job.changes)


def test_ranks_that_go_on_unlike_each_other_are_brought_together() -> None:
    budget, step = Budget(0.01), 500
    for _ in range(3):  # an earlier collector told rank 1 alone
        step += 1
        for rank, stretch in ((0, 4.0), (1, 8.0)):
            budget.hear(rank, step, {"hook_seconds": 0, "wall_seconds": step, "stretch": stretch})
    assert budget.control is not None
    assert budget.control.stretch == 4
    assert budget.control.from_step > 501


def test_a_rank_that_tells_nothing_does_not_stop_the_others() -> None:
    job = Job(lambda stretch: 0.02 / stretch)
    job.ranks = range(2)
    everyone = job.budget.decide
    job.budget.decide = lambda ranks: everyone([*ranks, 7])  # type: ignore[method-assign]
    job.train(30)
    assert job.share() <= 0.01


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -5.0, 1.5, 1e300, 1e308])
@pytest.mark.parametrize("name", ["hook_seconds", "wall_seconds", "stretch"])
def test_nonsense_from_the_network_changes_nothing(name: str, bad: float) -> None:
    job = Job(lambda _: 0.0005)
    for step in (*range(200), 2**63 - 2, -(2**63)):
        job.hook_s, job.wall_s = step * 0.0005, step * 0.1
        job.budget.hear(0, step, {**job.health(0), name: bad})
        job.budget.hear(0, step, {})
        assert job.budget.decide([0]) is None


def test_no_cost_is_too_large_to_be_answered() -> None:
    budget = Budget(1e-4)
    for step in range(12):
        health = {"hook_seconds": step * 9e7, "wall_seconds": step * 9e7, "stretch": 1.0}
        budget.hear(0, step, health)
    assert budget.decide([0]) is not None
    assert budget.control is not None
    assert budget.control.stretch == 4
