"""The distribution of a statistic over ranks: how it merges, and what is told from it."""

from __future__ import annotations

from functools import reduce
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankscope.sketch import RankDistribution
from rankscope.sketch.distribution import EXTREMES, LEVELS_PER_OCTAVE, SUMMARY

ROWS = 3
NUMBER = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1.0, 1.001, 2.0, -2.0, float("nan")]),
)
VALUES = st.lists(st.lists(NUMBER, min_size=ROWS, max_size=ROWS), min_size=1, max_size=14)


def of(values: list[list[float]], ranks: list[int]) -> RankDistribution:
    return RankDistribution.of(np.array([values[rank] for rank in ranks], np.float32), ranks)


def told(distribution: RankDistribution) -> dict[str, NDArray[np.float32]]:
    return dict(zip(SUMMARY, distribution.summary().T, strict=True))


@given(VALUES, st.randoms(use_true_random=False))
def test_it_is_the_same_however_ranks_come_together(
    values: list[list[float]], dice: Random
) -> None:
    ranks = list(range(len(values)))
    whole = of(values, ranks)
    dice.shuffle(ranks)
    cuts = sorted(dice.choices(range(1, len(ranks) + 1), k=3))
    pieces = [ranks[a:b] for a, b in zip([0, *cuts], [*cuts, len(ranks)], strict=True) if b > a]
    parts = [of(values, sorted(piece)) for piece in pieces]
    left = reduce(RankDistribution.merge, parts)
    right = reduce(lambda known, part: part.merge(known), parts)
    for merged in (left, right):
        np.testing.assert_array_equal(merged.levels, whole.levels)
        np.testing.assert_array_equal(merged.counts, whole.counts)
        np.testing.assert_array_equal(merged.magnitudes, whole.magnitudes)
        np.testing.assert_array_equal(merged.names, whole.names)
        np.testing.assert_array_equal(merged.summary(), whole.summary())


@given(VALUES)
def test_what_is_told_is_that_of_numpy(values: list[list[float]]) -> None:
    found = told(of(values, list(range(len(values)))))
    for row in range(ROWS):
        numbers = np.abs(np.array(values, np.float32)[:, row])
        ranks = np.flatnonzero(~np.isnan(numbers))
        assert found["ranks"][row] == len(ranks)
        if not len(ranks):
            assert np.isnan(found["median"][row])
            continue
        logs = np.log2(np.clip(numbers[ranks].astype(np.float64), 2.0**-200, 2.0**200))
        step = 1 / LEVELS_PER_OCTAVE
        assert found["median"][row] == pytest.approx(np.median(logs), abs=step)
        away = np.abs(logs - np.median(logs))
        assert found["deviation"][row] == pytest.approx(np.median(away), abs=2 * step)
        rising = sorted(ranks.tolist(), key=lambda rank: (numbers[rank], rank))
        falling = sorted(ranks.tolist(), key=lambda rank: (-numbers[rank], rank))
        for side, order in (("lowest", rising), ("highest", falling)):
            for place in range(EXTREMES):
                name, number = found[f"{side}_rank_{place}"][row], found[f"{side}_{place}"][row]
                if place < len(order):
                    assert (name, number) == (order[place], numbers[order[place]])
                else:
                    assert np.isnan(name)
                    assert np.isnan(number)


def test_a_rank_far_off_does_not_blur_the_others() -> None:
    values = np.linspace(1.0, 1.1, 99, dtype=np.float32)
    found = told(
        RankDistribution.of(np.append(values, 1e30)[:, None].astype(np.float32), range(100))
    )
    assert found["median"][0] == pytest.approx(np.log2(1.05), abs=1 / LEVELS_PER_OCTAVE)
    assert found["deviation"][0] == pytest.approx(np.log2(1.1) / 4, abs=1 / LEVELS_PER_OCTAVE)
    assert (found["highest_rank_0"][0], found["highest_rank_1"][0]) == (99, 98)
