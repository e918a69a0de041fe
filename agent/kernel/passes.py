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
    one, and the count. The exponents come in any order; after the last 255 follows, up to a whole
    number of `GROUP`s.
    """
    n, seen = bits.size, (np.int32(-0x80000000), np.uint32(0), NO_SMALLEST, np.int32(0))
    quarter, words = n // 4, exponents.view(np.uint32)
    first, second = bits[:quarter], bits[quarter : 2 * quarter]
    third, fourth = bits[2 * quarter : 3 * quarter], bits[3 * quarter : 4 * quarter]
    for i in range(quarter):
        a, b, c, d = first[i], second[i], third[i], fourth[i]
        words[i] = _four_exponents(a, b, c, d)
        seen = _seen(d, _seen(c, _seen(b, _seen(a, seen))))
    for i in range(4 * quarter, n):
        exponents[i] = np.uint8(bits[i] >> np.uint32(23))
        seen = _seen(bits[i], seen)
    for i in range(n, -(-n // GROUP) * GROUP):
        exponents[i] = np.uint8(255)
    most, highest, small, negative = seen
    low, high = np.int32(highest), most
    if low >= 0:  # all have no sign
        low = _least(bits.view(np.int32))
    if high < 0:  # all have one
        high = _least(bits.view(np.int32))
    return (_key(low), _key(high), small), np.int64(negative)


@compiled
def _four_exponents(a, b, c, d):
    """Four exponents, a byte each: whole vectors of words need no shuffles for it."""
    low = ((a >> np.uint32(23)) & np.uint32(0xFF)) | ((b >> np.uint32(15)) & np.uint32(0xFF00))
    high = ((c >> np.uint32(7)) & np.uint32(0xFF0000)) | (
        (d << np.uint32(1)) & np.uint32(0xFF << 24)
    )
    return np.uint32(low | high)


@compiled
def _seen(word, before):
    """What `scan` has seen with one more element: of signed integers the largest, of unsigned ones,
    the least magnitude less one, and how many are below zero.

    -0 is not: less one it has no sign.
    """
    most, highest, small, negative = before
    signed = np.int32(word)
    less = np.int32(signed - np.int32(1))
    below = np.int32(np.uint32(signed & less) >> np.uint32(31))
    small = min(small, np.int32(less & np.int32(0x7FFFFFFF)))
    return max(most, signed), max(highest, word), small, np.int32(negative + below)


@compiled
def _least(signed):
    """Of elements of one sign the smallest if they have none, else the largest."""
    least = np.int32(0x7FFFFFFF)
    for i in range(signed.size):
        least = min(least, signed[i])
    return least


@compiled
def _key(signed):
    """The order-preserving key of a float32's bits."""
    return np.int32(signed ^ ((signed >> np.int32(31)) & np.int32(0x7FFFFFFF)))


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
