"""Tensors of float64: their exponents need a wider table, and their powers may overflow."""

# The kernels take numba's typed values; their Python annotations would say nothing.
# Numba hides `carray` from type checkers; an intrinsic's first parameter is numba's to give.
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false

from __future__ import annotations

import math

import numba
import numpy as np

from ...sketch.elements import BLOCK
from ...sketch.formats import smallest_normal
from ...sketch.table import (
    ABS_MIN,
    BINS,
    COUNT,
    FIRST_EXPONENT,
    L1,
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
)
from .compiling import address_of, compiled, reordered
from .keys import keys_of
from .moments import exponent, merge_moments

SMALLEST_NORMAL = smallest_normal(np.dtype(np.float64))
FURTHEST = 1000
"""Exponent of the largest factor that scales eighth powers: a normal number, as its inverse is."""
FIELD = np.uint64(0x7FF)
"""Of the exponent, after a shift by 52."""
FIRST_FIELD = 1023 + FIRST_EXPONENT
"""What the exponent's field holds for numbers of the first bin."""


@compiled
def sketch_doubles(item, within, chunk, scratch_keys, counts, moments, histogram):
    """One work item of float64 into its row; returns the checksum."""
    address, start, length = item[0], item[1], item[2]
    checksum = np.uint64(0)
    counts[COUNT] = length
    finite = 0
    for begin in range(start, start + length, BLOCK):
        n = min(BLOCK, start + length - begin)
        hashes, key, _ = keys_of(item, begin, n, within, scratch_keys)
        x = numba.carray(address_of(address + 8 * begin), (n,), np.float64)
        checksum += checksum_of_doubles(x.view(np.uint64), hashes, key)
        m = _count(x, x.view(np.uint64), counts, histogram)
        if m:
            _chunk_moments(x, hashes, key, m, chunk)
            merge_moments(moments, finite, chunk, m)
        finite += m
    return checksum


@compiled
def glance_at_doubles(item, counts, moments):
    """What a sentinel sees of one work item of float64, into its row."""
    address, start, length = item[0], item[1], item[2]
    x = numba.carray(address_of(address + 8 * start), (length,), np.float64)
    low, high = math.inf, -math.inf
    for i in range(length):
        value = x[i]
        if abs(value) < math.inf:
            low, high = min(low, value), max(high, value)
        else:
            _count_nonfinite(value, counts)
    counts[COUNT] = length
    counts[UNBINNED] = length - counts[NAN] - counts[POS_INF] - counts[NEG_INF]
    moments[MIN], moments[MAX] = low, high


@compiled
def _count_nonfinite(value, counts):
    if value > 0:
        counts[POS_INF] += 1
    elif value < 0:
        counts[NEG_INF] += 1
    else:
        counts[NAN] += 1


@compiled
def checksum_of_doubles(bits, within, key):
    """Σ bits x (key of the element | 1) modulo 2^64."""
    total = np.uint64(0)
    for i in range(bits.size):
        total += bits[i] * np.uint64((within[i] ^ key) | np.uint32(1))
    return total


@compiled
def _count(x, bits, counts, histogram):
    """Counts and bins of a chunk; how many elements are finite."""
    finite = 0
    for i in range(x.size):
        value = x[i]
        if value == 0:
            counts[ZERO] += 1
            finite += 1
        elif abs(value) < math.inf:
            finite += 1
            counts[NEGATIVE] += np.int64(bits[i] >> np.uint64(63))
            counts[SUBNORMAL] += np.int64(abs(value) < SMALLEST_NORMAL)
            place = np.int64((bits[i] >> np.uint64(52)) & FIELD) - FIRST_FIELD
            if place < 0:
                counts[UNDER] += 1
            elif place >= BINS:
                counts[OVER] += 1
            else:
                histogram[place] += 1
        else:
            _count_nonfinite(value, counts)
    return finite


@compiled
def _chunk_moments(x, within, key, finite, chunk):
    """The moments of a chunk's finite elements, central ones about their mean."""
    chunk[MIN], chunk[MAX], chunk[ABS_MIN] = math.inf, -math.inf, math.inf
    chunk[SUM] = chunk[L1] = chunk[PROJECTION] = 0.0
    for i in range(x.size):
        value, size = x[i], abs(x[i])
        if size < math.inf:
            chunk[MIN], chunk[MAX] = min(chunk[MIN], value), max(chunk[MAX], value)
            chunk[SUM] += value
            chunk[L1] += size
            chunk[PROJECTION] += -value if (within[i] ^ key) >> np.uint32(31) else value
            if size > 0:
                chunk[ABS_MIN] = min(chunk[ABS_MIN], size)
    top = exponent(max(-chunk[MIN], chunk[MAX]))
    shift = -top if top > -1200 else 0
    near = max(min(shift, FURTHEST), -FURTHEST)
    sums = _power_sums(x, chunk[SUM] / finite, math.ldexp(1.0, near))
    chunk[M2], chunk[M3], chunk[M4] = sums[0], sums[1], sums[2]
    chunk[S8] = math.ldexp(sums[3], 8 * (shift - near))


@reordered
def _power_sums(x, mean, unit):
    """Σd², Σd³, Σd⁴ about the mean, and Σ(x·unit)⁸."""
    s2 = s3 = s4 = s8 = 0.0
    for i in range(x.size):
        value = x[i]
        if abs(value) < math.inf:
            d = value - mean
            square = d * d
            s2 += square
            s3 += square * d
            s4 += square * square
            u = value * unit
            u *= u
            u *= u
            s8 += u * u
    return s2, s3, s4, s8
