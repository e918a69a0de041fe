"""Sketches in Triton: one program reads one chunk of a tensor, another merges chunks.

All arithmetic on values is in float64, as in `sketch.reference`. Sums use no atomics, so the same
tensors give the same bits again. A program goes through its chunk tile by tile, and merges the
central moments of each tile with those before.
"""

# Triton reads these functions: constants reach them as `tl.constexpr`, and types are its own.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportReturnType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import triton
import triton.language as tl

from ...sketch import table
from ...sketch.elements import BLOCK as ELEMENT_BLOCK

TILE = 1024
"""Elements that a program holds at a time; `ELEMENT_BLOCK` is a multiple of it."""
WORK = 4
"""Words of a table of work: address of the tensor, first element and end of the chunk, leaf."""
RUN = 5
"""Words of a table of runs: row to merge into, first leaf, end, their distance, and copies."""

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
_COUNTS = tl.constexpr(len(table.COUNTS))
_MOMENTS = tl.constexpr(len(table.MOMENTS))
# Slots of the histogram after the bins, for what has no bin.
_ZERO = tl.constexpr(table.BINS)
_NAN = tl.constexpr(table.BINS + 1)
_POS_INF = tl.constexpr(table.BINS + 2)
_NEG_INF = tl.constexpr(table.BINS + 3)
_UNDER = tl.constexpr(table.BINS + 4)
_OVER = tl.constexpr(table.BINS + 5)
_NOTHING = tl.constexpr(511)


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
def load_elements(address, offsets, inside, values, KIND: tl.constexpr):
    """The elements at `offsets`: as float64, and their bits as int64. `values` is for bytes."""
    if KIND == 0:
        bits = tl.load(address.to(tl.pointer_type(tl.int64)) + offsets, mask=inside, other=0)
        x = bits.to(tl.float64, bitcast=True)
    elif KIND == 1:
        raw = tl.load(address.to(tl.pointer_type(tl.int32)) + offsets, mask=inside, other=0)
        bits = raw.to(tl.int64) & 0xFFFFFFFF
        x = raw.to(tl.float32, bitcast=True).to(tl.float64)
    elif KIND == 2:
        raw = tl.load(address.to(tl.pointer_type(tl.int16)) + offsets, mask=inside, other=0)
        bits = raw.to(tl.int64) & 0xFFFF
        x = (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True).to(tl.float64)
    elif KIND == 3:
        raw = tl.load(address.to(tl.pointer_type(tl.int16)) + offsets, mask=inside, other=0)
        bits = raw.to(tl.int64) & 0xFFFF
        x = raw.to(tl.float16, bitcast=True).to(tl.float64)
    else:
        raw = tl.load(address.to(tl.pointer_type(tl.uint8)) + offsets, mask=inside, other=0)
        bits = raw.to(tl.int64)
        x = tl.load(values + bits)
    return x, bits


