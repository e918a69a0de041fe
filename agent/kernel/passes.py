"""The passes over one chunk of at most 8192 elements, which stays in cache through all of them."""

# The kernels take numba's typed values; their Python annotations would say nothing.
# Numba hides `carray` from type checkers; an intrinsic's first parameter is numba's to give.
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false

from __future__ import annotations

import numba
import numpy as np

from .compiling import address_of, compiled, prefetch
from .dtypes import BFLOAT16, FLOAT16, VALUES_16
from .moments import NO_SMALLEST

INFINITY = np.uint32(0x7F800000)
MAGNITUDE = np.uint32(0x7FFFFFFF)
"""All bits of a float32 but its sign."""

CODES = 512
"""Values of sign and exponent of a float32 together: bits 31 to 23."""


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
    else:
        first = VALUES_16[code] if code == FLOAT16 else code * 256
        for i in range(words.size):
            bits[i] = widened[first + words[i]]


@compiled
def extremes_of(signed):
    """Order-preserving keys of minimum and maximum; bits of the smallest non-zero |x|, less one."""
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    small = NO_SMALLEST
    for i in range(signed.size):
        u = signed[i]
        key = np.int32(u ^ ((u >> np.int32(31)) & np.int32(0x7FFFFFFF)))
        low, high = min(low, key), max(high, key)
        magnitude = np.int32(u & np.int32(0x7FFFFFFF))
        small = min(small, np.int32(np.int32(magnitude - np.int32(1)) & np.int32(0x7FFFFFFF)))
    return low, high, small


@compiled
def count_exponents(bits, tables, ahead, size):
    """Sign and exponent of each element, counted in four tables in turn.

    One table alone waits on equal values. Meanwhile as many elements of `size` bytes are fetched
    from the address `ahead`: this pass waits for no memory.
    """
    shift = np.uint32(23)
    n = bits.size
    whole = n & ~15
    for i in range(0, whole, 16):
        prefetch(ahead + i * size)
        for j in range(i, i + 16, 4):
            tables[0, bits[j] >> shift] += np.uint32(1)
            tables[1, bits[j + 1] >> shift] += np.uint32(1)
            tables[2, bits[j + 2] >> shift] += np.uint32(1)
            tables[3, bits[j + 3] >> shift] += np.uint32(1)
    for i in range(whole, n):
        tables[0, bits[i] >> shift] += np.uint32(1)


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

    Returns how many they are, how many NaNs there were, and how many of those were negative.
    """
    n = nan = negative_nan = 0
    for i in range(bits.size):
        magnitude = bits[i] & MAGNITUDE
        if magnitude < INFINITY:
            kept[n] = bits[i]
            kept_signs[n] = signs[i]
            n += 1
        elif magnitude > INFINITY:
            nan += 1
            negative_nan += np.int64(bits[i] >> np.uint32(31))
    return n, nan, negative_nan


@compiled
def count_subnormals(bits, histogram):
    """Exact bins of the float32 subnormals (rare); how many of them are negative."""
    negative = 0
    for i in range(bits.size):
        magnitude = bits[i] & MAGNITUDE
        if magnitude != np.uint32(0) and magnitude < np.uint32(0x800000):
            histogram[top_bit(magnitude)] += 1
            negative += np.int64(bits[i] >> np.uint32(31))
    return negative


@compiled
def top_bit(word):
    """The place of the highest bit that is set."""
    place = 0
    while (word >> np.uint32(place)) > np.uint32(1):
        place += 1
    return place
