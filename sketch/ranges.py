"""What a histogram of exponents can answer: quantiles, and how a tensor would fit a number format.

A bin only says that 2^e <= |x| < 2^(e+1), so each answer comes with the bounds that it guarantees.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp

import numpy as np

from .errors import SettingError
from .formats import NumberFormat
from .table import (
    ABS_MIN,
    FIRST_EXPONENT,
    LAST_EXPONENT,
    OVER,
    UNDER,
    ZERO,
    Floats,
    SketchTable,
)

EDGES: Floats = np.ldexp(1.0, np.arange(FIRST_EXPONENT, LAST_EXPONENT + 2))
"""float64 [BINS + 1]: the lower edge of each bin, and the upper edge of the last."""


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


def quantile(table: SketchTable, share: float) -> Bounded:
    """The `share` quantile of |x| over the finite elements in the histogram; NaN for none.

    Raises:
        SettingError: `share` is not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise SettingError(f"`share` must be between 0 and 1, got {share}.")
    finite = table.measured().astype(np.float64)
    counts = table.counts
    below = (counts[:, ZERO] + counts[:, UNDER]).astype(np.float64)
    upto = below[:, None] + np.cumsum(table.histogram, axis=1)
    wanted = np.maximum(share * finite, 1.0)
    bin_index = (upto < wanted[:, None]).sum(axis=1)
    inside = np.minimum(bin_index, len(EDGES) - 2)
    rows = np.arange(len(table))
    held = table.histogram[rows, inside]
    start = upto[rows, inside] - held
    part = np.clip((wanted - start) / np.maximum(held, 1), 0.0, 1.0)
    low, high = EDGES[inside], EDGES[inside + 1]
    is_under, is_over = wanted <= below, bin_index >= len(EDGES) - 1
    low = np.where(is_under, 0.0, np.where(is_over, EDGES[-1], low))
    high = np.where(is_under, np.where(wanted <= counts[:, ZERO], 0.0, EDGES[0]), high)
    magnitude = table.magnitude()
    high = np.minimum(np.where(is_over, np.inf, high), magnitude)
    low = np.minimum(low, high)
    value = np.clip(low + part * (high - low), low, high)
    nothing = finite == 0
    return Bounded(*(np.where(nothing, np.nan, number) for number in (value, low, high)))


def overflow(table: SketchTable, target: NumberFormat, *, shift: int = 0) -> Bounded:
    """Share of finite non-zero elements whose |x|·2^shift rounds past the largest of `target`.

    For formats that saturate this is the share that is clipped. 0 where there is no such element.
    """
    threshold = np.ldexp(target.overflow_threshold, -shift)
    beyond = _share_from(table, threshold)
    return _where(table.magnitude() < threshold, beyond, 0.0)


def underflow(table: SketchTable, target: NumberFormat, *, shift: int = 0) -> Bounded:
    """Share of finite non-zero elements whose x·2^shift becomes 0 in `target`, to nearest even."""
    threshold = np.nextafter(np.ldexp(target.flush_threshold, -shift), np.inf)
    kept = _share_from(table, threshold)
    smallest = table.moments[:, ABS_MIN]
    lost = Bounded(1 - kept.value, 1 - kept.high, 1 - kept.low)
    return _where((smallest >= threshold) | (_nonzero(table) == 0), lost, 0.0)


def subnormal(table: SketchTable, target: NumberFormat, *, shift: int = 0) -> Bounded:
    """Share of the finite non-zero elements that `target` can hold only as a subnormal, or as 0."""
    normal = _share_from(table, np.ldexp(target.smallest_normal, -shift))
    lost = Bounded(1 - normal.value, 1 - normal.high, 1 - normal.low)
    return _where(_nonzero(table) == 0, lost, 0.0)


def _nonzero(table: SketchTable) -> Floats:
    return (table.measured() - table.counts[:, ZERO]).astype(np.float64)


def _share_from(table: SketchTable, threshold: float) -> Bounded:
    """Share of the non-zero elements with |x| >= threshold."""
    exponent = frexp(threshold)[1] - 1
    total = np.maximum(_nonzero(table), 1.0)
    counts, bins = table.counts, table.histogram
    position = exponent - FIRST_EXPONENT
    above = counts[:, OVER] + bins[:, max(position + 1, 0) :].sum(axis=1)
    if position < 0:
        above, held, part = above, counts[:, UNDER], 0.0
    elif position >= bins.shape[1]:
        above, held, part = np.zeros(len(table)), counts[:, OVER], 0.0
    else:
        held, part = bins[:, position], 2.0 - threshold / 2.0**exponent
    certain = threshold == 2.0**exponent and 0 <= position < bins.shape[1]
    high = (above + held) / total
    low = high if certain else above / total
    value = high if certain else (above + part * held) / total
    return Bounded(value, low, high)


def _where(
    decided: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], other: Bounded, value: float
) -> Bounded:
    return Bounded(
        *(np.where(decided, value, part) for part in (other.value, other.low, other.high))
    )
