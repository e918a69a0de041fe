"""How many elements lie at or above a magnitude: what a histogram of exponents guarantees of that.

All rows of a table at once, each with a threshold of its own: from sums over bins that are made
once, so that many formats and scales can be asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from .table import (
    ABS_MIN,
    BINS,
    FIRST_EXPONENT,
    OVER,
    ZERO,
    Floats,
    Ints,
    SketchTable,
)

_OVER = BINS + 1
"""Place of what lies above all bins; what lies below them is at 0, bin p at p + 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """A number that is known up to guaranteed bounds, for each row of a table."""

    value: Floats
    """float64 [rows]: the estimate, linear within a bin."""
    low: Floats
    """float64 [rows]: the true number is not below."""
    high: Floats
    """float64 [rows]: the true number is not above."""

    @property
    def exact(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """bool [rows]: whether the bounds meet."""
        return self.low == self.high


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """The finite elements of each row that are not zero, by magnitude."""

    least: Ints
    """int64 [BINS + 4, rows]: how many surely are in a bin or above it; none in the last two."""
    most: Ints
    """int64 [BINS + 4, rows]: how many may be; `least` itself where rankscope counted."""
    largest: Floats
    """float64 [rows]: the largest |x|, 0 where there is none, +inf where it is not known."""
    smallest: Floats
    """float64 [rows]: the smallest |x|, +inf where there is none, 0 where it is not known."""
    reached: NDArray[np.bool_]
    """bool [rows]: whether some element has each; else they only are bounds of all."""

    @classmethod
    def of(cls, table: SketchTable) -> Self:
        """That of each row of a table."""
        above = np.zeros((BINS + 4, len(table)), np.int64)
        above[0] = table.measured() - table.counts[:, ZERO]
        above[_OVER] = table.counts[:, OVER]
        above[1:_OVER] = table.histogram.T
        # From the top down; the elements below all bins are the rest.
        np.cumsum(above[_OVER:0:-1], axis=0, out=above[_OVER:0:-1])
        largest, smallest = table.magnitude(), table.moments[:, ABS_MIN]
        tally = cls(above, above, largest, smallest, ~table.is_glance())
        foreign = table.lacks_moments()
        return tally._told_by_others(foreign) if foreign.any() else tally

    def _told_by_others(self, rows: NDArray[np.bool_]) -> Self:
        """The same, where rows lack moments: see `SketchTable.lacks_moments`.

        What is outside the bins of such a row is beyond those that are filled, and no more is
        known of it; and its extremes may be of elements that it does not count.
        """
        above, least, most = self.least, self.least.copy(), self.least.copy()
        over, binned = above[_OVER], above[1]
        most[1:_OVER] += np.where(rows & (above[2 : _OVER + 1] == binned), above[0] - binned, 0)
        least[2 : _OVER + 1] -= np.where(rows & (above[1:_OVER] == over), over, 0)
        # No element is above the highest bin in which one may be.
        place = np.count_nonzero(most[: _OVER + 1], axis=0) - 1
        below = np.nextafter(np.ldexp(1.0, FIRST_EXPONENT + place), 0.0)
        end = np.where(self.total > 0, np.where(place < _OVER, below, np.inf), 0.0)
        none = np.where(self.total > 0, 0.0, np.inf)
        return type(self)(
            least,
            most,
            np.where(rows, np.fmin(self.largest, end), self.largest),
            np.where(rows, np.fmax(self.smallest, none), self.smallest),
            self.reached & ~rows,
        )

    @property
    def total(self) -> Ints:
        """int64 [rows]: how many elements there are."""
        return self.least[0]

    def _changed(self, change: Callable[[Ints], Ints]) -> tuple[Ints, Ints]:
        """Both counts, changed alike; they stay one where they are."""
        least = change(self.least)
        return least, least if self.most is self.least else change(self.most)

    def united(self, group: Ints, groups: int) -> Self:
        """The rows of each group together; of a group without rows there are no elements.

        Args:
            group: int64 [rows]: which group each row is in.
            groups: how many there are.
        """
        largest, smallest = np.zeros(groups), np.full(groups, np.inf)
        reached = np.ones(groups, np.bool_)
        order = np.argsort(group, kind="stable")
        cuts = np.flatnonzero(np.diff(group[order], prepend=-1))
        into = group[order][cuts]

        def united(counts: Ints) -> Ints:
            found = np.zeros((len(counts), groups), np.int64)
            if len(cuts):
                found[:, into] = np.add.reduceat(counts[:, order], cuts, axis=1)
            return found

        if len(cuts):
            largest[into] = np.maximum.reduceat(self.largest[order], cuts)
            smallest[into] = np.minimum.reduceat(self.smallest[order], cuts)
            reached[into] = np.logical_and.reduceat(self.reached[order], cuts)
        return type(self)(*self._changed(united), largest, smallest, reached)

    def merge(self, other: Self) -> Self:
        """Row by row the elements of both."""
        least = self.least + other.least
        is_one = self.most is self.least and other.most is other.least
        return type(self)(
            least,
            least if is_one else self.most + other.most,
            np.maximum(self.largest, other.largest),
            np.minimum(self.smallest, other.smallest),
            self.reached & other.reached,
        )

    def rounded(self, rows: NDArray[np.bool_]) -> Self:
        """The same, where of some rows the extremes were rounded to float32: those are bounds."""
        if not rows.any():
            return self
        with np.errstate(all="ignore"):  # beyond the largest float32 lies infinity
            largest, smallest = (
                np.nextafter(extreme.astype(np.float32), np.float32(end)).astype(np.float64)
                for extreme, end in ((self.largest, np.inf), (self.smallest, 0.0))
            )
        return type(self)(
            self.least,
            self.most,
            np.where(rows & (self.largest > 0), largest, self.largest),
            np.where(rows & (self.total > 0), smallest, self.smallest),
            self.reached & ~rows,
        )

    def take(self, rows: Ints) -> Self:
        """The chosen rows."""
        extremes = self.largest[rows], self.smallest[rows]
        return type(self)(
            *self._changed(lambda counts: counts[:, rows]), *extremes, self.reached[rows]
        )

    def count_from(self, threshold: Floats | float) -> Bounded:
        """float64 [rows]: how many elements have |x| >= threshold, positive, one or one a row."""
        rows = np.arange(len(self.total))
        mantissa, exponent = np.frexp(threshold)
        place = np.clip(exponent - FIRST_EXPONENT, 0, _OVER)
        place = np.where(np.isinf(threshold), _OVER + 1, place)
        inside = (place > 0) & (place < _OVER)
        is_edge = inside & (mantissa == 0.5)
        part = np.where(inside, 2 - 2 * mantissa, 0.0)
        high = self.most[place, rows].astype(np.float64)
        low = self.least[np.where(is_edge, place, place + 1), rows].astype(np.float64)
        begun, beyond = high, low
        if self.most is not self.least:  # the estimate is halfway between what is known
            begun = (high + self.least[place, rows]) / 2
            beyond = (self.most[place + 1, rows] + self.least[place + 1, rows]) / 2
        value = np.where(is_edge, begun, beyond + part * (begun - beyond))
        # The extremes are known to the last bit, and of them more follows than from bins alone.
        total, one = self.total, self.reached.astype(np.int64)
        some, all_of = self.largest >= threshold, self.smallest >= threshold
        low = np.where(all_of, total, np.where(some, np.maximum(low, one), 0))
        high = np.where(some, np.where(all_of, total, np.minimum(high, total - one)), 0)
        return Bounded(np.clip(value, low, high), low, high)

    def share_from(self, threshold: Floats | float) -> Bounded:
        """float64 [rows]: the same as a share of the elements; 0 where there are none."""
        count, total = self.count_from(threshold), np.maximum(self.total, 1)
        return Bounded(count.value / total, count.low / total, count.high / total)

    def share_below(self, threshold: Floats | float) -> Bounded:
        """float64 [rows]: which share has |x| < threshold; 0 where there are no elements."""
        count, total = self.count_from(threshold), self.total
        value, low, high = (total - n for n in (count.value, count.high, count.low))
        some = np.maximum(total, 1)
        return Bounded(value / some, low / some, high / some)
