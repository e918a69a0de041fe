"""The CPU kernel: sketches of a whole list of tensors in one call that holds no lock, with numba.

It agrees with `sketch.reference` bit for bit in counts, extremes, histogram and checksum. Tensors
are given as addresses, so that no framework is needed here. A chunk of 8192 elements stays in the
first-level cache through all its passes; 16- and 8-bit types are widened to float32 there.

Measured on this design (statistics.md, part II): the histogram costs 0.33 ns an element with four
interleaved tables (one table alone conflicts on equal values), integer keys keep the extremes
vectorised, and `reassoc` is the only freedom that the sums need. Never numba's parallel layer: it
changes torch's thread count. Threads of the caller's may share a call instead.
"""

# The kernels take numba's typed values; their Python annotations would say nothing.
# Numba hides `carray` from type checkers, and its decorator fills an intrinsic's first parameter.
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache

import ml_dtypes
import numba
import numpy as np
from numba import cfunc, njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from ..sketch.elements import BLOCK, WITHIN, block_key
from ..sketch.formats import dtype_named, smallest_normal
from ..sketch.table import (
    ABS_MIN,
    BINS,
    COUNT,
    COUNTS,
    FIRST_EXPONENT,
    L1,
    M2,
    M3,
    M4,
    MAX,
    MIN,
    MOMENTS,
    NAN,
    NEG_INF,
    NEGATIVE,
    POS_INF,
    PROJECTION,
    S8,
    SUBNORMAL,
    SUM,
    ZERO,
    SketchTable,
)

PIECE = 1 << 17
"""Elements of a work item: larger tensors are cut, so that threads can share them."""

Team = Callable[[int, int], object]
"""Runs the C function at an address with one pointer, on several threads, and waits for all."""

DTYPES = (
    "float32",
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)
"""What the kernel reads; the index is the `code` of a work item."""

LAYOUT = 0xA169DDF5
"""CRC-32 of what is compiled in of other files (a test computes it): numba's cache on disk is
renewed only when this file changes, so a change there must change it."""

SUBNORMALS = 23
"""Binades below float32's smallest normal number: bins 0 to 22 of the histogram."""

_COUNTS, _MOMENTS = len(COUNTS), len(MOMENTS)

_INF = np.uint32(0x7F800000)
_MAX_KEY = np.int32(0x7F7FFFFF)
"""Order-preserving key of float32's largest number; that of its negative is `_MIN_KEY`."""
_MIN_KEY = np.int32(-0x7F800000)
NO_SMALLEST = np.int32(0x7FFFFFFF)
"""What `_extremes` gives for the smallest where all elements are zero."""
_ABS = np.uint32(0x7FFFFFFF)


def _widening_tables() -> NDArray[np.uint32]:
    """float32 bits of every 8-bit and float16 value: 256 for each code, float16 behind them."""
    tables = np.zeros(FLOAT16_TABLE + 65536, np.uint32)
    with np.errstate(invalid="ignore"):
        for code, name in enumerate(DTYPES):
            if name.startswith("float8"):
                values = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))
                tables[code * 256 : (code + 1) * 256] = values.astype(np.float32).view(np.uint32)
        values = np.arange(65536, dtype=np.uint16).view(np.float16)
        tables[FLOAT16_TABLE:] = values.astype(np.float32).view(np.uint32)
    return tables


FLOAT16_TABLE = 256 * len(DTYPES)
_TABLES = _widening_tables()
_FIRST_NORMAL = np.array(
    [int(np.log2(smallest_normal(dtype_named(name)))) - FIRST_EXPONENT for name in DTYPES],
    np.int64,
)
"""Bin of the smallest normal number of each dtype: what lies below is subnormal."""


