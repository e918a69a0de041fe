"""Statistics that follow from a sketch: the one place where they are defined.

Each takes the `Columns` of a table and gives float64 [rows]. They describe the finite elements;
where a statistic is undefined (no element, no spread) it is NaN. Rules, store and viewer all read
these.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .errors import SettingError
from .table import (
    ABS_MIN,
    COUNT,
    L1,
    M2,
    M3,
    M4,
    MAX,
    MIN,
    NAN,
    NEG_INF,
    NEGATIVE,
    POS_INF,
    S8,
    SUBNORMAL,
    SUM,
    UNBINNED,
    UNSEEN,
    ZERO,
    Floats,
    SketchTable,
    magnitude,
    scale_exponent,
    side_by_side,
)


def derive(table: SketchTable, statistic: str) -> Floats:
    """float64 [rows]: the statistic of that name, see `STATISTICS`.

    Raises:
        SettingError: there is no such statistic; the message lists near names.
    """
    check_statistic(statistic)
    with np.errstate(all="ignore"):
        return STATISTICS[statistic](Columns(table))


def check_statistic(statistic: str) -> None:
    """Raise a SettingError that lists near names unless there is such a statistic."""
    if statistic not in STATISTICS:
        near = get_close_matches(statistic, STATISTICS, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(STATISTICS)}."
        raise SettingError(f"There is no statistic {statistic!r}; {hint}")


class Columns:
    """The columns of a table, float64 [rows] each, and what several statistics are made of."""

    def __init__(self, table: SketchTable) -> None:
        self._table = table
        self._moments = side_by_side(table.moments)

    def count(self, column: int) -> Floats:
        """A count, by its place in `COUNTS`; exact up to 2^53."""
        return self._table.counts[:, column].astype(np.float64)

    def moment(self, column: int) -> Floats:
        """A moment, by its place in `MOMENTS`."""
        return self._moments[column]

    @cached_property
    def finite(self) -> Floats:
        """n: how many elements are finite; NaN where some of them were left to the sentinel."""
        whole = self._table.counts[:, UNBINNED] == 0
        return np.where(whole, self._table.finite(), np.nan)

    @cached_property
    def divisor(self) -> Floats:
        """n, or NaN where it is 0: the mean over no element is undefined."""
        return np.where(self.finite > 0, self.finite, np.nan)

    @cached_property
    def centre(self) -> Floats:
        """The mean, 0 where there is no element."""
        return self.moment(SUM) / np.maximum(self.finite, 1.0)

    @cached_property
    def squares(self) -> Floats:
        """Σx², from the central moment: both terms are positive, nothing cancels."""
        return self.moment(M2) + self.moment(SUM) * self.centre

    @cached_property
    def whole(self) -> Floats:
        """How many times as many elements there are as the sums are over: 1 unless of a sample.

        NaN where there are elements and the sums are over none of them, or not over all.
        """
        seen = self.count(COUNT)
        every = seen + self.count(UNSEEN)
        known = (self.finite > 0) | (every == 0)
        return np.where(known, np.maximum(every, 1.0) / np.maximum(seen, 1.0), np.nan)

    @cached_property
    def magnitude(self) -> Floats:
        """The largest finite |x|, 0 where there is no element."""
        return magnitude(self._moments)


def mean(columns: Columns) -> Floats:
    """Σx / n."""
    return columns.moment(SUM) / columns.divisor


def mean_abs(columns: Columns) -> Floats:
    """Σ|x| / n."""
    return columns.moment(L1) / columns.divisor


def var(columns: Columns) -> Floats:
    """Variance, unbiased (n - 1); NaN where n <= 1."""
    freedom = columns.finite - 1.0
    return np.where(freedom > 0, columns.moment(M2) / freedom, np.nan)


def std(columns: Columns) -> Floats:
    """Square root of `var`."""
    return np.sqrt(var(columns))


def l1(columns: Columns) -> Floats:
    """Σ|x|; estimated from a sample."""
    return columns.moment(L1) * columns.whole


def total(columns: Columns) -> Floats:
    """Σx; estimated from a sample."""
    return columns.moment(SUM) * columns.whole


def l2(columns: Columns) -> Floats:
    """Euclidean norm; 0 of an empty tensor; estimated from a sample."""
    return np.sqrt(columns.squares * columns.whole)


def rms(columns: Columns) -> Floats:
    """sqrt(Σx² / n)."""
    return np.sqrt(columns.squares / columns.divisor)


def rm4(columns: Columns) -> Floats:
    """(Σx⁴ / n)^(1/4), from the central moments about the mean."""
    centre = columns.centre
    square = centre * centre
    fourth = (
        columns.moment(M4)
        + 4 * centre * columns.moment(M3)
        + 6 * square * columns.moment(M2)
        + columns.finite * square * square
    )
    return np.sqrt(np.sqrt(np.maximum(fourth / columns.divisor, 0.0)))


def rm8(columns: Columns) -> Floats:
    """(Σx⁸ / n)^(1/8), from the scaled eighth moment."""
    root = np.sqrt(np.sqrt(np.sqrt(columns.moment(S8) / columns.divisor)))
    # Where all are zero, the exponent of their magnitude says nothing; the root is 0 all the same.
    return np.ldexp(root, scale_exponent(columns.magnitude))


def skewness(columns: Columns) -> Floats:
    """Biased skewness, scipy's default; NaN where the variance is 0."""
    m2 = np.where(columns.moment(M2) > 0, columns.moment(M2), np.nan)
    return np.sqrt(columns.finite) * columns.moment(M3) / (m2 * np.sqrt(m2))


