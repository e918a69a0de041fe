"""The reference kernel: the sketch of an array in plain NumPy.

It defines the numbers. Every faster kernel must agree with it bit for bit in counts, extremes,
histogram and checksum, and to rounding in the sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .elements import Region, element_hash
from .formats import smallest_normal
from .table import (
    ABS_MIN,
    BINS,
    COUNT,
    FIRST_EXPONENT,
    L1,
    LAST_EXPONENT,
    M2,
    M3,
    M4,
    MAX,
    MIN,
    NAN,
    NEG_INF,
    NEGATIVE,
    OVER,
    POS_INF,
    PROJECTION,
    S8,
    SUBNORMAL,
    SUM,
    UNBINNED,
    UNDER,
    ZERO,
    SketchTable,
    scale_exponent,
)

CHUNK = 1 << 15
"""Elements that are summarised at a time: temporaries stay within the cache."""


def sketch_array(x: NDArray[Any], *, start: int = 0, region: Region | None = None) -> SketchTable:
    """The sketch of all elements of `x`, as a table of one row.

    Args:
        x: any shape; float64, float32, float16, a float dtype of ml_dtypes, an integer or bool.
        start: index of the first element in the piece, in C order.
        region: where the piece lies in the whole tensor; without, it is the whole.

    Raises:
        TypeError: the elements are not real numbers.
    """
    if x.dtype.kind not in "fiubV" or x.dtype.names is not None:
        raise TypeError(f"Only real numbers can be summarised, got dtype {x.dtype}.")
    flat = x.reshape(-1)
    table = SketchTable.empty(1)
    for begin in range(0, flat.size, CHUNK):
        chunk = flat[begin : begin + CHUNK]
        table = table.merge(_sketch_chunk(chunk, element_hash(start + begin, chunk.size, region)))
    return table


def glance_at(
    x: NDArray[Any], *, compared: bool = False, region: Region | None = None
) -> SketchTable:
    """What a sentinel sees of `x`, as a table of one row: its extremes and what is not finite.

    Args:
        compared: whether it takes the checksum, too, as of copies.
        region: as of `sketch_array`.

    Raises:
        TypeError: the elements are not real numbers.
    """
    whole = sketch_array(x, region=region)
    seen = SketchTable.empty(1)
    if compared:
        seen.checksum[:] = whole.checksum
    kept = [COUNT, NAN, POS_INF, NEG_INF]
    seen.counts[0, kept] = whole.counts[0, kept]
    seen.counts[0, UNBINNED] = whole.finite()[0]
    seen.moments[0, [MIN, MAX]] = whole.moments[0, [MIN, MAX]]
    return seen


def _sketch_chunk(x: NDArray[Any], key: NDArray[np.uint32]) -> SketchTable:
    table = SketchTable.empty(1)
    counts, moments = table.counts[0], table.moments[0]
    bits = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").astype(np.uint64)
    table.checksum[0] = np.sum(bits * (key | np.uint32(1)), dtype=np.uint64)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = x.astype(np.float64)
    finite = np.isfinite(values)
    counts[COUNT] = values.size
    counts[NAN] = np.count_nonzero(np.isnan(values))
    counts[POS_INF] = np.count_nonzero(values == np.inf)
    counts[NEG_INF] = np.count_nonzero(values == -np.inf)
    sign = np.where(key[finite] >> np.uint32(31), -1.0, 1.0)
    values = values[finite]
    magnitude = np.abs(values)
    nonzero = magnitude[magnitude > 0]
    counts[ZERO] = values.size - nonzero.size
    counts[NEGATIVE] = np.count_nonzero(values < 0)
    counts[SUBNORMAL] = np.count_nonzero(nonzero < smallest_normal(x.dtype))
    exponent = np.frexp(nonzero)[1] - 1
    counts[UNDER] = np.count_nonzero(exponent < FIRST_EXPONENT)
    counts[OVER] = np.count_nonzero(exponent > LAST_EXPONENT)
    inside = exponent[(exponent >= FIRST_EXPONENT) & (exponent <= LAST_EXPONENT)]
    table.histogram[0] = np.bincount(inside - FIRST_EXPONENT, minlength=BINS)
    if values.size:
        _fill_moments(moments, values, magnitude, sign)
    if nonzero.size:
        moments[ABS_MIN] = nonzero.min()
    return table


def _fill_moments(
    moments: NDArray[np.float64],
    values: NDArray[np.float64],
    magnitude: NDArray[np.float64],
    sign: NDArray[np.float64],
) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # float64 beyond 1e77 has no fourth power
        moments[SUM] = values.sum()
        moments[L1] = magnitude.sum()
        moments[PROJECTION] = (values * sign).sum()
        central = values - moments[SUM] / values.size
        square = central * central
        moments[[M2, M3, M4]] = square.sum(), (square * central).sum(), (square * square).sum()
    moments[MIN], moments[MAX] = values.min(), values.max()
    scale = int(scale_exponent(magnitude.max(keepdims=True))[0])
    moments[S8] = np.sum(np.ldexp(values, -scale) ** 8)
