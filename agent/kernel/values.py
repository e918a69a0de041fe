"""Tensors of 8 bits through the histogram of their values, from which all else follows.

All but two: the checksum is taken on the way, and for the projection each value is counted apart
for elements of positive and of negative sign. Tables are told apart by `lane`, too, because equal
values one after the other would wait for each other.
"""

# The kernels take numba's typed values; their Python annotations would say nothing.
# Pyright takes the first parameter of an intrinsic for one that its caller must give.
# pyright: basic, reportCallIssue=false

from __future__ import annotations

import math

import numpy as np

from ...sketch.elements import BLOCK, WITHIN
from ...sketch.table import (
    ABS_MIN,
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
    POS_INF,
    PROJECTION,
    S8,
    SUBNORMAL,
    SUM,
    ZERO,
)
from .compiling import compiled, prefetch, reordered
from .dtypes import FIRST_NORMAL
from .keys import keys_of
from .moments import exponent
from .passes import checksum_of, load_words

LANES = 4
"""Tables for elements in turn, for each sign."""
TABLE = 2 * LANES * 256
"""Entries of all tables."""
WHICH = (((WITHIN >> 31) + 2 * (np.arange(BLOCK, dtype=np.uint32) % LANES)) << 8).astype(np.uint32)
"""uint32 [BLOCK]: where the table of an element's sign and lane begins."""


@compiled
def _count_values(words, which, turn, places, tables, ahead):
    """Count each word in the table of its sign and lane; meanwhile fetch what lies `ahead`."""
    for i in range(words.size):
        places[i] = words[i] ^ which[i] ^ turn
    whole = words.size & ~63
    for i in range(0, whole, 64):
        prefetch(ahead + i)
        for j in range(i, i + 64):
            tables[places[j]] += np.uint32(1)
    for i in range(whole, words.size):
        tables[places[i]] += np.uint32(1)


@compiled
def _turn_to_tables(hashes):
    """Where the table of each element's sign and lane begins, in place of its key."""
    for i in range(hashes.size):
        lane = np.uint32(i) & np.uint32(LANES - 1)
        table = (hashes[i] >> np.uint32(31)) | (lane << np.uint32(1))
        hashes[i] = np.uint32(table << np.uint32(8))


@compiled
def sketch_values(item, constants, scratch, counts, moments, histogram):
    """One work item of an 8-bit dtype into its row; returns the checksum."""
    address, start, length, code = item[0], item[1], item[2], item[3]
    within, which, values = constants
    words, places, tables, kept, scratch_keys = scratch
    checksum = np.uint64(0)
    for begin in range(start, start + length, BLOCK):
        n = min(BLOCK, start + length - begin)
        hashes, key, are_made = keys_of(item, begin, n, within, scratch_keys)
        load_words(address, begin, n, code, words)
        checksum += checksum_of(words[:n], hashes, key)
        turn = (key >> np.uint32(31)) << np.uint32(8)
        ahead = address + begin + BLOCK
        if are_made:
            _turn_to_tables(hashes)
            _count_values(words[:n], hashes, turn, places, tables, ahead)
        else:
            _count_values(words[:n], which, turn, places, tables, ahead)
    found = _unfold(code, values, tables, kept, counts, moments, histogram)
    counts[COUNT] = length
    for i in range(FIRST_NORMAL[code]):
        counts[SUBNORMAL] += histogram[i]
    if found:
        _central(kept[0, :found], kept[1, :found], moments)
    return checksum


@compiled
def _unfold(code, values, tables, kept, counts, moments, histogram):
    """Counts, bins, sums and extremes from the tables, which are cleared.

    Each finite value that occurs is put into `kept`, and how often; returns how many they are.
    """
    found = 0
    for lane in range(512, TABLE, 512):
        for at in range(512):
            tables[at] += tables[lane + at]
            tables[lane + at] = np.uint32(0)
    for place in range(256):
        plus, minus = np.int64(tables[place]), np.int64(tables[256 + place])
        n = plus + minus
        if n == 0:
            continue
        tables[place] = tables[256 + place] = np.uint32(0)
        x = values[256 * code + place]
        if math.isnan(x):
            counts[NAN] += n
        elif math.isinf(x):
            counts[POS_INF if x > 0 else NEG_INF] += n
        else:
            kept[0, found], kept[1, found] = x, np.float64(n)
            found += 1
            moments[PROJECTION] += x * np.float64(plus - minus)
            moments[SUM] += x * np.float64(n)
            moments[L1] += abs(x) * np.float64(n)
            moments[MIN], moments[MAX] = min(moments[MIN], x), max(moments[MAX], x)
            if x == 0:
                counts[ZERO] += n
            else:
                counts[NEGATIVE] += n if x < 0 else 0
                moments[ABS_MIN] = min(moments[ABS_MIN], abs(x))
                histogram[exponent(abs(x)) - FIRST_EXPONENT] += n
    return found


@reordered
def _weighted_sums(numbers, times, mean, unit):
    """Σd², Σd³, Σd⁴ about the mean and Σ(x·unit)⁸, each number as often as it occurs."""
    s2 = s3 = s4 = s8 = 0.0
    for i in range(numbers.size):
        d = numbers[i] - mean
        square = d * d
        weighted = square * times[i]
        s2 += weighted
        s3 += weighted * d
        s4 += weighted * square
        u = numbers[i] * unit
        u *= u
        u *= u
        s8 += u * u * times[i]
    return s2, s3, s4, s8


@compiled
def _central(numbers, times, moments):
    """The moments about the mean."""
    top = exponent(max(-moments[MIN], moments[MAX]))
    unit = math.ldexp(1.0, -top) if top > -1200 else 1.0
    mean = moments[SUM] / times.sum()
    moments[M2], moments[M3], moments[M4], moments[S8] = _weighted_sums(numbers, times, mean, unit)
