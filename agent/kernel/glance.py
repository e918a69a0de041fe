"""What a sentinel sees of a tensor: its extremes, and how many elements are not finite.

One pass that only compares, as fast as memory is read; another where something is not finite. And
one for the checksum of copies.
"""

# The kernels take numba's typed values; their Python annotations would say nothing.
# Numba hides `carray` from type checkers; an intrinsic's first parameter is numba's to give.
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false

from __future__ import annotations

import math

import numba
import numpy as np

from ...sketch.elements import BLOCK
from ...sketch.table import COUNT, MAX, MIN, NAN, NEG_INF, POS_INF, UNBINNED
from .compiling import address_of, compiled
from .doubles import checksum_of_doubles, glance_at_doubles
from .dtypes import FLOAT16, FLOAT32, FLOAT64, VALUES_16
from .keys import keys_of
from .passes import checksum_of, load_words

INFINITIES = np.array([0x7F800000, 0x7F80, 0x7C00], np.int64)
"""The bits of infinity in float32, bfloat16 and float16; those of NaN are above."""


@compiled
def glance(item, values, tables, word, counts, moments):
    """One work item into its row."""
    address, start, length, code = item[0], item[1], item[2], item[3]
    if code == FLOAT64:
        glance_at_doubles(item, counts, moments)
        return
    counts[COUNT] = length
    if code == FLOAT32:
        words = numba.carray(address_of(address + 4 * start), (length,), np.uint32)
        low, high = _extremes(words, words.view(np.int32), 31, INFINITIES[code], counts)
        if low <= high:
            moments[MIN], moments[MAX] = _float32_of(low, word), _float32_of(high, word)
    elif code <= FLOAT16:
        halves = numba.carray(address_of(address + 2 * start), (length,), np.uint16)
        low, high = _extremes(halves, halves.view(np.int16), 15, INFINITIES[code], counts)
        if low <= high:
            first = VALUES_16[code]
            moments[MIN] = values[first + _bits_of(low, 15)]
            moments[MAX] = values[first + _bits_of(high, 15)]
    else:
        octets = numba.carray(address_of(address + start), (length,), np.uint8)
        _glance_at_bytes(octets, 256 * code, values, tables, counts, moments)
    counts[UNBINNED] = length - counts[NAN] - counts[POS_INF] - counts[NEG_INF]


@compiled
def checksum_of_item(item, within, words, scratch_keys):
    """The checksum of one work item."""
    address, start, length, code = item[0], item[1], item[2], item[3]
    checksum = np.uint64(0)
    for begin in range(start, start + length, BLOCK):
        n = min(BLOCK, start + length - begin)
        hashes, key, _ = keys_of(item, begin, n, within, scratch_keys)
        if code == FLOAT64:
            doubles = numba.carray(address_of(address + 8 * begin), (n,), np.uint64)
            checksum += checksum_of_doubles(doubles, hashes, key)
        elif code == FLOAT32:
            raw = numba.carray(address_of(address + 4 * begin), (n,), np.uint32)
            checksum += checksum_of(raw, hashes, key)
        else:
            load_words(address, begin, n, code, words)
            checksum += checksum_of(words[:n], hashes, key)
    return checksum


@compiled
def _extremes(unsigned, signed, sign, infinity, counts):
    """Smallest and largest finite element, each as its magnitude's bits with its sign.

    As signed integers positive numbers are in order, and above all negative ones; as unsigned ones
    negative numbers are above, the larger their magnitude.
    """
    if not unsigned.size:
        return infinity, -infinity
    least, most = signed[0], signed[0]
    lowest, highest = unsigned[0], unsigned[0]
    for i in range(unsigned.size):
        least, most = min(least, signed[i]), max(most, signed[i])
        lowest, highest = min(lowest, unsigned[i]), max(highest, unsigned[i])
    magnitude = (1 << sign) - 1
    low, high = np.int64(lowest), np.int64(most)
    if np.int64(highest) > magnitude:
        low = -(np.int64(highest) & magnitude)
    if high < 0:
        high = -(np.int64(least) & magnitude)
    if -low >= infinity or high >= infinity or low >= infinity or -high >= infinity:
        return _finite_extremes(unsigned, magnitude, infinity, counts)
    return low, high


@compiled
def _finite_extremes(words, magnitude, infinity, counts):
    """The same where some are not finite: these are counted. Of none the smallest is larger."""
    low, high = infinity, -infinity
    for i in range(words.size):
        word = np.int64(words[i])
        size = word & magnitude
        if size > infinity:
            counts[NAN] += 1
        elif size == infinity:
            counts[POS_INF if word == size else NEG_INF] += 1
        else:
            number = size if word == size else -size
            low, high = min(low, number), max(high, number)
    return low, high


@compiled
def _bits_of(number, sign):
    """The bits of an element."""
    return number if number >= 0 else -number | (1 << sign)


@compiled
def _float32_of(number, word):
    """The value of an element of float32."""
    word[0] = np.uint32(_bits_of(number, 31))
    return np.float64(word.view(np.float32)[0])


@compiled
def _glance_at_bytes(octets, first, values, tables, counts, moments):
    """The same of an 8-bit dtype, whose values begin at `first`: each value is counted.

    In four tables in turn, which are zero before and after.
    """
    for i in range(octets.size):
        tables[((i & 3) << 8) + octets[i]] += np.uint32(1)
    for place in range(256):
        n = np.int64(0)
        for table in range(0, 1024, 256):
            n += np.int64(tables[table + place])
            tables[table + place] = np.uint32(0)
        x = values[first + place]
        if n == 0:
            continue
        if math.isnan(x):
            counts[NAN] += n
        elif math.isinf(x):
            counts[POS_INF if x > 0 else NEG_INF] += n
        else:
            moments[MIN], moments[MAX] = min(moments[MIN], x), max(moments[MAX], x)
