"""What the rows of a LogFrame say, as sketches and main statistics; what they do not say is open.

tandv counts zeros, NaN, infinities and 0.5 <= |x| < 1 in one column. Its statistics often tell
which of these there are: the largest |x| is finite only if all are, and so on. What stays open goes
to `unseen`, as elements that nobody looked at, and what is certain of it is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from ..sketch.errors import SettingError
from ..sketch.formats import normal_bin
from ..sketch.table import (
    ABS_MIN,
    BINS,
    COUNT,
    COUNTS,
    FIRST_EXPONENT,
    LAST_EXPONENT,
    MAX,
    MOMENTS,
    NAN,
    NEG_INF,
    NEGATIVE,
    OVER,
    POS_INF,
    SUBNORMAL,
    UNDER,
    UNSEEN,
    ZERO,
    Floats,
    Ints,
    SketchTable,
)
from ..store.logframe import MORE_SCALARS, ORIGIN, SCALARS
from .schema import MIXED

Flags = NDArray[np.bool_]

SATURATES = {"bfloat16": 256, "float16": 2048, "float32": 1 << 24}
"""By dtype the count from which on tandv's own may be too low: it counts in the tensor's dtype."""


@dataclass(frozen=True, slots=True, eq=False)
class Sketches:
    """The rows of a LogFrame."""

    table: SketchTable
    told: NDArray[np.float32]
    """float32 [rows, len(MAIN)]; NaN where it is not known."""
    is_open: Flags
    """bool [rows]: whether some elements may be zeros, NaN or infinities, or none of these."""
    is_low: Flags
    """bool [rows]: whether a count may be too low."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What is certain of elements that are in no bin; int64 or bool [rows] each."""

    zero: Ints
    nan: Ints
    pos_inf: Ints
    neg_inf: Ints
    unseen: Ints
    """How many more there are, of which it is not known what they are."""
    in_bin: Ints
    """How many of the mixed column belong to its bin."""
    is_finite: Flags
    """Whether all elements are."""
    nonfinite: Floats
    """How many are not, at least; NaN where it is not known whether any."""
    is_counted: Flags
    """Whether all zeros, NaN and infinities are counted."""


def sketches(frame: pd.DataFrame) -> Sketches:
    """The sketches of a LogFrame that `validate` has given."""
    scalars = {
        str(name): frame[group, name].to_numpy(np.float64)
        for group, name in frame.columns
        if group == "scalar_stats"
    }
    by_exponent: dict[float, Ints] = {
        name: frame[group, name].to_numpy(np.int64)
        for group, name in frame.columns
        if group == "exponent_counts"
    }
    histogram, under, over = _bins(by_exponent)
    column, place = None, MIXED - FIRST_EXPONENT
    if "mixed" in frame.attrs[ORIGIN]:
        column = histogram[:, place]
    known = counted(scalars, len(frame)) if column is None else unmixed(scalars, column)
    if column is not None:
        histogram[:, place] = known.in_bin
    counts = np.zeros((len(frame), len(COUNTS)), np.int64)
    counts[:, ZERO], counts[:, UNDER], counts[:, OVER] = known.zero, under, over
    counts[:, NAN], counts[:, POS_INF], counts[:, NEG_INF] = known.nan, known.pos_inf, known.neg_inf
    counts[:, COUNT] = histogram.sum(axis=1) + counts.sum(axis=1)
    counts[:, UNSEEN] = known.unseen
    # A dtype seldom changes from row to row.
    first, dtypes = _first_exponent(by_exponent), frame["metadata", "dtype"].to_numpy(object)
    largest = np.max(list(by_exponent.values()), axis=0)
    least = _positive(_scalar(scalars, "min_abs", len(frame)))
    counts[:, NEGATIVE] = _given(scalars, "negative", -1, len(frame))
    counts[:, SUBNORMAL] = -1
    is_low = np.zeros(len(frame), np.bool_)
    for dtype in np.unique(dtypes):
        rows = dtypes == dtype
        counts[rows, SUBNORMAL] = subnormals(
            histogram[rows], under[rows], least[rows], str(dtype), first
        )
        if column is not None and dtype in SATURATES:
            is_low[rows] = largest[rows] >= SATURATES[str(dtype)]
    counts[:, SUBNORMAL] = _given(scalars, "subnormal", counts[:, SUBNORMAL], len(frame))
    moments = np.full((len(frame), len(MOMENTS)), np.nan)
    moments[:, ABS_MIN] = least
    most = _scalar(scalars, "max_abs", len(frame))
    moments[:, MAX] = np.where(known.is_finite & np.isfinite(most), most, np.nan)
    table = SketchTable(counts, moments, np.zeros(len(frame), np.uint64), histogram)
    told = _told(scalars, table, known, is_foreign=column is not None)
    return Sketches(table, told, ~known.is_counted, is_low)