def kurtosis(columns: Columns) -> Floats:
    """Biased excess kurtosis (Fisher), scipy's default; NaN where the variance is 0."""
    m2 = np.where(columns.moment(M2) > 0, columns.moment(M2), np.nan)
    return columns.finite * columns.moment(M4) / (m2 * m2) - 3


def abs_max(columns: Columns) -> Floats:
    """Largest finite |x|."""
    return np.where(np.isfinite(columns.moment(MAX)), columns.magnitude, np.nan)


def abs_min(columns: Columns) -> Floats:
    """Smallest non-zero |x|; a sentinel does not look for it."""
    value = columns.moment(ABS_MIN)
    return np.where(np.isfinite(value) & ~np.isnan(columns.finite), value, np.nan)


def nonfinite(columns: Columns) -> Floats:
    """How many elements are NaN or infinite."""
    return columns.count(NAN) + columns.count(POS_INF) + columns.count(NEG_INF)


def seen_share(columns: Columns) -> Floats:
    """Which part of the elements was looked at: below 1 of a sample, whose extremes are bounds."""
    seen = columns.count(COUNT)
    every = seen + columns.count(UNSEEN)
    return np.where(every > 0, seen / every, np.nan)


def _share(column: int) -> Callable[[Columns], Floats]:
    def share(columns: Columns) -> Floats:
        count = columns.count(column)
        return np.where(count >= 0, count, np.nan) / columns.divisor

    return share


def _count(column: int) -> Callable[[Columns], Floats]:
    return lambda columns: columns.count(column)


def _extreme(column: int) -> Callable[[Columns], Floats]:
    def extreme(columns: Columns) -> Floats:
        value = columns.moment(column)
        known = np.isfinite(value) & ~np.isnan(columns.moment(MIN))  # else of |x|, if at all
        return np.where(known, value, np.nan)

    return extreme