@triton.jit(
    do_not_specialize=["in_table", "address", "length", "size", "leaf", "first_normal"],
)
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
    KIND: tl.constexpr,
):
    """Write the sketch of a chunk into row `leaf` of the columns.

    Args:
        in_table: 1 where `work` says what to read; else program p reads the p-th `size` elements
            of the tensor at `address`, which has `length`, and writes row `leaf` + p.
        work: int64 [chunks, WORK].
        within: int64 [ELEMENT_BLOCK]: the part of the elements' keys that repeats.
        values: float64 [256]: the numbers that bytes stand for, if KIND says bytes.
        first_normal: bin of the smallest normal number of the dtype.
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
    lanes = tl.arange(0, _TILE)
    slots = tl.arange(0, _SLOTS)
    found = tl.zeros((_SLOTS,), tl.int64)
    negative = tl.zeros((_TILE,), tl.int32)
    tiny = tl.zeros((_TILE,), tl.int32)
    absolute = tl.zeros((_TILE,), tl.float64)
    projection = tl.zeros((_TILE,), tl.float64)
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
        # Keys.
        key = tl.load(within + tile % _BLOCK + lanes) ^ block_key(tile // _BLOCK)
        weighted += bits * (key | 1)
        # Counts: a slot for each exponent and for what has none.
        b = x.to(tl.int64, bitcast=True)
        field = (b >> 52) & _SPECIAL
        no_fraction = (b & 0xFFFFFFFFFFFFF) == 0
        special = field == _SPECIAL
        zero = (field == 0) & no_fraction
        normal = inside & (field != _SPECIAL)
        number = normal & ((field != 0) | (b & 0xFFFFFFFFFFFFF != 0))
        slot = field - _FIRST_FIELD
        slot = tl.where(slot < 0, _UNDER, tl.where(slot >= _BINS, _OVER, slot))
        slot = tl.where(zero, _ZERO, slot)
        infinite = tl.where(b < 0, _NEG_INF, _POS_INF)
        slot = tl.where(special, tl.where(no_fraction, infinite, _NAN), slot)
        slot = tl.where(inside, slot, _NOTHING)
        found += tl.histogram(slot.to(tl.int32), _SLOTS)
        negative += (number & (b < 0)).to(tl.int32)
        if KIND == 0:
            tiny += (number & (field == 0)).to(tl.int32)
        # Sums and extremes.
        v = tl.where(normal, x, 0.0)
        magnitude = tl.abs(v)
        absolute += magnitude
        projection += tl.where((key >> 31) & 1 == 1, -v, v)
        least = tl.minimum(least, tl.where(normal, x, float("inf")))
        most = tl.maximum(most, tl.where(normal, x, float("-inf")))
        smallest = tl.minimum(smallest, tl.where(number, magnitude, float("inf")))
        # Moments about the tile's own mean.
        nb = tl.sum(normal.to(tl.int32)).to(tl.float64)
        b1 = tl.sum(v)
        most_b = tl.max(magnitude)
        d = tl.where(normal, v - b1 / tl.maximum(nb, 1.0), 0.0)
        square = d * d
        b2, b3, b4 = tl.sum(square), tl.sum(square * d), tl.sum(square * square)
        shift = -exponent_of(most_b)
        half = shift >> 1
        scaled = v * power_of_two(half) * power_of_two(shift - half)
        scaled = scaled * scaled
        scaled = scaled * scaled
        b8 = tl.sum(scaled * scaled)
        a1, a2, a3, a4, a8 = merged_moments(
            na, a1, a2, a3, a4, a8, most_a, nb, b1, b2, b3, b4, b8, most_b
        )
        na += nb
        most_a = tl.maximum(most_a, most_b)
    tl.store(histogram + leaf * _BINS + slots, found, mask=slots < _BINS)
    tl.store(checksum + leaf, tl.sum(weighted))
    row = counts + leaf * _COUNTS
    subnormal = tl.sum(tl.where(slots < first_normal, found, 0)) + tl.sum(tiny.to(tl.int64))
    tl.store(row, stop - start)
    tl.store(row + 1, tl.sum(tl.where(slots == _NAN, found, 0)))
    tl.store(row + 2, tl.sum(tl.where(slots == _POS_INF, found, 0)))
    tl.store(row + 3, tl.sum(tl.where(slots == _NEG_INF, found, 0)))
    tl.store(row + 4, tl.sum(tl.where(slots == _ZERO, found, 0)))
    tl.store(row + 5, tl.sum(negative.to(tl.int64)))
    tl.store(row + 6, subnormal)
    tl.store(row + 7, tl.sum(tl.where(slots == _UNDER, found, 0)))
    tl.store(row + 8, tl.sum(tl.where(slots == _OVER, found, 0)))
    row = moments + leaf * _MOMENTS
    tl.store(row, a1)
    tl.store(row + 1, tl.sum(absolute))
    tl.store(row + 2, a2)
    tl.store(row + 3, a3)
    tl.store(row + 4, a4)
    tl.store(row + 5, a8)
    tl.store(row + 6, tl.sum(projection))
    tl.store(row + 7, tl.min(least))
    tl.store(row + 8, tl.max(most))
    tl.store(row + 9, tl.min(smallest))


@triton.jit
def finite_count(row):
    """float64: how many elements are finite, of a row of counts."""
    bad = tl.load(row + 1) + tl.load(row + 2) + tl.load(row + 3)
    return (tl.load(row) - bad).to(tl.float64)


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
    row = tl.load(runs)
    copies = tl.load(runs + 4)
    bins = tl.arange(0, _SLOTS)
    columns = tl.arange(0, 16)
    found = tl.load(into_histogram + row * _BINS + bins, mask=bins < _BINS, other=0)
    count = tl.load(into_counts + row * _COUNTS + columns, mask=columns < _COUNTS, other=0)
    total = tl.load(into_checksum + row)
    na = finite_count(into_counts + row * _COUNTS)
    mine = into_moments + row * _MOMENTS
    a1, absolute, a2 = tl.load(mine), tl.load(mine + 1), tl.load(mine + 2)
    a3, a4, a8 = tl.load(mine + 3), tl.load(mine + 4), tl.load(mine + 5)
    projection, least = tl.load(mine + 6), tl.load(mine + 7)
    most, smallest = tl.load(mine + 8), tl.load(mine + 9)
    times = copies.to(tl.float64)
    for leaf in range(tl.load(runs + 1), tl.load(runs + 2), tl.load(runs + 3)):
        found += copies * tl.load(histogram + leaf * _BINS + bins, mask=bins < _BINS, other=0)
        count += copies * tl.load(
            counts + leaf * _COUNTS + columns, mask=columns < _COUNTS, other=0
        )
        total += copies * tl.load(checksum + leaf)
        nb = times * finite_count(counts + leaf * _COUNTS)
        theirs = moments + leaf * _MOMENTS
        low, high = tl.load(theirs + 7), tl.load(theirs + 8)
        most_a = tl.where(na > 0, tl.maximum(-least, most), 0.0)
        most_b = tl.where(nb > 0, tl.maximum(-low, high), 0.0)
        a1, a2, a3, a4, a8 = merged_moments(
            na,
            a1,
            a2,
            a3,
            a4,
            a8,
            most_a,
            nb,
            times * tl.load(theirs),
            times * tl.load(theirs + 2),
            times * tl.load(theirs + 3),
            times * tl.load(theirs + 4),
            times * tl.load(theirs + 5),
            most_b,
        )
        na += nb
        absolute += times * tl.load(theirs + 1)
        projection += times * tl.load(theirs + 6)
        least, most = tl.minimum(least, low), tl.maximum(most, high)
        smallest = tl.minimum(smallest, tl.load(theirs + 9))
    tl.store(into_histogram + row * _BINS + bins, found, mask=bins < _BINS)
    tl.store(into_counts + row * _COUNTS + columns, count, mask=columns < _COUNTS)
    tl.store(into_checksum + row, total)
    tl.store(mine, a1)
    tl.store(mine + 1, absolute)
    tl.store(mine + 2, a2)
    tl.store(mine + 3, a3)
    tl.store(mine + 4, a4)
    tl.store(mine + 5, a8)
    tl.store(mine + 6, projection)
    tl.store(mine + 7, least)
    tl.store(mine + 8, most)
    tl.store(mine + 9, smallest)
