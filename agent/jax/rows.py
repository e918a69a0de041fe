"""The sketch of an array as a compiled step gives it out: one row of a `SketchTable`, in words.

With JAX's 64-bit types off, as they are by default, no array of 64 bits may leave a compiled
function. So a row is uint32, each number two words, the lower first. Only the functions of this
package that do arithmetic on it see int64 and float64, in a context of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from ...sketch.table import (
    ABS_MIN,
    BINS,
    COUNT,
    COUNTS,
    L1,
    M2,
    M3,
    M4,
    MAX,
    MIN,
    MOMENTS,
    NAN,
    NEG_INF,
    POS_INF,
    PROJECTION,
    S8,
    SUM,
    UNBINNED,
    SketchTable,
)
from .numbers import FLOAT64, exponent_of, power_of_two

_ENDS = tuple(int(end) for end in np.cumsum([len(COUNTS), len(MOMENTS), 1, BINS]))

WORDS = 2 * _ENDS[-1]
"""uint32 words of a row: 2.4 kB."""


class Columns(NamedTuple):
    """The columns of `SketchTable`, where 64-bit types are on; rows may be leading axes."""

    counts: jax.Array
    """int64 [..., len(COUNTS)]"""
    moments: jax.Array
    """float64 [..., len(MOMENTS)]"""
    checksum: jax.Array
    """uint64 [...]"""
    histogram: jax.Array
    """int64 [..., BINS]"""


def pack(columns: Columns) -> jax.Array:
    """uint32 [..., WORDS]: the columns as rows."""
    parts = (columns.counts, columns.moments, columns.checksum[..., None], columns.histogram)
    words = [lax.bitcast_convert_type(part, jnp.uint32) for part in parts]
    return jnp.concatenate(words, axis=-2).reshape(*columns.checksum.shape, WORDS)


def unpack(rows: jax.Array) -> Columns:
    """The columns of rows."""
    pairs = rows.reshape(*rows.shape[:-1], WORDS // 2, 2)
    counts, moments, checksum, histogram = jnp.split(pairs, _ENDS[:-1], axis=-2)
    return Columns(
        lax.bitcast_convert_type(counts, jnp.int64),
        lax.bitcast_convert_type(moments, jnp.float64),
        lax.bitcast_convert_type(checksum, jnp.uint64)[..., 0],
        lax.bitcast_convert_type(histogram, jnp.int64),
    )


def empty_rows(*rows: int) -> NDArray[np.uint32]:
    """uint32 [*rows, WORDS]: the identity of `merge`, so many times."""
    identity = [np.ascontiguousarray(column) for column in SketchTable.empty(1).columns()]
    row = np.concatenate([column.view(np.uint32).reshape(-1) for column in identity])
    return np.broadcast_to(row, (*rows, WORDS))


def table_of(rows: Any) -> SketchTable:
    """The sketches of rows, in C order.

    Args:
        rows: uint32 [..., WORDS], as NumPy or JAX array: the latter is waited for.
    """
    numbers = np.ascontiguousarray(rows).reshape(-1, WORDS).view(np.int64)
    parts = np.split(numbers, _ENDS[:-1], axis=1)
    counts, moments, checksum, histogram = (np.ascontiguousarray(part) for part in parts)
    return SketchTable(counts, moments.view(np.float64), checksum.view(np.uint64)[:, 0], histogram)


def merge(a: jax.Array, b: jax.Array) -> jax.Array:
    """`SketchTable.merge` in a compiled function: for micro-batches, scans and repeated calls.

    Args:
        a: uint32 [..., WORDS].
        b: of the same shape.
    """
    with jax.enable_x64(True):
        return _merge(a, b)


def merge_all(rows: jax.Array, axes: int) -> jax.Array:
    """Rows merged along their first axes, as a balanced tree, always in the same order.

    Args:
        rows: uint32 [..., WORDS], such as `vmap` makes them.
        axes: how many.
    """
    rest = rows.shape[axes:]
    rows = rows.reshape(-1, *rest)
    if not len(rows):
        return jnp.asarray(empty_rows(*rest[:-1]))
    while len(rows) > 1:
        half = (len(rows) + 1) // 2
        pairs = len(rows) - half
        rows = jnp.concatenate([merge(rows[:pairs], rows[half:]), rows[pairs:half]])
    return rows[0]


def varying(x: jax.Array) -> frozenset[str]:
    """Along which axes of the mesh `x` may differ in `shard_map`, as its type tells there.

    It is called `vma` in releases before 0.10.
    """
    kind: Any = jax.typeof(x)
    return frozenset(kind.mat.varying if hasattr(kind, "mat") else kind.vma)


def typed_as(array: jax.Array, *others: jax.Array) -> jax.Array:
    """The same array, which in `shard_map` may differ along the axes along which `others` do.

    That is part of their type there, and has no name that all releases of JAX share.
    """
    for other in map(jnp.asarray, others):
        if jnp.issubdtype(other.dtype, jnp.number) and varying(other):
            nothing = other.reshape(-1)[:0].astype(array.dtype)
            array = array + jnp.sum(nothing, dtype=array.dtype)
    return array


@jax.jit
def _merge(a: jax.Array, b: jax.Array) -> jax.Array:
    p, q = unpack(a), unpack(b)
    moments = _merge_moments(_measured(p.counts), p.moments, _measured(q.counts), q.moments)
    counts, histogram = p.counts + q.counts, p.histogram + q.histogram
    return pack(Columns(counts, moments, p.checksum + q.checksum, histogram))


def _measured(counts: jax.Array) -> jax.Array:
    """float64: how many finite elements are in the sums."""
    apart = counts[..., NAN] + counts[..., POS_INF] + counts[..., NEG_INF] + counts[..., UNBINNED]
    return (counts[..., COUNT] - apart).astype(jnp.float64)


def _merge_moments(na: jax.Array, a: jax.Array, nb: jax.Array, b: jax.Array) -> jax.Array:
    """The moments [..., len(MOMENTS)] of na + nb finite elements."""
    p, q = jnp.moveaxis(a, -1, 0), jnp.moveaxis(b, -1, 0)
    d = q[SUM] / jnp.maximum(nb, 1.0) - p[SUM] / jnp.maximum(na, 1.0)
    d = jnp.where((na > 0) & (nb > 0), d, 0.0)
    dn = d / jnp.maximum(na + nb, 1.0)
    u, v = dn * na, dn * nb
    between, t = d * u * nb, u - v
    fourth = between * (t * t + u * v) + 6 * (u * u * q[M2] + v * v * p[M2])
    mine, theirs = _scale_exponent(p), _scale_exponent(q)
    common = jnp.maximum(mine, theirs)
    merged = {
        SUM: p[SUM] + q[SUM],
        L1: p[L1] + q[L1],
        M2: p[M2] + q[M2] + between,
        M3: p[M3] + q[M3] + between * t + 3 * (u * q[M2] - v * p[M2]),
        M4: p[M4] + q[M4] + fourth + 4 * (u * q[M3] - v * p[M3]),
        S8: _shifted(p[S8], mine - common) + _shifted(q[S8], theirs - common),
        PROJECTION: p[PROJECTION] + q[PROJECTION],
        MIN: jnp.minimum(p[MIN], q[MIN]),
        MAX: jnp.maximum(p[MAX], q[MAX]),
        ABS_MIN: jnp.minimum(p[ABS_MIN], q[ABS_MIN]),
    }
    return jnp.stack([merged[column] for column in range(len(MOMENTS))], axis=-1)


def _scale_exponent(moments: jax.Array) -> jax.Array:
    """As `sketch.table.scale_exponent`, of moments [len(MOMENTS), ...]."""
    magnitude = jnp.maximum(jnp.maximum(-moments[MIN], moments[MAX]), 0.0)
    bits = lax.bitcast_convert_type(magnitude, jnp.int64)
    return jnp.where(bits > 0, exponent_of(bits, FLOAT64), -1200)


def _shifted(s8: jax.Array, exponents: jax.Array) -> jax.Array:
    """s8 · 2^(8·exponents), for exponents <= 0 of any size."""
    return s8 * power_of_two(jnp.maximum(8 * exponents, -1022))
