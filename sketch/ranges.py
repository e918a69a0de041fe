"""What a histogram of exponents can answer: quantiles, and how a tensor would fit a number format.

A bin only says that 2^e <= |x| < 2^(e+1), so each answer comes with the bounds that it guarantees.
Finer counts, where there are some of a tensor, narrow them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .errors import SettingError
from .exact_counts import (
    EDGE,
    FIRST_BLOCK_EXPONENT,
    INSIDE,
    LOST,
    NONZERO,
    BlockExponents,
    CastCounts,
    ExactCount,
    FineExponents,
)
from .formats import NumberFormat, floor_log2
from .table import (
    FIRST_EXPONENT,
    LAST_EXPONENT,
    UNDER,
    ZERO,
    Floats,
    Ints,
    SketchTable,
)
from .tally import Bounded, Tally

Numbers = Ints | Floats
Targets = NumberFormat | Sequence[NumberFormat]
"""One format, or one for each row of a table."""

EDGES: Floats = np.ldexp(1.0, np.arange(FIRST_EXPONENT, LAST_EXPONENT + 2))
"""float64 [BINS + 1]: the lower edge of each bin, and the upper edge of the last."""


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


def overflow(table: SketchTable | Tally, target: Targets, *, shift: Ints | int = 0) -> Bounded:
    """Share of finite non-zero elements whose |x|·2^shift rounds past the largest of `target`.

    For formats that saturate this is the share that is clipped. 0 where there is no such element.

    Args:
        table: the elements.
        target: the format, or one for each row.
        shift: one, or one a row.
    """
    threshold = _of_each(target, lambda one: one.overflow_threshold)
    return _tally(table).share_from(_shifted(threshold, shift))


def underflow(table: SketchTable | Tally, target: Targets, *, shift: Ints | int = 0) -> Bounded:
    """Share of finite non-zero elements whose x·2^shift becomes 0 in `target`, to nearest even."""
    return _tally(table).share_below(kept_from(target, shift))


def subnormal(table: SketchTable | Tally, target: Targets, *, shift: Ints | int = 0) -> Bounded:
    """Share of the finite non-zero elements that `target` can hold only as a subnormal, or as 0."""
    return _tally(table).share_below(normal_from(target, shift))


def kept_from(target: Targets, shift: Ints | int = 0) -> Floats:
    """The smallest |x| whose x·2^shift does not become 0 in `target`."""
    return np.nextafter(_shifted(_of_each(target, lambda one: one.flush_threshold), shift), np.inf)


def normal_from(target: Targets, shift: Ints | int = 0) -> Floats:
    """The smallest |x| whose x·2^shift `target` holds in full precision."""
    return _shifted(_of_each(target, lambda one: one.smallest_normal), shift)


def _of_each(target: Targets, number: Callable[[NumberFormat], float]) -> Floats | float:
    if isinstance(target, NumberFormat):
        return number(target)
    return np.array([number(one) for one in target])


QUESTIONS = {"overflow": overflow, "underflow": underflow, "subnormal": subnormal}
"""What can be asked of a table and a format, see `fit`."""


def fit(
    exact_count: ExactCount, counts: Ints, target: NumberFormat, *, shift: int = 0
) -> dict[str, Bounded]:
    """The shares of `QUESTIONS` that the counts of an exact count tell of a format.

    Those of `BlockExponents` are of a tensor whose blocks are scaled so that they fill the format:
    the power of two at their largest magnitude to that of the largest number, or the one to the
    other. The scales themselves are taken to be exact.

    Args:
        exact_count: what was counted.
        counts: int64 of its shape; of several rows with an axis in front.
        target: the format.
        shift: by which power of two the tensor is multiplied before.

    Returns:
        Nothing for `CastCounts` of another format, or of another scale.
    """
    rows = counts.reshape(-1, *exact_count.shape)
    match exact_count:
        case CastCounts():
            return {} if exact_count.format != target.name or shift else _counted(rows)
        case FineExponents():
            unit, first = 2.0**-shift, FIRST_EXPONENT
        case BlockExponents(scale="power"):
            unit, first = 2.0 ** -floor_log2(target.max), FIRST_BLOCK_EXPONENT
        case BlockExponents():
            unit, first = 1 / target.max, FIRST_BLOCK_EXPONENT
    total = rows.sum(axis=(1, 2, 3))
    over, kept, normal = CastCounts(target.name).thresholds
    value, low, high = _fine_count(rows, first, unit * over)
    shares = {"overflow": _share(value, low, high, total)}
    for question, threshold in (("underflow", kept), ("subnormal", normal)):
        value, low, high = (total - n for n in _fine_count(rows, first, unit * threshold))
        shares[question] = _share(value, high, low, total)
    return shares


def _tally(table: SketchTable | Tally) -> Tally:
    return table if isinstance(table, Tally) else Tally.of(table)


def _shifted(threshold: Floats | float, shift: Ints | int) -> Floats:
    """Of |x| what the threshold is of |x|·2^shift; beyond float64 it is infinite, or 0."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(threshold, -np.asarray(shift))


def _counted(counts: Ints) -> dict[str, Bounded]:
    """The shares of `CastCounts`."""
    lost = {question: counts[:, place] for question, place in LOST.items()}
    return {question: _share(n, n, n, counts[:, NONZERO]) for question, n in lost.items()}


def _share(value: Numbers, low: Numbers, high: Numbers, total: Ints) -> Bounded:
    """Numbers of elements, of so many."""
    some = np.maximum(total, 1)
    return Bounded(value / some, low / some, high / some)


def _fine_count(counts: Ints, first: int, threshold: float) -> tuple[Numbers, Numbers, Numbers]:
    """How many elements of fine counts have |x| >= threshold: the estimate, and its bounds.

    Args:
        counts: int64 [rows, binades, parts, 2].
        first: the exponent of the second binade.
        threshold: of |x|.
    """
    rows, binades, parts, _ = counts.shape
    flat = counts.reshape(rows, -1, 2)
    # What underflows or overflows in float64 lies below or above all binades.
    exponent = first - 1 if threshold == 0 else first + binades
    if 0 < threshold < np.inf:
        exponent = floor_log2(threshold)
    binade = exponent - first + 1
    if binade >= binades:
        nothing = np.zeros(rows, np.int64)
        return nothing, nothing, nothing
    if binade < 1:  # all that is known of the first is that it lies below the others
        every = flat.sum(axis=(1, 2))
        return every, flat[:, parts:].sum(axis=(1, 2)), every
    place, just_below = (
        (edge / 2.0**exponent - 1) * parts for edge in (threshold, np.nextafter(threshold, 0.0))
    )
    at = binade * parts + int(place)
    inside, beyond = flat[:, at, INSIDE], flat[:, at + 1 :].sum(axis=(1, 2))
    if place == int(place):
        certain = beyond + inside + flat[:, at, EDGE]
    elif just_below == int(just_below):  # what lies at the edge is below, all else above
        certain = beyond + inside
    else:
        return beyond + inside * (1 - place % 1), beyond, beyond + inside
    return certain, certain, certain