def _bins(by_exponent: Mapping[float, Ints]) -> tuple[Ints, Ints, Ints]:
    """Counts by bin, below all bins and above; columns beyond our bins go to the latter."""
    under, over = by_exponent[-np.inf].copy(), by_exponent[np.inf].copy()
    histogram = np.zeros((len(under), BINS), np.int64)
    for exponent, count in by_exponent.items():
        if FIRST_EXPONENT <= exponent <= LAST_EXPONENT:
            histogram[:, int(exponent) - FIRST_EXPONENT] = count
        elif np.isfinite(exponent):
            (under if exponent < 0 else over)[:] += count
    return histogram, under, over


def _first_exponent(exponents: Iterable[float]) -> int:
    """The exponent below which all elements of the column -inf lie."""
    return max(int(min(one for one in exponents if np.isfinite(one))), FIRST_EXPONENT)


def unmixed(scalars: Mapping[str, Floats], mixed: Ints) -> Known:
    """What is in tandv's column of zeros, NaN, infinities and 0.5 <= |x| < 1.

    Its statistics are NaN if there is a NaN, and the largest |x| is infinite if one is.
    """
    rows, none = len(mixed), np.zeros_like(mixed)
    most, least = (_scalar(scalars, name, rows) for name in ("max_abs", "min_abs"))
    mean = _scalar(scalars, "mean", rows)
    never = ("mean", "std", "mean_abs", "max_abs", "rm2", "rm4", "rm8")
    finite = np.any([np.isfinite(_scalar(scalars, name, rows)) for name in never], axis=0)
    is_there = {"max_abs", "mean"} <= scalars.keys()
    has_nan = np.isnan(most) & np.isnan(mean) & is_there & ~finite
    has_inf = np.isinf(most)
    # Of infinities of both signs the mean is NaN, and the largest |x| is not.
    pos = (has_inf & is_there & ((mean > 0) | np.isnan(mean))).astype(np.int64)
    neg = (has_inf & is_there & ((mean < 0) | np.isnan(mean))).astype(np.int64)
    empty = mixed == 0
    all_zero, no_zero = finite & (most < 0.5), finite & (least > 0)
    some_zero = finite & (least == 0) & ~empty
    zero = np.where(all_zero, mixed, some_zero)
    in_bin = np.where(no_zero & ~all_zero, mixed, 0)
    nan = has_nan.astype(np.int64)
    nan, pos, neg = (np.where(empty, none, found) for found in (nan, pos, neg))
    unseen = np.maximum(mixed - zero - in_bin - nan - pos - neg, 0)
    nonfinite = np.where(finite | (empty & ~has_nan & ~has_inf), 0.0, np.nan)
    nonfinite = np.where(has_nan | has_inf, np.maximum(nan + pos + neg, 1), nonfinite)
    return Known(
        zero=zero.astype(np.int64),
        nan=nan,
        pos_inf=pos,
        neg_inf=neg,
        unseen=unseen,
        in_bin=in_bin,
        is_finite=finite,
        nonfinite=nonfinite,
        is_counted=(unseen == 0) & ~(has_nan | has_inf),
    )


