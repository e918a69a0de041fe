"""The passes over one chunk of at most 8192 elements, which stays in cache through all of them."""

# The kernels take numba's typed values; their Python annotations would say nothing.
# Numba hides `carray` from type checkers; an intrinsic's first parameter is numba's to give.
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false

from __future__ import annotations

import numba
import numpy as np

from .compiling import address_of, compiled, count_four, float_bits
from .dtypes import BFLOAT16, FLOAT16
from .moments import NO_SMALLEST

INFINITY = np.uint32(0x7F800000)
MAGNITUDE = np.uint32(0x7FFFFFFF)
"""All bits of a float32 but its sign."""

GROUP = 64
"""Exponents that are looked at together."""
EXPONENTS = 256 + 3
"""Numbers of a table of exponents: four are counted at a time."""
WIDE = 56
"""Of so many exponents those of single elements are looked up faster."""
SUBNORMAL_UNIT = np.float32(2.0**-24)
"""What float16's subnormal numbers are multiples of."""


@compiled
def load_words(address, start, length, code, words):
    """The raw elements of a 16- or 8-bit dtype as 32-bit words."""
    if code <= FLOAT16:
        half = numba.carray(address_of(address + 2 * start), (length,), np.uint16)
        for i in range(length):
            words[i] = half[i]
    else:
        byte = numba.carray(address_of(address + start), (length,), np.uint8)
        for i in range(length):
            words[i] = byte[i]


@compiled
def widen(words, code, widened, bits):
    """The values of raw words as float32 bits."""
    if code == BFLOAT16:
        for i in range(words.size):
            bits[i] = words[i] << np.uint32(16)
    elif code == FLOAT16:
        for i in range(words.size):
            bits[i] = _widened_half(words[i])
    else:
        for i in range(words.size):
            bits[i] = widened[code * 256 + words[i]]


@compiled
def _widened_half(word):
    """A float16 as float32 bits; no step takes or makes a subnormal float32, which may be 0."""
    magnitude = np.uint32(word & np.uint32(0x7FFF))
    bits = np.uint32((magnitude << np.uint32(13)) + np.uint32(112 << 23))
    if magnitude >= np.uint32(0x7C00):  # infinity, NaN
        bits = np.uint32(bits + np.uint32(112 << 23))
    if magnitude < np.uint32(0x400):
        bits = float_bits(np.float32(np.int32(magnitude)) * SUBNORMAL_UNIT)
    return np.uint32(bits | ((word & np.uint32(0x8000)) << np.uint32(16)))


@compiled
def scan(bits, exponents):
    """One look at float32 bits: extremes, how many are below zero, and the exponent of each.

    Returns order-preserving keys of minimum and maximum, bits of the smallest non-zero |x|, less
    one, and the count. After the last exponent 255 follows, up to a whole number of `GROUP`s.
    """
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    small = NO_SMALLEST
    negative = np.int32(0)
    signed, n = bits.view(np.int32), bits.size
    for i in range(n):
        u = signed[i]
        exponents[i] = np.uint8(np.uint32(u) >> np.uint32(23))
        key = np.int32(u ^ ((u >> np.int32(31)) & np.int32(0x7FFFFFFF)))
        low, high = min(low, key), max(high, key)
        magnitude = np.int32(u & np.int32(0x7FFFFFFF))
        small = min(small, np.int32(np.int32(magnitude - np.int32(1)) & np.int32(0x7FFFFFFF)))
        negative = np.int32(negative + np.int32(key < np.int32(-1)))  # -0 has the key -1
    for i in range(n, -(-n // GROUP) * GROUP):
        exponents[i] = np.uint8(255)
    return (low, high, small), np.int64(negative)


@compiled
def exponents_within(extremes):
    """The least and the greatest exponent of elements that are not zero, by `scan`.

    (1, 0) where all are zero.
    """
    low, high, small = extremes
    if small == NO_SMALLEST:
        return np.int64(1), np.int64(0)
    most = max(_magnitude(low), _magnitude(high))
    return (np.int64(small) + 1) >> 23, np.int64(most) >> 23


@compiled
def _magnitude(key):
    """The bits of |x|, of an order-preserving key."""
    return key if key >= 0 else np.int32(~key)


@compiled
def count_exponents(exponents, n, low, high, table):
    """Add to the table how many exponents from 1 to 254 there are of each.

    Args:
        low, high: the least and the greatest of elements that are not zero.
        table: int64 [EXPONENTS]; what else it holds than at 1 to 254 means nothing.
    """
    first = max(low, 1)
    if high - first >= WIDE:
        for i in range(n):
            table[exponents[i]] += 1
        return
    groups = -(-n // GROUP)
    for four in range(first, high + 1, 4):
        count_four(exponents.ctypes.data, groups, four, table.ctypes.data + 8 * four)


@compiled
def _keyed_pairs(words, within, key):
    """Σ words x (key | 1) modulo 2^64.

    All are pairs of 32-bit numbers: a multiplication takes one of each pair, and no shuffles.
    """
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    odd = np.uint64(0x0000000100000001)
    total = np.uint64(0)
    for i in range(words.size):
        k = (within[i] ^ key) | odd
        w = words[i]
        total += (w & low) * (k & low) + (w >> half) * (k >> half)
    return total


@compiled
def checksum_of(words, within, key):
    """Σ words x (key of the element | 1) modulo 2^64."""
    last = words.size - 1
    even = words.size & ~1
    total = _keyed_pairs(
        words[:even].view(np.uint64),
        within[:even].view(np.uint64),
        np.uint64(key) | (np.uint64(key) << np.uint64(32)),
    )
    if even <= last:
        total += np.uint64(words[last]) * np.uint64((within[last] ^ key) | np.uint32(1))
    return total


@compiled
def compress_finite(bits, signs, kept, kept_signs):
    """Copy the finite elements to the front of `kept`, and their signs to that of `kept_signs`.

    Returns how many they are, how many NaNs there were, and how many -inf.
    """
    n = nan = negative_infinity = 0
    for i in range(bits.size):
        magnitude = bits[i] & MAGNITUDE
        if magnitude < INFINITY:
            kept[n] = bits[i]
            kept_signs[n] = signs[i]
            n += 1
        elif magnitude > INFINITY:
            nan += 1
        else:
            negative_infinity += np.int64(bits[i] >> np.uint32(31))
    return n, nan, negative_infinity


@compiled
def count_subnormals(bits, histogram):
    """Exact bins of the float32 subnormals, which are rare."""
    for i in range(bits.size):
        magnitude = bits[i] & MAGNITUDE
        if magnitude != np.uint32(0) and magnitude < np.uint32(0x800000):
            histogram[top_bit(magnitude)] += 1


@compiled
def top_bit(word):
    """The place of the highest bit that is set."""
    place = 0
    while (word >> np.uint32(place)) > np.uint32(1):
        place += 1
    return place
