"""How many elements lie at or above a magnitude: what a histogram of exponents guarantees of that.

All rows of a table at once, each with a threshold of its own: from sums over bins that are made
once, so that many formats and scales can be asked for.
"""

from __future__ import annotations

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

    above: Ints
    """int64 [BINS + 4, rows]: how many are in a bin or above it; none in the last two."""
    largest: Floats
    """float64 [rows]: the largest |x|, 0 where there is none."""
    smallest: Floats
    """float64 [rows]: the smallest |x|, +inf where there is none."""
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
        return cls(above, table.magnitude(), table.moments[:, ABS_MIN], ~table.is_glance())

    @property
    def total(self) -> Ints:
        """int64 [rows]: how many elements there are."""
        return self.above[0]

    def united(self, group: Ints, groups: int) -> Self:
        """The rows of each group together; of a group without rows there are no elements.

        Args:
            group: int64 [rows]: which group each row is in.
            groups: how many there are.
        """
        above = np.zeros((len(self.above), groups), np.int64)
        largest, smallest = np.zeros(groups), np.full(groups, np.inf)
        reached = np.ones(groups, np.bool_)
        order = np.argsort(group, kind="stable")
        cuts = np.flatnonzero(np.diff(group[order], prepend=-1))
        if len(cuts):
            into = group[order][cuts]
            above[:, into] = np.add.reduceat(self.above[:, order], cuts, axis=1)
            largest[into] = np.maximum.reduceat(self.largest[order], cuts)
            smallest[into] = np.minimum.reduceat(self.smallest[order], cuts)
            reached[into] = np.logical_and.reduceat(self.reached[order], cuts)
        return type(self)(above, largest, smallest, reached)

    def merge(self, other: Self) -> Self:
        """Row by row the elements of both."""
        return type(self)(
            self.above + other.above,
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
            self.above,
            np.where(rows & (self.largest > 0), largest, self.largest),
            np.where(rows & (self.total > 0), smallest, self.smallest),
            self.reached & ~rows,
        )

    def take(self, rows: Ints) -> Self:
        """The chosen rows."""
        return type(self)(
            self.above[:, rows], self.largest[rows], self.smallest[rows], self.reached[rows]
        )

    def count_from(self, threshold: Floats | float) -> Bounded:
        """float64 [rows]: how many elements have |x| >= threshold, positive, one or one a row."""
        rows = np.arange(len(self.total))
        mantissa, exponent = np.frexp(threshold)
        place = np.clip(exponent - FIRST_EXPONENT, 0, _OVER)
        place = np.where(np.isinf(threshold), _OVER + 1, place)
        inside = (place > 0) & (place < _OVER)
        begun = self.above[place, rows]
        beyond = self.above[place + 1, rows]
        is_edge = inside & (mantissa == 0.5)
        part = np.where(inside, 2 - 2 * mantissa, 0.0)
        high = begun.astype(np.float64)
        low = np.where(is_edge, begun, beyond).astype(np.float64)
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
