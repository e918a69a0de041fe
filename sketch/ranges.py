"""What a histogram of exponents can answer: quantiles, and how a tensor would fit a number format.

A bin only says that 2^e <= |x| < 2^(e+1), so each answer comes with the bounds that it guarantees.
Finer counts, where there are some of a tensor, narrow them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp

import numpy as np

from .errors import SettingError
from .formats import NumberFormat, floor_log2
from .quantities import (
    EDGE,
    FIRST_BLOCK_EXPONENT,
    INSIDE,
    LOST,
    NONZERO,
    BlockExponents,
    CastCounts,
    FineExponents,
    Quantity,
)
from .table import (
    ABS_MIN,
    BINS,
    FIRST_EXPONENT,
    LAST_EXPONENT,
    OVER,
    UNDER,
    ZERO,
    Floats,
    Ints,
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
    """The `share` quantile of |x| over the finite elements in the histogram; NaN if not known.

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
    # Nothing is said of `under` and `over` where nobody knows at which bin they begin.
    foreign = table.lacks_moments()
    beyond = foreign & (is_over | (is_under & (wanted > counts[:, ZERO])))
    magnitude = table.magnitude()
    magnitude = np.where(np.isnan(magnitude), np.inf, magnitude)
    high = np.minimum(np.where(is_over, np.inf, high), magnitude)
    low = np.minimum(low, high)
    value = np.clip(low + part * (high - low), low, high)
    nothing = (finite == 0) | beyond
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
    lost = _rest(_share_from(table, threshold))
    smallest = table.moments[:, ABS_MIN]
    return _where((smallest >= threshold) | (_nonzero(table) == 0), lost, 0.0)


def subnormal(table: SketchTable, target: NumberFormat, *, shift: int = 0) -> Bounded:
    """Share of the finite non-zero elements that `target` can hold only as a subnormal, or as 0."""
    lost = _rest(_share_from(table, np.ldexp(target.smallest_normal, -shift)))
    return _where(_nonzero(table) == 0, lost, 0.0)


QUESTIONS = {"overflow": overflow, "underflow": underflow, "subnormal": subnormal}
"""What can be asked of a table and a format, see `fit`."""


def fit(quantity: Quantity, counts: Ints, target: NumberFormat) -> dict[str, Bounded]:
    """The shares of `QUESTIONS`, of [1] row, that the counts of a quantity tell of a format.

    Those of `BlockExponents` are of a tensor whose blocks are scaled so that they fill the format:
    the power of two at their largest magnitude to that of the largest number, or the one to the
    other. The scales themselves are taken to be exact.

    Returns:
        Nothing for `CastCounts` of another format.
    """
    match quantity:
        case CastCounts():
            return {} if quantity.format != target.name else _counted(counts)
        case FineExponents():
            unit, first = 1.0, FIRST_EXPONENT
        case BlockExponents(scale="power"):
            unit, first = 2.0 ** -floor_log2(target.max), FIRST_BLOCK_EXPONENT
        case BlockExponents():
            unit, first = 1 / target.max, FIRST_BLOCK_EXPONENT
    total = int(counts.sum())
    over, kept, normal = CastCounts(target.name).thresholds
    value, low, high = _fine_count(counts, first, unit * over)
    shares = {"overflow": _share(value, low, high, total)}
    for question, threshold in (("underflow", kept), ("subnormal", normal)):
        value, low, high = (total - n for n in _fine_count(counts, first, unit * threshold))
        shares[question] = _share(value, high, low, total)
    return shares


def _nonzero(table: SketchTable) -> Floats:
    return (table.measured() - table.counts[:, ZERO]).astype(np.float64)


def _share_from(table: SketchTable, threshold: float) -> Bounded:
    """Share of the non-zero elements with |x| >= threshold."""
    if np.isinf(threshold):  # of which float64 has none that are finite
        return Bounded(*np.zeros((3, len(table))))
    exponent = frexp(threshold)[1] - 1
    found = _share_of_bins(table, threshold, exponent)
    foreign = table.lacks_moments()
    if not foreign.any():
        return found
    return _within(table, threshold, exponent, found, foreign)


def _share_of_bins(table: SketchTable, threshold: float, exponent: int) -> Bounded:
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


def _within(
    table: SketchTable,
    threshold: float,
    exponent: int,
    found: Bounded,
    rows: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> Bounded:
    """The bounds where `under` and `over` begin at the bins that are filled, in those rows."""
    filled, at = table.histogram > 0, exponent - FIRST_EXPONENT
    lowest = np.where(filled.any(axis=1), filled.argmax(axis=1), BINS)
    highest = np.where(filled.any(axis=1), BINS - 1 - filled[:, ::-1].argmax(axis=1), -1)
    total = np.maximum(_nonzero(table), 1.0)
    under = np.where(rows & (at >= 0) & (at < lowest), table.counts[:, UNDER], 0) / total
    over = np.where(rows & (highest < at) & (at < BINS), table.counts[:, OVER], 0) / total
    low, high = np.maximum(found.low - over, 0.0), np.minimum(found.high + under, 1.0)
    none = rows & (table.magnitude() < threshold)
    every = rows & (table.moments[:, ABS_MIN] >= threshold)
    low, high = (np.where(every, 1.0, np.where(none, 0.0, bound)) for bound in (low, high))
    value = np.where(np.isnan(found.value), high, found.value)
    return Bounded(np.clip(value, low, high), low, high)


def _where(
    decided: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], other: Bounded, value: float
) -> Bounded:
    return Bounded(
        *(np.where(decided, value, part) for part in (other.value, other.low, other.high))
    )


def _rest(share: Bounded) -> Bounded:
    """What is not in a share."""
    return Bounded(1 - share.value, 1 - share.high, 1 - share.low)


def _counted(counts: Ints) -> dict[str, Bounded]:
    """The shares of `CastCounts`."""
    lost = {question: counts[place] for question, place in LOST.items()}
    return {question: _share(n, n, n, counts[NONZERO]) for question, n in lost.items()}


def _share(value: float, low: float, high: float, total: float) -> Bounded:
    """Numbers of elements, of so many, as one row."""
    return Bounded(*(np.array([number / max(total, 1)]) for number in (value, low, high)))


def _fine_count(counts: Ints, first: int, threshold: float) -> tuple[float, float, float]:
    """How many elements of fine counts have |x| >= threshold: the estimate, and its bounds.

    Args:
        first: the exponent of row 1.
    """
    rows, parts, _ = counts.shape
    flat = counts.reshape(-1, 2)
    # What underflows or overflows in float64 lies below or above all rows.
    exponent = first - 1 if threshold == 0 else first + rows
    if 0 < threshold < np.inf:
        exponent = floor_log2(threshold)
    row = exponent - first + 1
    if row >= rows:
        return 0, 0, 0
    if row < 1:  # all that is known of row 0 is that it lies below the others
        return flat.sum(), flat[parts:].sum(), flat.sum()
    place, just_below = (
        (edge / 2.0**exponent - 1) * parts for edge in (threshold, np.nextafter(threshold, 0.0))
    )
    at = row * parts + int(place)
    inside, beyond = flat[at, INSIDE], flat[at + 1 :].sum()
    if place == int(place):
        certain = beyond + inside + flat[at, EDGE]
    elif just_below == int(just_below):  # what lies at the edge is below, all else above
        certain = beyond + inside
    else:
        return beyond + inside * (1 - place % 1), beyond, beyond + inside
    return certain, certain, certain
