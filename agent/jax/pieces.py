"""Which part of a whole array a piece is, and the keys of its elements.

A piece in `shard_map` knows its place only when the compiled function runs: offsets may be traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from ...sketch.elements import BLOCK
from ..strides import strides_of


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a piece lies in the whole array, an entry an axis each."""

    offsets: tuple[int | jax.Array, ...]
    """Index of its first element in the whole; an integer, or an int32 or int64 scalar."""
    whole: tuple[int, ...]
    """The shape of the whole."""

    def __post_init__(self) -> None:
        if len(self.offsets) != len(self.whole):
            raise ValueError(
                f"A piece has an offset for each axis of its whole, got {len(self.offsets)} offsets"
                f" and a shape of {len(self.whole)} axes."
            )

    def origin(self) -> jax.Array:
        """int64: the index of its first element among all of the whole, in C order."""
        origin = jnp.zeros((), jnp.int64)
        for offset, stride in zip(self.offsets, strides_of(self.whole), strict=True):
            origin = origin + jnp.asarray(offset, jnp.int64) * stride
        return origin


def element_keys(
    start: int | jax.Array, length: int, shape: Sequence[int], piece: Piece | None
) -> jax.Array:
    """uint32 [length]: `sketch.elements.element_hash` of elements of a piece, in C order.

    Args:
        start: the first of them, a multiple of `BLOCK`.
        shape: of the piece, or without one of the whole.
    """
    if piece is None:
        place = lax.iota(jnp.int32, length)
        blocks = start // BLOCK + lax.iota(jnp.int64, -(-length // BLOCK))
        return _within(place) ^ _block_key(blocks.astype(jnp.uint64))[place // BLOCK]
    place, index = start + lax.iota(jnp.int64, length), piece.origin()
    for size, mine, whole in zip(shape, strides_of(shape), strides_of(piece.whole), strict=True):
        index = index + place // max(mine, 1) % max(size, 1) * whole
    return _within(index) ^ _block_key((index // BLOCK).astype(jnp.uint64))


def _within(index: jax.Array) -> jax.Array:
    """uint32: `sketch.elements.WITHIN` of the index in a block, by lowbias32 of C. Wellons (2018).

    Computed, for that costs a device less than to look it up.
    """
    x = (index % BLOCK + 1).astype(jnp.uint32)
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _block_key(block: jax.Array) -> jax.Array:
    """uint32: `sketch.elements.block_key`, of uint64."""
    z = block + jnp.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> 30)) * jnp.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> 27)) * jnp.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> 31)) >> 32).astype(jnp.uint32)
