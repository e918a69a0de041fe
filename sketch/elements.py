"""The pseudo-random key of an element: what checksum and projection are keyed by.

The key depends on the element's index in the whole (global) tensor alone, so that the sums merge
over shards, tell swapped shards apart, and can be compared between ways to shard. Elements of a
whole are numbered in the order in which they lie in memory, those of a piece by their `Region`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .table import Words

BLOCK = 8192
"""Elements a block: the key of an element is a table of this length, xor a word of its block."""

SEED_STEP = 0xD1342543DE82EF95
"""Distance of the keys of samples of one seed and the next; odd, so that no two seeds share all."""


@dataclass(frozen=True, slots=True)
class Region:
    """Where the elements of a piece lie in the whole tensor, both in C order: in runs.

    Element i of the piece is element origin + i div run x pitch + i mod run of the whole.
    """

    origin: int
    """The whole's index of the piece's first element."""
    run: int
    """Neighbours in the piece that are neighbours in the whole, at least 1."""
    pitch: int
    """From one run's first element to the next run's, in the whole."""

    def indices(self, start: int, length: int) -> NDArray[np.uint64]:
        """uint64 [length]: of the piece's elements from `start` on, their index in the whole."""
        run, within = np.divmod(np.arange(start, start + length, dtype=np.uint64), self.run)
        return (self.origin + run * np.uint64(self.pitch) + within).astype(np.uint64)


def element_hash(start: int, length: int, region: Region | None = None) -> NDArray[np.uint32]:
    """uint32 [length]: the keys of the elements `start … start + length - 1` of a piece.

    Without a region the piece is the whole. key(i) = within(i mod BLOCK) xor block(i div BLOCK), i
    the index in the whole. The element's checksum weight is key | 1, its projection sign is -1
    where the top bit of the key is set.
    """
    index = np.arange(start, start + length, dtype=np.uint64)
    if region is not None:
        index = region.indices(start, length)
    return WITHIN[index % np.uint64(BLOCK)] ^ block_key(index // np.uint64(BLOCK))


def block_key(block: Words) -> NDArray[np.uint32]:
    """uint32: the upper half of splitmix64 (Steele, Lea and Flood 2014) of the block's number."""
    with np.errstate(over="ignore"):
        z = block + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(32)).astype(np.uint32)


def sampled_clusters(clusters: int, stride: int, seed: int) -> NDArray[np.int64]:
    """int64 [ceil(clusters / stride)]: of every `stride` clusters in a row one, chosen at random.

    The choice follows from the numbers alone: all ranks make the same, with each seed another.
    """
    first = np.arange(0, clusters, stride, dtype=np.uint64)
    held = np.minimum(np.uint64(stride), np.uint64(clusters) - first)  # the last may be fewer
    with np.errstate(over="ignore"):
        key = block_key(first + np.uint64(seed % 2**64) * np.uint64(SEED_STEP))
    return (first + key % held).astype(np.int64)


def _lowbias32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The 32-bit mixer lowbias32 of C. Wellons (2018)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


WITHIN: NDArray[np.uint32] = _lowbias32(np.arange(1, BLOCK + 1, dtype=np.uint32))
"""uint32 [BLOCK]: the part of the key that repeats from block to block."""
