"""Losses are told in few gaps, and none is forgotten."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rankscope.wire.gaps import joined
from rankscope.wire.messages import MAX_GAPS, Gap

STEPS = st.lists(st.integers(0, 60), max_size=60, unique=True).map(sorted)


def gaps_of(steps: list[int], cause: str = "overflow") -> list[Gap]:
    return [Gap(first_step=step, last_step=step, frames=1, cause=cause) for step in steps]


@given(STEPS)
def test_gaps_hold_the_steps_that_were_lost_and_no_others(steps: list[int]) -> None:
    told = joined(gaps_of(steps))
    held = [step for gap in told for step in range(gap.first_step, gap.last_step + 1)]

    assert held == steps
    assert sum(gap.frames for gap in told) == len(steps)
    assert all(one.last_step + 1 < two.first_step for one, two in itertools.pairwise(told))


@given(STEPS)
def test_what_thinning_left_out_is_one_gap(steps: list[int]) -> None:
    told = joined(gaps_of(steps), thinned=True)

    assert len(told) == bool(steps)
    assert sum(gap.frames for gap in told) == len(steps)


def test_causes_stay_apart_until_there_are_too_many() -> None:
    one, two = gaps_of([1, 2]), gaps_of([3], "signal")
    many = [gap for step in range(2 * MAX_GAPS) for gap in gaps_of([step], f"cause {step % 2}")]

    assert [(gap.first_step, gap.last_step, gap.cause) for gap in joined([*one, *two])] == [
        (1, 2, "overflow"),
        (3, 3, "signal"),
    ]
    assert len(joined(many)) == MAX_GAPS
    assert sum(gap.frames for gap in joined(many)) == len(many)
