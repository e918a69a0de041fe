"""The keys of elements by their index in the whole tensor, of which this may be a piece."""

# The kernels take numba's typed values; their Python annotations would say nothing.
# pyright: basic

from __future__ import annotations

import numpy as np

from ...sketch.elements import BLOCK
from .compiling import compiled


@compiled
def keys_of(item, begin, n, within, scratch):
    """A part of the keys of n elements from `begin` on, a block's first, and what it is xored with.

    Those of a piece that does not lie as a whole does are made in `scratch`; whether they are.
    """
    origin, run = item[8], item[9]
    if not run:
        return within[:n], _block_key(np.uint64(begin // BLOCK)), False
    if origin % BLOCK == 0 and begin + n <= run:
        return within[:n], _block_key(np.uint64((origin + begin) // BLOCK)), False
    _fill(origin, run, item[10], begin, within, scratch[:n])
    return scratch[:n], np.uint32(0), True


@compiled
def signs_of(hashes, signs):
    """The signs of the projection."""
    for i in range(hashes.size):
        signs[i] = -1.0 if hashes[i] >> np.uint32(31) else 1.0


@compiled
def _fill(origin, run, pitch, begin, within, hashes):
    """The keys of a piece's elements, see `sketch.elements.Region`."""
    row, column, i = begin // run, begin % run, 0
    while i < hashes.size:
        index = origin + row * pitch + column
        offset = index % BLOCK
        n = min(run - column, hashes.size - i, BLOCK - offset)
        key = _block_key(np.uint64(index // BLOCK))
        for j in range(n):
            hashes[i + j] = within[offset + j] ^ key
        i += n
        column += n
        if column == run:
            row, column = row + 1, 0


@compiled
def _block_key(block):
    """`sketch.elements.block_key`."""
    z = block + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.uint32(z >> np.uint64(32))
