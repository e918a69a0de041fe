"""Sketches in Triton: one program reads one chunk of a tensor, another merges chunks.

All arithmetic on values is in float64, as in `sketch.reference`. Sums use no atomics, so the same
tensors give the same bits again. A program goes through its chunk tile by tile, and merges the
central moments of each tile with those before.
"""

# Triton reads these functions: constants reach them as `tl.constexpr`, and types are its own.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportReturnType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import triton
import triton.language as tl

from ....sketch import table
from ....sketch.elements import BLOCK as ELEMENT_BLOCK
from ..tables import RUN, WORK

TILE = 1024
"""Elements that a program holds at a time; `ELEMENT_BLOCK` is a multiple of it."""

NUMBERS = (
    "in_table",
    "address",
    "length",
    "size",
    "leaf",
    "first_normal",
    "origin",
    "run",
    "pitch",
)
"""Arguments for whose values no kernel is compiled anew."""

KINDS = {"float64": 0, "float32": 1, "bfloat16": 2, "float16": 3}
"""How elements are told to the kernel; others are bytes that a table of values explains."""
BYTES = 4

_TILE = tl.constexpr(TILE)
_WORK = tl.constexpr(WORK)
_RUN = tl.constexpr(RUN)
_BLOCK = tl.constexpr(ELEMENT_BLOCK)
_BINS = tl.constexpr(table.BINS)
_SLOTS = tl.constexpr(512)
_FIRST_FIELD = tl.constexpr(1023 + table.FIRST_EXPONENT)
_SPECIAL = tl.constexpr(2047)
_FLOAT64 = tl.constexpr(KINDS["float64"])
_FLOAT32 = tl.constexpr(KINDS["float32"])
_BFLOAT16 = tl.constexpr(KINDS["bfloat16"])
_FLOAT16 = tl.constexpr(KINDS["float16"])

_COUNTS = tl.constexpr(len(table.COUNTS))
_COUNT = tl.constexpr(table.COUNT)
_NAN = tl.constexpr(table.NAN)
_POS_INF = tl.constexpr(table.POS_INF)
_NEG_INF = tl.constexpr(table.NEG_INF)
_ZERO = tl.constexpr(table.ZERO)
_NEGATIVE = tl.constexpr(table.NEGATIVE)
_SUBNORMAL = tl.constexpr(table.SUBNORMAL)
_UNDER = tl.constexpr(table.UNDER)
_OVER = tl.constexpr(table.OVER)
_UNBINNED = tl.constexpr(table.UNBINNED)
_NOTHING = tl.constexpr(511 - table.BINS)
"""The slots of a tile's histogram are the bins, then the columns of counts; the last is unused."""

_MOMENTS = tl.constexpr(len(table.MOMENTS))
_SUM = tl.constexpr(table.SUM)
_L1 = tl.constexpr(table.L1)
_M2 = tl.constexpr(table.M2)
_M3 = tl.constexpr(table.M3)
_M4 = tl.constexpr(table.M4)
_S8 = tl.constexpr(table.S8)
_PROJECTION = tl.constexpr(table.PROJECTION)
_MIN = tl.constexpr(table.MIN)
_MAX = tl.constexpr(table.MAX)
_ABS_MIN = tl.constexpr(table.ABS_MIN)


@triton.jit
def exponent_of(magnitude):
    """floor(log2) of a float64 that is not negative; -1200 of zero."""
    small = magnitude < 2.2250738585072014e-308
    bits = tl.where(small, magnitude * 18014398509481984.0, magnitude).to(tl.int64, bitcast=True)
    exponent = ((bits >> 52) & 2047) - 1023 - tl.where(small, 54, 0)
    return tl.where(magnitude > 0, exponent, -1200)


