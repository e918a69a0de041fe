"""`sketch.exact_counts` of tensors in the host's memory: one call that holds no lock.

Whatever the dtype, |x| is looked at as the bits of a float64: they are in order, and each number of
a narrower dtype is a normal one there.
"""

# The kernels take numba's typed values; their Python annotations would say nothing.
# Numba hides `carray` from type checkers; an intrinsic's first parameter is numba's to give.
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false, reportUnusedExpression=false

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numba
import numpy as np
from numba import njit

from ...sketch.elements import BLOCK
from ...sketch.exact_counts import (
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
from ...sketch.table import FIRST_EXPONENT, Ints
from .compiling import SOURCES, address_of, compiled, kept
from .dtypes import FLOAT32, FLOAT64, SIZES, WIDENED
from .passes import INFINITY, MAGNITUDE, load_words, top_bit, widen

MANTISSA = 52
"""Stored bits of a float64's significand."""
BIAS = 1023
"""Of its exponent."""
FIRST_NORMAL = np.uint64(1 << MANTISSA)
"""Bits of its smallest normal number."""
INFINITY_64 = np.uint64(0x7FF << MANTISSA)
MAGNITUDE_64 = np.uint64((1 << 63) - 1)
FINE, BLOCKS, CASTS = range(3)
_OVER, _ZERO, _SUBNORMAL = (LOST[name] for name in ("overflow", "underflow", "subnormal"))


@compiled
def _load(address, start, n, code, widened, words, wide, bits):
    """|x| of n elements as bits of float64; 0 where it is not finite."""
    address += start * SIZES[code]
    if code == FLOAT64:
        doubles = numba.carray(address_of(address), (n,), np.uint64)
        for i in range(n):
            u = doubles[i] & MAGNITUDE_64
            bits[i] = u if u < INFINITY_64 else np.uint64(0)
        return
    singles = wide[:n]
    if code == FLOAT32:
        singles = numba.carray(address_of(address), (n,), np.uint32)
    else:
        load_words(address, 0, n, code, words)
        widen(words[:n], code, widened, wide)
    rebias = np.uint64((BIAS - 127) << MANTISSA)
    subnormals = np.uint32(0)
    for i in range(n):
        u = singles[i] & MAGNITUDE
        normal = u - np.uint32(0x800000) < INFINITY - np.uint32(0x800000)
        bits[i] = (np.uint64(u) << np.uint64(29)) + rebias if normal else np.uint64(0)
        subnormals += np.uint32(u - np.uint32(1) < np.uint32(0x7FFFFF))
    if subnormals > np.uint32(0):
        for i in range(n):
            u = singles[i] & MAGNITUDE
            if u - np.uint32(1) < np.uint32(0x7FFFFF):
                bits[i] = _normalised(u)


@compiled
def _normalised(u):
    """Bits of float64 of a subnormal number of float32."""
    place = top_bit(u)
    fraction = (np.uint64(u) << np.uint64(MANTISSA - place)) & (FIRST_NORMAL - np.uint64(1))
    return (np.uint64(BIAS - 149 + place) << np.uint64(MANTISSA)) | fraction


@compiled
def _file(u, first, bits, counts):
    """Count one number that is not zero in flat counts; `first` is the exponent of row 1."""
    rest = np.uint64(MANTISSA - bits)
    place = np.int64(u >> rest) - ((BIAS + first - 1) << bits)
    if place < 1 << bits:
        counts[INSIDE] += 1
    elif 2 * place >= counts.size:
        counts[counts.size - (2 << bits) + INSIDE] += 1
    else:
        at_edge = u & ((np.uint64(1) << rest) - np.uint64(1)) == np.uint64(0)
        counts[2 * place + (EDGE if at_edge else INSIDE)] += 1


@compiled
def _count_casts(magnitude, thresholds, counts):
    one = np.uint64(1)  # of zero it leaves the largest of all
    over, zero, subnormal = thresholds[_OVER], thresholds[_ZERO] - one, thresholds[_SUBNORMAL] - one
    n_over = n_zero = n_subnormal = n_some = 0
    for i in range(magnitude.size):
        u = magnitude[i]
        n_some += np.int64(u > np.uint64(0))
        n_over += np.int64(u >= over)
        n_zero += np.int64(u - one < zero)
        n_subnormal += np.int64(u - one < subnormal)
    counts[NONZERO] += n_some
    counts[_OVER] += n_over
    counts[_ZERO] += n_zero
    counts[_SUBNORMAL] += n_subnormal


@compiled
def _scales(magnitude, columns, scales):
    """The largest of each block along a row's elements, a block's first, in place."""
    block = i = 0
    while i < magnitude.size:
        end = min(i + columns, magnitude.size)
        largest = scales[block]
        for j in range(i, end):
            largest = max(largest, magnitude[j])
        scales[block] = largest
        block, i = block + 1, end


@compiled
def _count_beside(magnitude, columns, by_amax, scales, bits, counts):
    """Count elements beside the scales of their blocks; `magnitude` is overwritten."""
    numbers, largest = magnitude.view(np.float64), scales.view(np.float64)
    block = i = 0
    while i < magnitude.size:
        end = min(i + columns, magnitude.size)
        power = (scales[block] & INFINITY_64) - np.uint64(BIAS << MANTISSA)
        top = np.int64(scales[block] >> np.uint64(MANTISSA))
        for j in range(i, end):
            if magnitude[j] < FIRST_NORMAL:
                continue
            if by_amax:
                numbers[j] /= largest[block]
            elif np.int64(magnitude[j] >> np.uint64(MANTISSA)) - top < FIRST_BLOCK_EXPONENT:
                magnitude[j] = np.uint64(0)  # below all rows but the first
            else:
                magnitude[j] -= power
            _file(magnitude[j], FIRST_BLOCK_EXPONENT, bits, counts)
        block, i = block + 1, end


@compiled
def _count_band(address, first, last, left, n, code, block, bits, columns, arrays, counts):
    """Count rows `first` to `last` of blocks, n of their columns from `left` on."""
    widened, words, wide, magnitude, scales = arrays
    _, wide_block, by_amax = block
    scales[:] = 0
    for counting in range(2):
        for row in range(first, last):
            start = row * columns + left
            _load(address, start, n, code, widened, words, wide, magnitude)
            if counting:
                _count_beside(magnitude[:n], wide_block, by_amax, scales, bits, counts)
            else:
                _scales(magnitude[:n], wide_block, scales)


def _count_from(sources):
    """The function of `count`; `sources` makes numba's cache on disk tell versions apart."""

    def count(kind, address, shape, code, block, bits, thresholds, arrays, counts):
        sources  # noqa: B018  # in the closure: numba's cache has it in its key
        widened, words, wide, magnitude, _ = arrays
        batch, rows, columns = shape
        if kind != BLOCKS:
            length = batch * rows * columns
            for start in range(0, length, BLOCK):
                n = min(BLOCK, length - start)
                _load(address, start, n, code, widened, words, wide, magnitude)
                if kind == CASTS:
                    _count_casts(magnitude[:n], thresholds, counts)
                else:
                    for i in range(n):
                        if magnitude[i] > np.uint64(0):
                            _file(magnitude[i], FIRST_EXPONENT, bits, counts)
            return
        high, wide_block = block[0], block[1]
        at_once = BLOCK // wide_block * wide_block
        bands = -(-rows // high)
        for band in range(batch * bands):
            # Blocks do not reach over the end of a matrix of the batch.
            first = band // bands * rows + band % bands * high
            last = min(first + high, (band // bands + 1) * rows)
            for left in range(0, columns, at_once):
                n = min(at_once, columns - left)
                _count_band(
                    address, first, last, left, n, code, block, bits, columns, arrays, counts
                )

    return count


_count = kept(partial(njit, nogil=True), _count_from(SOURCES))
_NO_THRESHOLDS = np.zeros(len(LOST), np.uint64)


def count(exact_count: ExactCount, address: int, shape: Sequence[int], code: int) -> Ints:
    """What `exact_count.count` counts, of a contiguous tensor that stays valid during the call.

    Args:
        address: of its first element.
        shape: of the tensor.
        code: index into `DTYPES`.
    """
    counts = np.zeros(exact_count.shape, np.int64)
    rows, columns = (1, 1, *shape)[-2:]
    batch = math.prod(shape[:-2])
    kind, block, bits, thresholds = FINE, (1, 1, 0), 0, _NO_THRESHOLDS
    match exact_count:
        case CastCounts():
            kind, thresholds = CASTS, np.array(exact_count.thresholds).view(np.uint64)
        case FineExponents():
            bits = exact_count.bits
        case BlockExponents():
            kind, bits = BLOCKS, exact_count.bits
            block = (exact_count.rows, exact_count.columns, int(exact_count.scale == "amax"))
    arrays = (
        WIDENED,
        np.empty(BLOCK, np.uint32),
        np.empty(BLOCK, np.uint32),
        np.empty(BLOCK, np.uint64),
        np.empty(BLOCK // block[1], np.uint64),
    )
    flat, matrices = counts.reshape(-1), (batch, rows, columns)
    _count(kind, address, matrices, code, block, bits, thresholds, arrays, flat)
    return counts