@intrinsic
def _address(typing_context, number):
    """An integer as the address of memory."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(number), codegen


@intrinsic
def _take_next(typing_context, address):
    """The int64 at an address, which becomes one more; of several threads each gets another."""

    def codegen(context, builder, signature, arguments):
        word = cgutils.ir.IntType(64)
        place = builder.inttoptr(arguments[0], word.as_pointer())
        return builder.atomic_rmw("add", place, word(1), "monotonic")

    return types.int64(types.int64), codegen


@intrinsic
def _prefetch(typing_context, address):
    """Ask for the cache line at an address, which may lie outside of any array."""

    def codegen(context, builder, signature, arguments):
        word, pointer = cgutils.ir.IntType(32), cgutils.voidptr_t
        kind = cgutils.ir.FunctionType(cgutils.ir.VoidType(), (pointer, word, word, word))
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        place = builder.inttoptr(arguments[0], pointer)
        builder.call(function, (place, word(0), word(3), word(1)))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _compiled(*, reorder: bool = False):
    """The numba decorator of this file: no lock held, cached on disk.

    The cache of a function is renewed when its own file changes, not when one that it calls does in
    another: so all of them stay in this file, and `LAYOUT` says what they know of others.
    """
    return njit(
        nogil=True, cache=True, fastmath={"reassoc", "nsz", "contract"} if reorder else False
    )


@_compiled()
def _widen(address, start, length, code, tables, words, bits):
    """The raw elements as 32-bit words, and their values as float32 bits.

    Values go by table, since arithmetic could flush float32 subnormals.
    """
    if code <= 2:
        half = numba.carray(_address(address + 2 * start), (length,), np.uint16)
        for i in range(length):
            words[i] = half[i]
    else:
        byte = numba.carray(_address(address + start), (length,), np.uint8)
        for i in range(length):
            words[i] = byte[i]
    if code == 1:
        for i in range(length):
            bits[i] = words[i] << np.uint32(16)
    else:
        first = FLOAT16_TABLE if code == 2 else code * 256
        for i in range(length):
            bits[i] = tables[first + words[i]]


@_compiled()
def _count_exponents(bits, tables, ahead, size):
    """Sign and exponent of each element, counted in four tables in turn.

    Meanwhile as many elements of `size` bytes are fetched from the address `ahead`: this pass waits
    for no memory.
    """
    shift = np.uint32(23)
    n = bits.size
    whole = n & ~15
    for i in range(0, whole, 16):
        _prefetch(ahead + i * size)
        for j in range(i, i + 16, 4):
            tables[0, bits[j] >> shift] += np.uint32(1)
            tables[1, bits[j + 1] >> shift] += np.uint32(1)
            tables[2, bits[j + 2] >> shift] += np.uint32(1)
            tables[3, bits[j + 3] >> shift] += np.uint32(1)
    for i in range(whole, n):
        tables[0, bits[i] >> shift] += np.uint32(1)


@_compiled()
def _extremes(signed):
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


@_compiled(reorder=True)
def _plain_sum(values):
    total = 0.0
    for i in range(values.size):
        total += np.float64(values[i])
    return total


@_compiled(reorder=True)
def _power_sums(values, signs, pivot, unit):
    """Σd, Σd², Σd³, Σd⁴ about the pivot, Σ|x|, Σ(x·unit)⁸, and Σ ±x with the signs."""
    s1 = s2 = s3 = s4 = l1 = s8 = projection = 0.0
    for i in range(values.size):
        v = np.float64(values[i])
        projection += v * np.float64(signs[i])
        l1 += abs(v)
        d = v - pivot
        square = d * d
        s1 += d
        s2 += square
        s3 += square * d
        s4 += square * square
        u = v * unit
        u *= u
        u *= u
        s8 += u * u
    return s1, s2, s3, s4, l1, s8, projection


@_compiled()
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


@_compiled()
def _keyed_words(words, within, key):
    """`_keyed_pairs` of any number of elements."""
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


@_compiled()
def _compress_finite(bits, signs, kept, kept_signs):
    """Copy the finite elements to the front of `kept`, and their signs to that of `kept_signs`.

    Returns how many they are, how many NaNs there were, and how many of those were negative.
    """
    n = nan = negative_nan = 0
    for i in range(bits.size):
        magnitude = bits[i] & _ABS
        if magnitude < _INF:
            kept[n] = bits[i]
            kept_signs[n] = signs[i]
            n += 1
        elif magnitude > _INF:
            nan += 1
            negative_nan += np.int64(bits[i] >> np.uint32(31))
    return n, nan, negative_nan


@_compiled()
def _count_subnormals(bits, histogram):
    """Exact bins of the float32 subnormals (rare); how many of them are negative."""
    negative = 0
    for i in range(bits.size):
        magnitude = bits[i] & _ABS
        if magnitude != np.uint32(0) and magnitude < np.uint32(0x800000):
            exponent = 0
            while (magnitude >> np.uint32(exponent)) > np.uint32(1):
                exponent += 1
            histogram[exponent] += 1
            negative += np.int64(bits[i] >> np.uint32(31))
    return negative


@_compiled()
def _float_of_key(key, word):
    """The float32 of an order-preserving key."""
    word.view(np.int32)[0] = key ^ ((key >> np.int32(31)) & np.int32(0x7FFFFFFF))
    return np.float64(word.view(np.float32)[0])


@_compiled()
def _exponent(magnitude):
    """floor(log2) of a magnitude; -1200 for zero, as `sketch.table.scale_exponent`."""
    return math.frexp(magnitude)[1] - 1 if magnitude > 0.0 else -1200


@_compiled()
def _merge_moments(a, na, b, nb):
    """Merge the moments `b` of nb finite elements into `a` of na: the merge of `SketchTable`."""
    if nb == 0:
        return
    if na == 0:
        a[:] = b
        return
    n = np.float64(na + nb)
    na, nb = np.float64(na), np.float64(nb)
    d = b[SUM] / nb - a[SUM] / na
    dn, weight = d / n, na * nb / n
    a[M4] += (
        b[M4]
        + d * dn * dn * d * weight * (na * na - na * nb + nb * nb)
        + 6 * dn * dn * (na * na * b[M2] + nb * nb * a[M2])
        + 4 * dn * (na * b[M3] - nb * a[M3])
    )
    a[M3] += b[M3] + d * dn * d * weight * (na - nb) + 3 * dn * (na * b[M2] - nb * a[M2])
    a[M2] += b[M2] + d * d * weight
    mine, theirs = _exponent(max(-a[MIN], a[MAX])), _exponent(max(-b[MIN], b[MAX]))
    common = max(mine, theirs)
    a[S8] = math.ldexp(a[S8], 8 * (mine - common)) + math.ldexp(b[S8], 8 * (theirs - common))
    a[SUM] += b[SUM]
    a[L1] += b[L1]
    a[PROJECTION] += b[PROJECTION]
    a[MIN], a[MAX] = min(a[MIN], b[MIN]), max(a[MAX], b[MAX])
    a[ABS_MIN] = min(a[ABS_MIN], b[ABS_MIN])


@_compiled()
def _chunk_moments(values, signs, extremes, known_mean, known, word, moments):
    """The moments of finite elements, as one chunk about the known mean, or one of its own."""
    n = values.size
    low, high, small = extremes
    moments[MIN], moments[MAX] = _float_of_key(low, word), _float_of_key(high, word)
    moments[ABS_MIN] = np.inf
    if small != NO_SMALLEST:
        moments[ABS_MIN] = _float_of_key(np.int32(small + np.int32(1)), word)
    unit = 1.0
    if small != NO_SMALLEST:
        unit = math.ldexp(1.0, -_exponent(max(-moments[MIN], moments[MAX])))
    pivot = known_mean if known else _plain_sum(values) / n
    s1, s2, s3, s4, moments[L1], moments[S8], moments[PROJECTION] = _power_sums(
        values, signs, pivot, unit
    )
    shift = s1 / n
    moments[SUM] = s1 + n * pivot
    moments[M2] = max(s2 - s1 * shift, 0.0)
    moments[M3] = s3 - 3 * shift * s2 + 2 * n * shift**3
    moments[M4] = max(s4 - 4 * shift * s3 + 6 * shift * shift * s2 - 3 * n * shift**4, 0.0)


@_compiled()
def _sketch_item(item, constants, scratch, counts, moments, histogram):
    """One work item into its row; returns the checksum."""
    address, start, length, code = item[0], item[1], item[2], item[3]
    within, within_signs, keys, widening = constants
    wide, raw, kept, kept_signs, tables, chunk_moments, word = scratch
    size = 4 if code == 0 else 2 if code <= 2 else 1
    tables[:] = 0
    checksum = np.uint64(0)
    finite = nan = negative_nan = negative_subnormals = 0
    for begin in range(start, start + length, BLOCK):
        n, key = min(BLOCK, start + length - begin), keys[begin // BLOCK]
        if code == 0:
            words = bits = numba.carray(_address(address + 4 * begin), (n,), np.uint32)
        else:
            words, bits = raw[:n], wide[:n]
            _widen(address, begin, n, code, widening, words, bits)
        checksum += _keyed_words(words, within[:n], key)
        _count_exponents(bits, tables, address + size * (begin + BLOCK), size)
        extremes = _extremes(bits.view(np.int32))
        if extremes[2] < np.int32(0x7FFFFF):
            negative_subnormals += _count_subnormals(bits, histogram)
        m, signs = n, within_signs[:n]
        if extremes[0] < _MIN_KEY or extremes[1] > _MAX_KEY:
            m, more, negative = _compress_finite(bits, signs, kept, kept_signs)
            nan += more
            negative_nan += negative
            bits, signs = kept[:m], kept_signs[:m]
            extremes = _extremes(bits.view(np.int32))
        if m:
            mean, known = (moments[SUM] / finite, True) if finite else (0.0, False)
            values = bits.view(np.float32)
            _chunk_moments(values, signs, extremes, mean, known, word, chunk_moments)
            if key & ~_ABS:
                chunk_moments[PROJECTION] = -chunk_moments[PROJECTION]
            _merge_moments(moments, finite, chunk_moments, m)
        finite += m
    _fill_counts(length, nan, negative_nan, negative_subnormals, code, tables, counts, histogram)
    return checksum


@_compiled()
def _fill_counts(length, nan, negative_nan, negative_subnormals, code, tables, counts, histogram):
    """Counts and normal bins from the four tables of signs and exponents."""
    subnormals = 0
    for i in range(SUBNORMALS):
        subnormals += histogram[i]
    negative = negative_subnormals
    for e in range(1, 255):
        positives = negatives = 0
        for t in range(4):
            positives += np.int64(tables[t, e])
            negatives += np.int64(tables[t, 256 + e])
        histogram[SUBNORMALS + e - 1] = positives + negatives
        negative += negatives
    ends = np.zeros(4, np.int64)
    for t in range(4):
        ends[0] += np.int64(tables[t, 0])
        ends[1] += np.int64(tables[t, 256])
        ends[2] += np.int64(tables[t, 255])
        ends[3] += np.int64(tables[t, 511])
    counts[COUNT] = length
    counts[NAN] = nan
    counts[POS_INF] = ends[2] - (nan - negative_nan)
    counts[NEG_INF] = ends[3] - negative_nan
    counts[ZERO] = ends[0] + ends[1] - subnormals
    counts[NEGATIVE] = negative
    below = 0
    for i in range(_FIRST_NORMAL[code]):
        below += histogram[i]
    counts[SUBNORMAL] = below


def _sketch_items(pointer):
    """Work items (address, start, length, code) into their rows, until none is left.

    `pointer` is that of int64 [12]: a counter, the numbers of items and keys, and the addresses of
    the arrays. Threads that are given the same one share the work.
    """
    task = numba.carray(pointer, (12,))
    n = task[1]
    items = numba.carray(_address(task[3]), (n, 4), np.int64)
    constants = (
        numba.carray(_address(task[4]), (BLOCK,), np.uint32),
        numba.carray(_address(task[5]), (BLOCK,), np.float32),
        numba.carray(_address(task[6]), (task[2],), np.uint32),
        numba.carray(_address(task[7]), (FLOAT16_TABLE + 65536,), np.uint32),
    )
    counts = numba.carray(_address(task[8]), (n, _COUNTS), np.int64)
    moments = numba.carray(_address(task[9]), (n, _MOMENTS), np.float64)
    checksum = numba.carray(_address(task[10]), (n,), np.uint64)
    histogram = numba.carray(_address(task[11]), (n, BINS), np.int64)
    scratch = (
        np.empty(BLOCK, np.uint32),
        np.empty(BLOCK, np.uint32),
        np.empty(BLOCK, np.uint32),
        np.empty(BLOCK, np.float32),
        np.empty((4, 512), np.uint32),
        np.empty(_MOMENTS),
        np.empty(1, np.uint32),
    )
    counter = task.ctypes.data
    for _ in range(n):
        i = _take_next(counter)
        if i >= n:
            break
        checksum[i] = _sketch_item(
            items[i], constants, scratch, counts[i], moments[i], histogram[i]
        )


@cache
def _c_function():
    """`_sketch_items` as a C function: what owns it, what Python calls, and where it lies.

    Compiled at its first use, or loaded from disk.
    """
    compiled = cfunc(types.void(types.CPointer(types.int64)), nopython=True, cache=True)
    function = compiled(_sketch_items)
    return function, function.ctypes, function.address


@_compiled()
def _absorb(
    rows,
    keep,
    leaf_counts,
    leaf_moments,
    leaf_checksum,
    leaf_histogram,
    counts,
    moments,
    checksum,
    histogram,
):
    for i in range(rows.size):
        if not keep[i]:
            continue
        r = rows[i]
        mine = counts[r, COUNT] - counts[r, NAN] - counts[r, POS_INF] - counts[r, NEG_INF]
        theirs = (
            leaf_counts[i, COUNT]
            - leaf_counts[i, NAN]
            - leaf_counts[i, POS_INF]
            - leaf_counts[i, NEG_INF]
        )
        _merge_moments(moments[r], mine, leaf_moments[i], theirs)
        for j in range(counts.shape[1]):
            counts[r, j] += leaf_counts[i, j]
        checksum[r] += leaf_checksum[i]
        for j in range(histogram.shape[1]):
            histogram[r, j] += leaf_histogram[i, j]


_keys = block_key(np.arange(1024, dtype=np.uint64))
_signs = np.where(WITHIN >> np.uint32(31), -1, 1).astype(np.float32)
"""Projection signs within a block; the top bit of the block's key turns all of them."""


