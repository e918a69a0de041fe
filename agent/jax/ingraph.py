"""The sketch in XLA's own operations, for any device: reductions that fuse, and one scatter.

The arithmetic is that of `sketch.reference`, in float64: what is exact is so bit for bit; sums are
to rounding. XLA's CPU code takes subnormal float64 for zero, in the sums alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from ...sketch.table import (
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
    OVER,
    POS_INF,
    PROJECTION,
    S8,
    SUBNORMAL,
    SUM,
    UNDER,
    ZERO,
)
from .numbers import (
    Layout,
    exponent_of,
    first_normal,
    layout_of,
    power_of_two,
    raw_bits,
    values_of,
    widened,
)
from .pieces import Piece, element_keys
from .rows import Columns, merge, pack

LANES = 64
"""Counters of a bin, for elements in turn: equal neighbours add to neighbours in memory, and none
of them waits for another."""

CHUNK = 1 << 22
"""Elements that are summarised at a time: their temporaries take 28 bytes each, on the CPU."""


def sketch_by_xla(x: jax.Array, piece: Piece | None, *, chunk: int = CHUNK) -> jax.Array:
    """uint32 [WORDS]: the sketch of all elements of `x`, where 64-bit types are on.

    Args:
        piece: as of `engine.sketch`.
        chunk: elements at a time, a multiple of `BLOCK`.
    """
    flat = x.reshape(-1)
    whole = flat.size // chunk if flat.size > chunk else 0

    def add(row: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
        start = number * chunk
        part = lax.dynamic_slice(flat, (start,), (chunk,))
        keys = element_keys(start, chunk, x.shape, piece)
        return merge(row, pack(_sketch_chunk(part, keys))), None

    keys = element_keys(whole * chunk, flat.size - whole * chunk, x.shape, piece)
    row = pack(_sketch_chunk(flat[whole * chunk :], keys))
    return lax.scan(add, row, lax.iota(jnp.int64, whole))[0] if whole else row


def _sketch_chunk(flat: jax.Array, keys: jax.Array) -> Columns:
    layout = layout_of(flat.dtype)
    bits = widened(flat)
    counts, histogram = _count(bits, layout, first_normal(flat.dtype))
    weights = (keys | 1).astype(jnp.uint64)
    checksum = jnp.sum(raw_bits(flat).astype(jnp.uint64) * weights, dtype=jnp.uint64)
    return Columns(counts, _moments(bits, layout, keys), checksum, histogram)


def _count(bits: jax.Array, layout: Layout, smallest: int) -> tuple[jax.Array, jax.Array]:
    """int64 counts and histogram; `smallest` is the first normal number."""
    magnitude = bits & layout.all_but_sign
    nonzero = (magnitude > 0) & (magnitude < layout.infinity)
    place = exponent_of(magnitude, layout) - FIRST_EXPONENT
    whether = {
        NAN: magnitude > layout.infinity,
        POS_INF: bits == layout.infinity,
        NEG_INF: (magnitude == layout.infinity) & (bits < 0),
        ZERO: magnitude == 0,
        NEGATIVE: nonzero & (bits < 0),
        SUBNORMAL: nonzero & (magnitude < smallest),
        UNDER: nonzero & (place < 0),
        OVER: nonzero & (place >= BINS),
    }
    sums = sums_of([mask.astype(jnp.int32) for mask in whether.values()])  # of at most `CHUNK`
    counted = {column: n.astype(jnp.int64) for column, n in zip(whether, sums, strict=True)}
    counted[COUNT] = jnp.asarray(bits.size, jnp.int64)
    nothing = jnp.zeros((), jnp.int64)
    counts = jnp.stack([counted.get(column, nothing) for column in range(len(COUNTS))])
    return counts, _histogram(jnp.where(nonzero, place, -1))


def _histogram(places: jax.Array) -> jax.Array:
    """int64 [BINS]: how often each bin is among the places; what is no bin is left out."""
    lane = lax.iota(jnp.int32, places.size) % LANES
    inside = (places >= 0) & (places < BINS)
    counter = jnp.where(inside, places * LANES + lane, BINS * LANES)
    counters = jnp.zeros(BINS * LANES, jnp.int32).at[counter].add(1, mode="drop")
    return jnp.sum(counters.reshape(BINS, LANES), axis=1, dtype=jnp.int64)


def _moments(bits: jax.Array, layout: Layout, keys: jax.Array) -> jax.Array:
    """float64 [len(MOMENTS)]: over finite elements; those about the mean read the array again."""
    finite = (bits & layout.all_but_sign) < layout.infinity
    values = values_of(jnp.where(finite, bits, 0), layout)
    signed = jnp.where(keys >> 31, -values, values)
    total, l1, projection, n = sums_of([values, jnp.abs(values), signed, finite.astype("f8")])
    central = jnp.where(finite, values - total / jnp.maximum(n, 1), 0.0)
    square = central * central
    extremes, top = _extremes(bits, finite, layout)
    half = -top // 2  # in two steps: a subnormal number's is more than one factor can hold
    scaled = values * power_of_two(half) * power_of_two(-top - half)
    scaled = (scaled * scaled) * (scaled * scaled)
    m2, m3, m4, s8 = sums_of([square, square * central, square * square, scaled * scaled])
    sums = {SUM: total, L1: l1, M2: m2, M3: m3, M4: m4, S8: s8, PROJECTION: projection}
    numbers = {**sums, **extremes}
    return jnp.stack([numbers[column] for column in range(len(MOMENTS))])


def sums_of(terms: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """The sum of each, all of one type: in one pass, as XLA does not make of several sums."""
    nothing = [jnp.zeros((), term.dtype) for term in terms]
    return lax.reduce(terms, nothing, lambda a, b: list(map(lax.add, a, b)), (0,))


def _extremes(
    bits: jax.Array, finite: jax.Array, layout: Layout
) -> tuple[Mapping[int, jax.Array], jax.Array]:
    """The extremes of finite elements; and the exponent of the largest magnitude, 0 for none.

    As integers in the order of their numbers: comparisons may take subnormal numbers for zero.
    """
    most = layout.all_but_sign
    magnitude = bits & most
    ordered = bits ^ ((bits >> (layout.width - 1)) & most)
    ends = {
        "low": (jnp.where(finite, ordered, most), most, lax.min),
        "high": (jnp.where(finite, ordered, ~most), ~most, lax.max),
        "small": (jnp.where(finite & (magnitude > 0), magnitude, most), most, lax.min),
        "large": (jnp.where(finite, magnitude, 0), 0, lax.max),
    }
    terms, start, ways = zip(*ends.values(), strict=True)
    low, high, small, large = lax.reduce(
        terms,
        tuple(layout.signed(number) for number in start),
        lambda a, b: tuple(way(p, q) for way, p, q in zip(ways, a, b, strict=True)),
        (0,),
    )

    def number(key: jax.Array, where_none: float) -> jax.Array:
        found = values_of(key ^ ((key >> (layout.width - 1)) & most), layout)
        return jnp.where((key == most) | (key == ~most), where_none, found)

    top = jnp.where(large > 0, exponent_of(large, layout), 0)
    extremes = {
        MIN: number(low, jnp.inf),
        MAX: number(high, -jnp.inf),
        ABS_MIN: number(small, jnp.inf),
    }
    return extremes, top