@triton.jit
def power_of_two(exponent):
    """2^exponent as float64, for exponents of its normal numbers."""
    return ((exponent + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def shifted(s8, exponent):
    """s8 · 2^(8·exponent), for exponents <= 0 of any size."""
    return s8 * power_of_two(tl.maximum(8 * exponent, -1022))


@triton.jit
def merged_moments(na, a1, a2, a3, a4, a8, most_a, nb, b1, b2, b3, b4, b8, most_b):
    """Sums, central moments and eighth moments of na + nb finite elements.

    `most_a` and `most_b` are the largest magnitudes, from which the scale of the eighth follows.
    """
    n = tl.maximum(na + nb, 1.0)
    d = b1 / tl.maximum(nb, 1.0) - a1 / tl.maximum(na, 1.0)
    d = tl.where((na > 0) & (nb > 0), d, 0.0)
    dn = d / n
    weight = na * nb / n
    fourth = d * dn * dn * d * weight * (na * na - na * nb + nb * nb)
    fourth += 6 * dn * dn * (na * na * b2 + nb * nb * a2) + 4 * dn * (na * b3 - nb * a3)
    third = d * dn * d * weight * (na - nb) + 3 * dn * (na * b2 - nb * a2)
    mine, theirs = exponent_of(most_a), exponent_of(most_b)
    common = tl.maximum(mine, theirs)
    eighth = shifted(a8, mine - common) + shifted(b8, theirs - common)
    return a1 + b1, a2 + b2 + d * d * weight, a3 + b3 + third, a4 + b4 + fourth, eighth


@triton.jit
def block_key(block):
    """int64: `sketch.elements.block_key`, of int64."""
    z = block - 7046029254386353131  # 0x9E3779B97F4A7C15
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685  # 0x94D049BB133111EB
    return ((z ^ ((z >> 31) & 0x1FFFFFFFF)) >> 32) & 0xFFFFFFFF


@triton.jit
def key_of(tile, lanes, within, origin, run, pitch, IS_PIECE: tl.constexpr):
    """int64 [TILE]: `sketch.elements.element_hash` of the elements from `tile` on."""
    if IS_PIECE:
        place = tile + lanes
        index = origin + place // run * pitch + place % run
        key = tl.load(within + index % _BLOCK) ^ block_key(index // _BLOCK)
    else:
        key = tl.load(within + tile % _BLOCK + lanes) ^ block_key(tile // _BLOCK)
    return key


@triton.jit
def load_elements(address, offsets, inside, values, KIND: tl.constexpr):
    """The elements at `offsets`: as float64, and their bits as int64. `values` is for bytes."""
    if KIND == _FLOAT64:
        bits = tl.load(address.to(tl.pointer_type(tl.int64)) + offsets, mask=inside, other=0)
        x = bits.to(tl.float64, bitcast=True)
    elif KIND == _FLOAT32:
        raw = tl.load(address.to(tl.pointer_type(tl.int32)) + offsets, mask=inside, other=0)
        bits = raw.to(tl.int64) & 0xFFFFFFFF
        x = raw.to(tl.float32, bitcast=True).to(tl.float64)
    elif KIND == _BFLOAT16:
        raw = tl.load(address.to(tl.pointer_type(tl.int16)) + offsets, mask=inside, other=0)
        bits = raw.to(tl.int64) & 0xFFFF
        x = (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True).to(tl.float64)
    elif KIND == _FLOAT16:
        raw = tl.load(address.to(tl.pointer_type(tl.int16)) + offsets, mask=inside, other=0)
        bits = raw.to(tl.int64) & 0xFFFF
        x = raw.to(tl.float16, bitcast=True).to(tl.float64)
    else:
        raw = tl.load(address.to(tl.pointer_type(tl.uint8)) + offsets, mask=inside, other=0)
        bits = raw.to(tl.int64)
        x = tl.load(values + bits)
    return x, bits


@triton.jit
def slots_of(x, inside):
    """The slot of each element: the bin of its exponent, or the column of counts that it is in."""
    bits = x.to(tl.int64, bitcast=True)
    field = (bits >> 52) & _SPECIAL
    no_fraction = (bits & 0xFFFFFFFFFFFFF) == 0
    slot = field - _FIRST_FIELD
    slot = tl.where(slot < 0, _BINS + _UNDER, tl.where(slot >= _BINS, _BINS + _OVER, slot))
    slot = tl.where((field == 0) & no_fraction, _BINS + _ZERO, slot)
    infinite = tl.where(bits < 0, _BINS + _NEG_INF, _BINS + _POS_INF)
    slot = tl.where(field == _SPECIAL, tl.where(no_fraction, infinite, _BINS + _NAN), slot)
    return tl.where(inside, slot, _BINS + _NOTHING).to(tl.int32)


@triton.jit
def tile_moments(v, finite):
    """How many elements are finite, and of these the sum, central moments, eighth and largest."""
    n = tl.sum(finite.to(tl.int32)).to(tl.float64)
    total = tl.sum(v)
    largest = tl.max(tl.abs(v))
    d = tl.where(finite, v - total / tl.maximum(n, 1.0), 0.0)
    square = d * d
    shift = -exponent_of(largest)
    half = shift >> 1  # in two steps: float64's subnormals need more than one factor can hold
    scaled = v * power_of_two(half) * power_of_two(shift - half)
    scaled = scaled * scaled
    scaled = scaled * scaled
    m2, m3, m4 = tl.sum(square), tl.sum(square * d), tl.sum(square * square)
    return n, total, m2, m3, m4, tl.sum(scaled * scaled), largest


@triton.jit
def store_counts(row, elements, found, negative, tiny, first_normal):
    """Write a row of counts; `found` are the elements by slot."""
    slots = tl.arange(0, _SLOTS)
    column = slots - _BINS
    counted = (column > _COUNT) & (column < _COUNTS)
    counted &= (column != _NEGATIVE) & (column != _SUBNORMAL)
    tl.store(row + column, found, mask=counted)  # no slot is unbinned or unseen
    subnormal = tl.sum(tl.where(slots < first_normal, found, 0))
    tl.store(row + _COUNT, elements)
    tl.store(row + _NEGATIVE, tl.sum(negative.to(tl.int64)))
    tl.store(row + _SUBNORMAL, subnormal + tl.sum(tiny.to(tl.int64)))


@triton.jit
def store_moments(row, a1, absolute, a2, a3, a4, a8, projection, least, most, smallest):
    """Write a row of moments."""
    tl.store(row + _SUM, a1)
    tl.store(row + _L1, absolute)
    tl.store(row + _M2, a2)
    tl.store(row + _M3, a3)
    tl.store(row + _M4, a4)
    tl.store(row + _S8, a8)
    tl.store(row + _PROJECTION, projection)
    tl.store(row + _MIN, least)
    tl.store(row + _MAX, most)
    tl.store(row + _ABS_MIN, smallest)


@triton.jit
def chunk_of(in_table, work, address, length, size, leaf):
    """Address of the tensor, first element and end of this program's chunk, and its leaf.

    Args:
        in_table: 1 where `work` says what to read; else program p reads the p-th `size` elements
            of the tensor at `address`, which has `length`, and writes row `leaf` + p.
        work: int64 [chunks, WORK].
    """
    program = tl.program_id(0).to(tl.int64)
    address = address.to(tl.int64)
    start = program * size
    stop = tl.minimum(start + size, length.to(tl.int64))
    leaf = leaf.to(tl.int64) + program
    if in_table == 1:
        work += program * _WORK
        address, start = tl.load(work), tl.load(work + 1)
        stop, leaf = tl.load(work + 2), tl.load(work + 3)
    return address, start, stop, leaf


@triton.jit
def region_of(in_table, work, origin, run, pitch, IS_PIECE: tl.constexpr):
    """The region of a piece: as it was given, or as `work` has it."""
    origin, run, pitch = origin.to(tl.int64), run.to(tl.int64), pitch.to(tl.int64)
    if IS_PIECE and in_table == 1:
        region = work + tl.program_id(0).to(tl.int64) * _WORK + 4
        origin, run, pitch = tl.load(region), tl.load(region + 1), tl.load(region + 2)
    return origin, run, pitch


@triton.jit(do_not_specialize=NUMBERS)
def sketch_chunks(
    in_table,
    work,
    address,
    length,
    size,
    leaf,
    within,
    values,
    counts,
    moments,
    checksum,
    histogram,
    first_normal,
    origin,
    run,
    pitch,
    KIND: tl.constexpr,
    IS_PIECE: tl.constexpr,
):
    """Write the sketch of a chunk into row `leaf` of the columns; arguments as of `chunk_of`.

    Args:
        within: int64 [ELEMENT_BLOCK]: the part of the elements' keys that repeats.
        values: float64 [256]: the numbers that bytes stand for, if KIND says bytes.
        first_normal: bin of the smallest normal number of the dtype.
        origin, run, pitch: of a piece its region, see `sketch.elements.Region`; it may be in
            `work` instead.
    """
    origin, run, pitch = region_of(in_table, work, origin, run, pitch, IS_PIECE)
    address, start, stop, leaf = chunk_of(in_table, work, address, length, size, leaf)
    lanes = tl.arange(0, _TILE)
    found = tl.zeros((_SLOTS,), tl.int64)
    negative, tiny = tl.zeros((_TILE,), tl.int32), tl.zeros((_TILE,), tl.int32)
    absolute, projection = tl.zeros((_TILE,), tl.float64), tl.zeros((_TILE,), tl.float64)
    weighted = tl.zeros((_TILE,), tl.int64)
    least = tl.full((_TILE,), float("inf"), tl.float64)
    most = tl.full((_TILE,), float("-inf"), tl.float64)
    smallest = tl.full((_TILE,), float("inf"), tl.float64)
    na = tl.sum(tl.zeros((_TILE,), tl.float64))
    a1, a2, a3, a4, a8, most_a = na, na, na, na, na, na
    for number_of_tile in range(tl.cdiv(stop - start, _TILE)):
        tile = start + number_of_tile * _TILE
        inside = tile + lanes < stop
        x, bits = load_elements(address, tile + lanes, inside, values, KIND)
        key = key_of(tile, lanes, within, origin, run, pitch, IS_PIECE)
        weighted += bits * (key | 1)
        slot = slots_of(x, inside)
        found += tl.histogram(slot, _SLOTS)
        finite = (slot < _BINS) | (slot == _BINS + _ZERO)
        finite |= (slot == _BINS + _UNDER) | (slot == _BINS + _OVER)
        number = finite & (slot != _BINS + _ZERO)
        v = tl.where(finite, x, 0.0)
        negative += (number & (v < 0)).to(tl.int32)
        if KIND == _FLOAT64:  # the only ones that no bin holds
            tiny += (number & (tl.abs(v) < 2.2250738585072014e-308)).to(tl.int32)
        absolute += tl.abs(v)
        projection += tl.where((key >> 31) & 1 == 1, -v, v)
        least = tl.minimum(least, tl.where(finite, x, float("inf")))
        most = tl.maximum(most, tl.where(finite, x, float("-inf")))
        smallest = tl.minimum(smallest, tl.where(number, tl.abs(v), float("inf")))
        nb, b1, b2, b3, b4, b8, most_b = tile_moments(v, finite)
        a1, a2, a3, a4, a8 = merged_moments(
            na, a1, a2, a3, a4, a8, most_a, nb, b1, b2, b3, b4, b8, most_b
        )
        na += nb
        most_a = tl.maximum(most_a, most_b)
    slots = tl.arange(0, _SLOTS)
    tl.store(histogram + leaf * _BINS + slots, found, mask=slots < _BINS)
    tl.store(checksum + leaf, tl.sum(weighted))
    store_counts(counts + leaf * _COUNTS, stop - start, found, negative, tiny, first_normal)
    sums = tl.sum(absolute), tl.sum(projection)
    extremes = tl.min(least), tl.max(most), tl.min(smallest)
    row = moments + leaf * _MOMENTS
    store_moments(row, a1, sums[0], a2, a3, a4, a8, sums[1], extremes[0], extremes[1], extremes[2])


@triton.jit(do_not_specialize=NUMBERS)
def glance_chunks(
    in_table,
    work,
    address,
    length,
    size,
    leaf,
    within,
    values,
    counts,
    moments,
    checksum,
    histogram,
    first_normal,
    origin,
    run,
    pitch,
    KIND: tl.constexpr,
    IS_PIECE: tl.constexpr,
    COMPARED: tl.constexpr,
):
    """Write what a sentinel sees of a chunk into row `leaf`; arguments as of `sketch_chunks`.

    Args:
        COMPARED: whether its checksum, too.
    """
    origin, run, pitch = region_of(in_table, work, origin, run, pitch, IS_PIECE and COMPARED)
    address, start, stop, leaf = chunk_of(in_table, work, address, length, size, leaf)
    lanes = tl.arange(0, _TILE)
    nan, above = tl.zeros((_TILE,), tl.int32), tl.zeros((_TILE,), tl.int32)
    below, weighted = tl.zeros((_TILE,), tl.int32), tl.zeros((_TILE,), tl.int64)
    infinity = tl.full((_TILE,), float("inf"), tl.float64 if KIND == _FLOAT64 else tl.float32)
    least, most = infinity, -infinity
    for number_of_tile in range(tl.cdiv(stop - start, _TILE)):
        tile = start + number_of_tile * _TILE
        inside = tile + lanes < stop
        x, bits = load_elements(address, tile + lanes, inside, values, KIND)
        x = x.to(infinity.dtype)
        if COMPARED:
            weighted += bits * (key_of(tile, lanes, within, origin, run, pitch, IS_PIECE) | 1)
        nan += (inside & (x != x)).to(tl.int32)
        above += (inside & (x == infinity)).to(tl.int32)
        below += (inside & (x == -infinity)).to(tl.int32)
        finite = inside & (tl.abs(x) < infinity)
        least = tl.minimum(least, tl.where(finite, x, infinity))
        most = tl.maximum(most, tl.where(finite, x, -infinity))
    slots, columns = tl.arange(0, _SLOTS), tl.arange(0, 16)
    tl.store(histogram + leaf * _BINS + slots, tl.zeros((_SLOTS,), tl.int64), mask=slots < _BINS)
    tl.store(checksum + leaf, tl.sum(weighted))
    nans, aboves = tl.sum(nan.to(tl.int64)), tl.sum(above.to(tl.int64))
    belows = tl.sum(below.to(tl.int64))
    found = tl.where(columns == _COUNT, stop - start, 0) + tl.where(columns == _NAN, nans, 0)
    found += tl.where(columns == _POS_INF, aboves, 0) + tl.where(columns == _NEG_INF, belows, 0)
    found += tl.where(columns == _UNBINNED, stop - start - nans - aboves - belows, 0)
    tl.store(counts + leaf * _COUNTS + columns, found, mask=columns < _COUNTS)
    extremes = tl.min(least).to(tl.float64), tl.max(most).to(tl.float64)
    nothing = tl.sum(tl.zeros((_TILE,), tl.float64))
    row = moments + leaf * _MOMENTS
    store_moments(
        row, nothing, nothing, nothing, nothing, nothing, nothing, nothing,
        extremes[0], extremes[1], float("inf"),
    )  # fmt: skip


@triton.jit
def measured_count(row):
    """float64: how many finite elements are in the sums, of a row of counts."""
    bad = tl.load(row + _NAN) + tl.load(row + _POS_INF) + tl.load(row + _NEG_INF)
    return (tl.load(row + _COUNT) - bad - tl.load(row + _UNBINNED)).to(tl.float64)


@triton.jit
def load_moments(row, times):
    """A row of moments, its sums multiplied by `times`."""
    a1, absolute, a2 = tl.load(row + _SUM), tl.load(row + _L1), tl.load(row + _M2)
    a3, a4, a8 = tl.load(row + _M3), tl.load(row + _M4), tl.load(row + _S8)
    projection = times * tl.load(row + _PROJECTION)
    least, most, smallest = tl.load(row + _MIN), tl.load(row + _MAX), tl.load(row + _ABS_MIN)
    a1, absolute, a2 = times * a1, times * absolute, times * a2
    a3, a4, a8 = times * a3, times * a4, times * a8
    return a1, absolute, a2, a3, a4, a8, projection, least, most, smallest


@triton.jit
def merge_leaves(
    runs,
    counts,
    moments,
    checksum,
    histogram,
    into_counts,
    into_moments,
    into_checksum,
    into_histogram,
):
    """Merge leaves, one after the other, into one row.

    Args:
        runs: int64 [runs, RUN]; each leaf counts as many times as there are copies.
    """
    runs += tl.program_id(0).to(tl.int64) * _RUN
    row, copies = tl.load(runs), tl.load(runs + 4)
    into_counts += row * _COUNTS
    into_moments += row * _MOMENTS
    into_histogram += row * _BINS
    bins, columns = tl.arange(0, _SLOTS), tl.arange(0, 16)
    found = tl.load(into_histogram + bins, mask=bins < _BINS, other=0)
    count = tl.load(into_counts + columns, mask=columns < _COUNTS, other=0)
    total = tl.load(into_checksum + row)
    na = measured_count(into_counts)
    a1, absolute, a2, a3, a4, a8, projection, least, most, smallest = load_moments(
        into_moments, 1.0
    )
    for leaf in range(tl.load(runs + 1), tl.load(runs + 2), tl.load(runs + 3)):
        own = counts + leaf * _COUNTS
        found += copies * tl.load(histogram + leaf * _BINS + bins, mask=bins < _BINS, other=0)
        count += copies * tl.load(own + columns, mask=columns < _COUNTS, other=0)
        total += copies * tl.load(checksum + leaf)
        times = copies.to(tl.float64)
        nb = times * measured_count(own)
        b1, more, b2, b3, b4, b8, projected, low, high, small = load_moments(
            moments + leaf * _MOMENTS, times
        )
        most_a = tl.maximum(tl.maximum(-least, most), 0.0)
        most_b = tl.maximum(tl.maximum(-low, high), 0.0)
        a1, a2, a3, a4, a8 = merged_moments(
            na, a1, a2, a3, a4, a8, most_a, nb, b1, b2, b3, b4, b8, most_b
        )
        na += nb
        absolute += more
        projection += projected
        least, most = tl.minimum(least, low), tl.maximum(most, high)
        smallest = tl.minimum(smallest, small)
    tl.store(into_histogram + bins, found, mask=bins < _BINS)
    tl.store(into_counts + columns, count, mask=columns < _COUNTS)
    tl.store(into_checksum + row, total)
    store_moments(into_moments, a1, absolute, a2, a3, a4, a8, projection, least, most, smallest)