def sketch_items(items: NDArray[np.int64], team: Team | None = None) -> SketchTable:
    """Sketch tensors by their addresses, which must stay valid during the call.

    Args:
        items: int64 [n, 4]: address of the tensor's first element, index of the item's first
            element (a multiple of `PIECE`), number of elements, index into `DTYPES`.
        team: threads that share the work; the result is the same to the last bit.

    Returns:
        A table of n rows.

    Raises:
        MemoryError: there is none left.
    """
    global _keys
    table = SketchTable.empty(len(items))
    if not len(items):
        return table
    blocks = int((items[:, 1] + items[:, 2]).max()) // BLOCK + 1
    keys = _keys  # another thread may put longer or shorter ones there
    if blocks > len(keys):
        keys = _keys = block_key(np.arange(2 * blocks, dtype=np.uint64))
    tensors = np.ascontiguousarray(items)
    arrays = (tensors, WITHIN, _signs, keys, _TABLES, *table.columns())
    task = np.array([0, len(items), len(keys), *(a.ctypes.data for a in arrays)], np.int64)
    _, function, address = _c_function()
    if team is None:
        function(task.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)))
    else:
        team(address, task.ctypes.data)
    if task[0] < len(items):  # a C function raises nothing
        raise MemoryError("The kernel found no memory for its scratch.")
    return table


def absorb(
    table: SketchTable, rows: NDArray[np.int64], leaf: SketchTable, keep: NDArray[np.bool_]
) -> None:
    """`table.merge_at(rows[keep], leaf.take(keep))`, without its temporaries."""
    _absorb(rows, keep, *leaf.columns(), *table.columns())


def cut(address: int, elements: int, code: int) -> Sequence[tuple[int, int, int, int]]:
    """The work items of one contiguous tensor: pieces of at most `PIECE` elements."""
    return [
        (address, start, min(PIECE, elements - start), code) for start in range(0, elements, PIECE)
    ]
