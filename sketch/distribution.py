"""How a statistic is distributed over ranks: a mergeable summary, from which outliers are told.

Ranks are counted by log2 of the statistic's magnitude, and the most extreme ones are kept by name.
Both are functions of the set of ranks alone, whatever the order and the parts in which they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from .table import Floats, Ints, Words

SPREAD = ("min", "max", "argmin", "argmax")
"""The extremes over ranks of a main statistic, and whose they are."""
RANKED = ("rms", "abs_max")
"""The main statistics whose distribution over ranks is kept."""
EXTREMES = 4
"""Ranks that are kept by name on each side: of up to twice as many ranks, all."""
LEVELS_PER_OCTAVE = 64
"""Magnitudes that differ by less than 1.1 % count as equal in the median and in the deviation."""
SIDE_BY_SIDE = 64
"""Of so many ranks, if all have a number, the medians are found in a table of them all."""
SMALLEST = 2.0**-200
"""Stands for 0, of which there is no logarithm, and for what is smaller."""
LARGEST = 2.0**200
"""Stands for what is larger."""

SUMMARY = (
    "ranks",
    "median",
    "deviation",
    *(f"lowest_{place}" for place in range(EXTREMES)),
    *(f"highest_{place}" for place in range(EXTREMES)),
    *(f"lowest_rank_{place}" for place in range(EXTREMES)),
    *(f"highest_rank_{place}" for place in range(EXTREMES)),
)
"""Columns of `RankDistribution.summary`: how many ranks there are, the median over them of log2 of
the magnitude and the median absolute deviation from it, the most extreme magnitudes, and whose
they are."""
RANKS, MEDIAN, DEVIATION = range(3)
MAGNITUDES = slice(3, 3 + 2 * EXTREMES)
NAMES = slice(3 + 2 * EXTREMES, 3 + 4 * EXTREMES)

_HALF = 200 * LEVELS_PER_OCTAVE
_SPAN = 2 * _HALF + 1
"""How many levels there are."""
_SIDES = np.array([0, 0xFFFF_FFFF], np.uint32)[None, :, None]
"""What turns the bits of each side's magnitudes into numbers of which the smallest are kept."""
_NOBODY = np.iinfo(np.int32).max
_BITS = np.uint64(0xFFFF_FFFF << 32)
"""The part of a key that is of the magnitude."""
_LAST = np.uint64(0xFFFF_FFFF << 32 | _NOBODY)
"""Comes after all that somebody has."""


def log2_magnitude(values: NDArray[np.floating]) -> Floats:
    """float64: log2 of magnitudes, between those of `SMALLEST` and `LARGEST`; NaN stays."""
    return np.log2(np.clip(np.abs(values.astype(np.float64)), SMALLEST, LARGEST))


@dataclass(frozen=True, slots=True, eq=False)
class RankDistribution:
    """Of `rows` numbers, each of several ranks. Where a rank's number is NaN it does not count."""

    rows: int
    levels: Ints
    """int64 [levels]: row x number of levels + level, increasing."""
    counts: Ints
    """int64 [levels]: how many ranks are at each."""
    magnitudes: NDArray[np.float32]
    """float32 [rows, 2, EXTREMES]: the smallest, ascending, and the largest, descending."""
    names: NDArray[np.int32]
    """int32 [rows, 2, EXTREMES]: whose they are; of equal ones the lower rank comes first."""

    @classmethod
    def of(cls, values: NDArray[np.float32], ranks: Sequence[int]) -> Self:
        """The distribution of float32 [ranks, rows]."""
        own = np.ascontiguousarray(np.abs(values.T))
        known = ~np.isnan(own)
        level = np.rint(log2_magnitude(own[known]) * LEVELS_PER_OCTAVE).astype(np.int64) + _HALF
        level += np.repeat(np.arange(len(own)) * _SPAN, np.count_nonzero(known, axis=1))
        level.sort()
        first = _first_of_each(level)
        counts = np.diff(np.append(first, len(level)))
        lowest = _keys(own, np.asarray(ranks, np.int32))
        highest = np.where(known, lowest ^ _BITS, _LAST)
        return cls(
            len(own), level[first], counts, *_most_extreme(np.stack([lowest, highest], axis=1))
        )

    def merge(self, other: Self) -> Self:
        """The distribution over the ranks of both, which have none in common."""
        return type(self)(
            self.rows,
            *_counted(
                np.concatenate([self.levels, other.levels]),
                np.concatenate([self.counts, other.counts]),
            ),
            *_most_extreme(np.concatenate([self._keys(), other._keys()], axis=2)),
        )

    def at(self, rows: int, places: NDArray[np.intp]) -> Self:
        """The same numbers among `rows`, of which they are those at `places`, all different."""
        row, level = np.divmod(self.levels, _SPAN)
        levels = places[row] * _SPAN + level
        order = np.argsort(levels)
        magnitudes = np.full((rows, 2, EXTREMES), np.nan, np.float32)
        names = np.full((rows, 2, EXTREMES), _NOBODY, np.int32)
        magnitudes[places], names[places] = self.magnitudes, self.names
        return type(self)(rows, levels[order], self.counts[order], magnitudes, names)

    def is_sound(self) -> bool:
        """Whether it can be one: for what comes from outside."""
        levels, counts = self.levels, self.counts
        if not len(levels):
            return True
        ordered = bool((levels[1:] > levels[:-1]).all())
        inside = int(levels[0]) >= 0 and int(levels[-1]) < self.rows * _SPAN
        return ordered and inside and int(counts.min()) > 0 and int(counts.max()) < _NOBODY

    def summary(self) -> NDArray[np.float32]:
        """float32 [rows, len(SUMMARY)]; NaN where there is no rank to tell of."""
        row = self.levels // _SPAN
        level = self.levels - row * _SPAN - _HALF
        ranks = np.bincount(row, self.counts, self.rows).astype(np.int64)
        every = int(ranks.max(initial=0))
        if 0 < every <= SIDE_BY_SIDE and (ranks == every).all():
            middle, deviation = _side_by_side(
                np.repeat(level, self.counts).reshape(self.rows, every)
            )
        else:
            middle = weighted_medians(row, level, self.counts, self.rows)
            away = np.abs(2 * level - 2 * middle[row]).astype(np.int64)
            order = np.argsort(row * (4 * _SPAN) + away)
            deviation = weighted_medians(row, away[order] / 2, self.counts[order], self.rows)
        found = np.empty((self.rows, len(SUMMARY)), np.float32)
        found[:, RANKS] = ranks
        found[:, MEDIAN] = middle / LEVELS_PER_OCTAVE
        found[:, DEVIATION] = deviation / LEVELS_PER_OCTAVE
        found[:, MAGNITUDES] = self.magnitudes.reshape(self.rows, 2 * EXTREMES)
        names = self.names.reshape(self.rows, 2 * EXTREMES)
        found[:, NAMES] = np.where(names == _NOBODY, np.nan, names)
        return found

    def _keys(self) -> Words:
        """uint64 [rows, 2, EXTREMES]: what the most extreme are found by, see `_keys`."""
        keys = _keys(self.magnitudes, self.names)
        keys[:, 1] ^= np.where(keys[:, 1] == _LAST, np.uint64(0), _BITS)
        return keys


