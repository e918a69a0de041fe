"""Statistics that follow from a sketch: the one place where they are defined.

Each takes a `SketchTable` and gives float64 [rows]. They describe the finite elements; where a
statistic is undefined (no element, no spread) it is NaN. Rules, store and viewer all read these.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

import numpy as np

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
    ZERO,
    Floats,
    SketchTable,
    scale_exponent,
)


def derive(table: SketchTable, statistic: str) -> Floats:
    """float64 [rows]: the statistic of that name, see `STATISTICS`.

    Raises:
        SettingError: there is no such statistic; the message lists near names.
    """
    check_statistic(statistic)
    with np.errstate(all="ignore"):
        return STATISTICS[statistic](table)


def check_statistic(statistic: str) -> None:
    """Raise a SettingError that lists near names unless there is such a statistic."""
    if statistic not in STATISTICS:
        near = get_close_matches(statistic, STATISTICS, n=3, cutoff=0.4) or list(STATISTICS)
        raise SettingError(f"There is no statistic {statistic!r}; there are {', '.join(near)}.")


def mean(table: SketchTable) -> Floats:
    """Σx / n."""
    return _per_element(table, table.moments[:, SUM])


def mean_abs(table: SketchTable) -> Floats:
    """Σ|x| / n."""
    return _per_element(table, table.moments[:, L1])


def var(table: SketchTable, *, ddof: int = 1) -> Floats:
    """Variance, unbiased (n - 1) by default; NaN where n <= ddof."""
    freedom = table.finite() - ddof
    return np.where(freedom > 0, table.moments[:, M2] / np.maximum(freedom, 1), np.nan)


def std(table: SketchTable, *, ddof: int = 1) -> Floats:
    """Square root of `var`."""
    return np.sqrt(var(table, ddof=ddof))


def sum_of_squares(table: SketchTable) -> Floats:
    """Σx², from the central moment: both terms are positive, nothing cancels."""
    return table.moments[:, M2] + table.moments[:, SUM] * np.nan_to_num(mean(table))


def l2(table: SketchTable) -> Floats:
    """Euclidean norm; 0 where there is no element."""
    return np.sqrt(sum_of_squares(table))


def rms(table: SketchTable) -> Floats:
    """sqrt(Σx² / n)."""
    return np.sqrt(_per_element(table, sum_of_squares(table)))


def rm4(table: SketchTable) -> Floats:
    """(Σx⁴ / n)^(1/4), from the central moments about the mean."""
    centre, moments = np.nan_to_num(mean(table)), table.moments
    fourth = (
        moments[:, M4]
        + 4 * centre * moments[:, M3]
        + 6 * centre**2 * moments[:, M2]
        + table.finite() * centre**4
    )
    return np.maximum(_per_element(table, fourth), 0.0) ** 0.25


def rm8(table: SketchTable) -> Floats:
    """(Σx⁸ / n)^(1/8), from the scaled eighth moment."""
    root = _per_element(table, table.moments[:, S8]) ** 0.125
    scale = scale_exponent(table.magnitude())
    return np.where(root > 0, np.ldexp(root, scale), root)


def skewness(table: SketchTable) -> Floats:
    """Biased skewness, scipy's default; NaN where the variance is 0."""
    n, m2 = table.finite(), table.moments[:, M2]
    return np.where(m2 > 0, np.sqrt(n) * table.moments[:, M3] / m2**1.5, np.nan)


def kurtosis(table: SketchTable) -> Floats:
    """Biased excess kurtosis (Fisher), scipy's default; NaN where the variance is 0."""
    n, m2 = table.finite(), table.moments[:, M2]
    return np.where(m2 > 0, n * table.moments[:, M4] / m2**2 - 3, np.nan)


def abs_max(table: SketchTable) -> Floats:
    """Largest finite |x|."""
    return np.where(table.finite() > 0, table.magnitude(), np.nan)


def abs_min(table: SketchTable) -> Floats:
    """Smallest non-zero |x|."""
    return _extreme(table.moments[:, ABS_MIN])


def nonfinite(table: SketchTable) -> Floats:
    """How many elements are NaN or infinite."""
    return table.counts[:, [NAN, POS_INF, NEG_INF]].sum(axis=1).astype(np.float64)


def _share(column: int) -> Callable[[SketchTable], Floats]:
    def share(table: SketchTable) -> Floats:
        return _per_element(table, table.counts[:, column].astype(np.float64))

    return share


def _count(column: int) -> Callable[[SketchTable], Floats]:
    return lambda table: table.counts[:, column].astype(np.float64)


def _extreme(column: Floats) -> Floats:
    return np.where(np.isfinite(column), column, np.nan)


def _per_element(table: SketchTable, total: Floats) -> Floats:
    finite = table.finite()
    return np.where(finite > 0, total / np.maximum(finite, 1), np.nan)


STATISTICS: dict[str, Callable[[SketchTable], Floats]] = {
    "rms": rms,
    "mean": mean,
    "std": std,
    "abs_max": abs_max,
    "abs_min": abs_min,
    "mean_abs": mean_abs,
    "min": lambda table: _extreme(table.moments[:, MIN]),
    "max": lambda table: _extreme(table.moments[:, MAX]),
    "l1": lambda table: table.moments[:, L1].copy(),
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
    "sum": lambda table: table.moments[:, SUM].copy(),
    "var": var,
    "zero_share": _share(ZERO),
    "negative_share": _share(NEGATIVE),
    "subnormal_share": _share(SUBNORMAL),
}
"""Every named statistic. Shares are of the finite elements, between 0 and 1."""

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
    return np.stack([derive(table, name) for name in MAIN], axis=1)