def counted(scalars: Mapping[str, Floats], rows: int) -> Known:
    """What a LogFrame of rankscope says itself; where it does not, nothing is known."""
    found = [_scalar(scalars, name, rows) for name in ("zero", "nan", "pos_inf", "neg_inf")]
    all_known = ~np.isnan(np.stack(found).sum(axis=0))
    zero, nan, pos, neg = (
        _given(scalars, n, 0, rows) for n in ("zero", "nan", "pos_inf", "neg_inf")
    )
    nonfinite = np.where(np.isnan(found[1:]).any(axis=0), np.nan, nan + pos + neg)
    return Known(
        zero=zero,
        nan=nan,
        pos_inf=pos,
        neg_inf=neg,
        unseen=_given(scalars, "unseen", 0, rows),
        in_bin=np.zeros(rows, np.int64),
        is_finite=nonfinite == 0,
        nonfinite=nonfinite,
        is_counted=all_known,
    )


def subnormals(histogram: Ints, under: Ints, least: Floats, dtype: str, first: int) -> Ints:
    """int64 [rows]: how many elements are below the normal range of a dtype; -1 for not known.

    Args:
        histogram, under: what there is in bins, and below 2^first.
        least: the smallest |x| that is not zero, NaN where it is not known.
    """
    try:
        normal = normal_bin(dtype)
    except SettingError:
        return np.full(len(histogram), -1, np.int64)
    below = histogram[:, :normal].sum(axis=1)
    if normal >= first - FIRST_EXPONENT:
        return below + under
    none = (under == 0) | (least >= np.ldexp(1.0, normal + FIRST_EXPONENT))
    return np.where(none, below, -1)


def _told(
    scalars: Mapping[str, Floats], table: SketchTable, known: Known, *, is_foreign: bool
) -> NDArray[np.float32]:
    """The main statistics: the LogFrame's own, where they are what they are called."""
    rows = len(table)
    told = np.full((rows, len(MAIN)), np.nan)
    names = SCALARS if is_foreign else SCALARS | {name: name for name in MORE_SCALARS}
    for theirs, ours in names.items():
        told[:, MAIN.index(ours)] = _scalar(scalars, theirs, rows)
    told[~np.isfinite(told)] = np.nan
    least, most = MAIN.index("abs_min"), MAIN.index("abs_max")
    told[:, least] = _positive(told[:, least])
    # Powers of what is not zero come to zero only where they underflow.
    for name in ("rms", "rm4", "rm8", "mean_abs"):
        column = told[:, MAIN.index(name)]
        column[(column == 0) & (told[:, most] > 0)] = np.nan
    is_zero = told[:, most] == 0
    for name in ("rms", "rm4", "rm8", "mean", "mean_abs"):
        told[is_zero, MAIN.index(name)] = 0.0
    total = (table.counts[:, COUNT] + known.unseen).astype(np.float64)
    finite = np.where(known.is_finite, total, np.nan)
    if is_foreign:
        told[:, MAIN.index("l2")] = told[:, MAIN.index("rms")] * np.sqrt(finite)
    else:
        finite = np.where(known.is_counted, table.finite(), np.nan)  # of a sample, those seen
    finite[~(finite > 0)] = np.nan
    zero = np.where(known.is_counted, table.counts[:, ZERO], np.nan)
    subnormal = table.counts[:, SUBNORMAL]
    told[:, MAIN.index("nonfinite")] = known.nonfinite
    told[:, MAIN.index("zero_share")] = zero / finite
    told[:, MAIN.index("subnormal_share")] = np.where(subnormal >= 0, subnormal, np.nan) / finite
    with np.errstate(over="ignore"):
        return told.astype(np.float32)


def _scalar(scalars: Mapping[str, Floats], name: str, rows: int) -> Floats:
    """A statistic, NaN where it is missing."""
    return scalars[name] if name in scalars else np.full(rows, np.nan)


def _given(scalars: Mapping[str, Floats], name: str, else_: Ints | int, rows: int) -> Ints:
    """A count, or something else where it is missing."""
    found = _scalar(scalars, name, rows)
    return np.where(np.isnan(found), else_, np.nan_to_num(found)).astype(np.int64)


def _positive(values: Floats) -> Floats:
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)