def weighted_medians(row: Ints, values: NDArray[np.number], weights: Ints, rows: int) -> Floats:
    """float64 [rows]: the median of each row's values, NaN where it has none.

    Args:
        row: int64 [values], increasing.
        values: increasing within each row.
        weights: int64 [values]: how often each counts.
    """
    total = np.bincount(row, weights, rows).astype(np.int64)
    begin, end = np.cumsum(total) - total, np.cumsum(weights)
    medians = np.full(rows, np.nan)
    some = total > 0
    low, high = (
        values[np.searchsorted(end, (begin + middle)[some], side="right")]
        for middle in ((total - 1) // 2, total // 2)
    )
    medians[some] = (low + high) / 2
    return medians


def _side_by_side(values: Ints) -> tuple[Floats, Floats]:
    """float64 [rows] each: the median of [rows, values], increasing, and their deviation from it.

    The same as by `weighted_medians`, where all rows have as many.
    """
    low, high = (values.shape[1] - 1) // 2, values.shape[1] // 2
    twice = values[:, low] + values[:, high]
    away = np.abs(2 * values - twice[:, None])
    away.sort(axis=1)
    return twice / 2, (away[:, low] + away[:, high]) / 4


def _counted(levels: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Each level once, increasing, and its count."""
    order = np.argsort(levels)
    levels = levels[order]
    first = _first_of_each(levels)
    return levels[first], np.add.reduceat(counts[order], first) if len(first) else counts


def _first_of_each(levels: Ints) -> NDArray[np.intp]:
    """Where each level begins, of increasing ones."""
    return np.flatnonzero(np.append(True, levels[1:] != levels[:-1])[: len(levels)])


def _keys(magnitudes: NDArray[np.float32], names: NDArray[np.int32]) -> Words:
    """uint64: magnitude and name as one number, which is the smaller the earlier it comes.

    Of floats that are not negative the bits are in their order; with these turned the largest
    comes first.
    """
    bits = np.ascontiguousarray(magnitudes).view(np.uint32).astype(np.uint64)
    keys = bits << np.uint64(32) | names.astype(np.uint32)
    return np.where(np.isnan(magnitudes), _LAST, keys)


def _most_extreme(keys: Words) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Of [rows, 2, any] the `EXTREMES` that come first on each side; NaN and nobody where none."""
    lacking = EXTREMES - keys.shape[2]
    if lacking > 0:
        keys = np.concatenate([keys, np.full((*keys.shape[:2], lacking), _LAST)], axis=2)
    keys.sort(axis=2)
    first = keys[..., :EXTREMES]
    whose = first.astype(np.uint32).view(np.int32)
    found = ((first >> np.uint64(32)).astype(np.uint32) ^ _SIDES).view(np.float32)
    found[whose == _NOBODY] = np.nan
    return found, whose