STATISTICS: dict[str, Callable[[Columns], Floats]] = {
    "rms": rms,
    "mean": mean,
    "std": std,
    "abs_max": abs_max,
    "abs_min": abs_min,
    "mean_abs": mean_abs,
    "min": _extreme(MIN),
    "max": _extreme(MAX),
    "l1": l1,
    "l2": l2,
    "rm4": rm4,
    "rm8": rm8,
    "skewness": skewness,
    "kurtosis": kurtosis,
    "nonfinite": nonfinite,
    "nan": _count(NAN),
    "pos_inf": _count(POS_INF),
    "neg_inf": _count(NEG_INF),
    "count": _count(COUNT),
    "sum": total,
    "var": var,
    "zero_share": _share(ZERO),
    "negative_share": _share(NEGATIVE),
    "subnormal_share": _share(SUBNORMAL),
    "seen_share": seen_share,
}
"""Every named statistic. `abs_max` and `abs_min` are of |x|, the latter of the smallest that is not
zero. Shares are of the finite elements, between 0 and 1; `seen_share` is of all."""

DEGREE = {
    **dict.fromkeys(("rms", "mean", "std", "abs_max", "abs_min", "mean_abs", "min", "max"), 1),
    **dict.fromkeys(("l1", "l2", "rm4", "rm8", "sum"), 1),
    "var": 2,
}
"""With which power of a factor a statistic grows when the tensor is multiplied by it; else 0."""

SENTINEL = ("abs_max", "min", "max", "nonfinite", "nan", "pos_inf", "neg_inf", "count")
"""What a sentinel sees, too: these are known at every step, the others where a site is sketched."""

MAIN = (
    "rms",
    "mean",
    "std",
    "abs_max",
    "abs_min",
    "mean_abs",
    "min",
    "max",
    "l2",
    "rm4",
    "rm8",
    "skewness",
    "kurtosis",
    "nonfinite",
    "zero_share",
    "subnormal_share",
)
"""What the store also keeps as float32, per record, site and rank, for fast reading."""


def main_statistics(table: SketchTable) -> Floats:
    """float64 [rows, len(MAIN)]: the main statistics, in their order."""
    found = np.empty((len(MAIN), len(table)))
    _fill_main(table, found)
    return found.T


def narrow_statistics(table: SketchTable) -> NDArray[np.float32]:
    """float32 [rows, len(MAIN)]: the same; what lies beyond float32 is infinite."""
    found = np.empty((len(MAIN), len(table)), np.float32)
    _fill_main(table, found)
    return found.T


def _fill_main(table: SketchTable, into: NDArray[np.floating]) -> None:
    """Fill [len(MAIN), rows]; of float64 there is never more than one statistic of all rows."""
    columns = Columns(table)
    with np.errstate(all="ignore"):
        for place, name in enumerate(MAIN):
            into[place] = STATISTICS[name](columns)


class Statistics:
    """The statistics of a table that does not change any more, each derived once.

    What it gives is shared by all who ask, and cannot be written to.
    """

    def __init__(self, table: SketchTable, told: NDArray[np.float32]) -> None:
        """Of a table.

        Args:
            table: the sketches.
            told: float32 [rows, len(MAIN)], which count where moments are lacking; or no rows.
        """
        self._table, self._told = table, told
        self._columns: Columns | None = None
        self._known: dict[str, Floats] = {}

    def __getitem__(self, statistic: str) -> Floats:
        """float64 [rows]: the statistic of that name, see `STATISTICS`.

        Raises:
            SettingError: there is no such statistic; the message lists near names.
        """
        known = self._known.get(statistic)
        if known is None:
            check_statistic(statistic)
            columns = self._columns = self._columns or Columns(self._table)
            with np.errstate(all="ignore"):
                known = STATISTICS[statistic](columns)
            if len(self._told) and statistic in MAIN:
                told = self._told[:, MAIN.index(statistic)]
                known = np.where(self._table.lacks_moments(), told, known)
            known.flags.writeable = False
            self._known[statistic] = known
        return known

    def main(self) -> Floats:
        """float64 [rows, len(MAIN)]: the main statistics, in their order."""
        return np.stack([self[name] for name in MAIN]).T
