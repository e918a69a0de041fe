"""A few bytes of a Blosc chunk without decoding all of it: numcodecs has no such call any more.

Blosc cuts what it packs into blocks that know nothing of each other. Those that are wanted, behind
a header of their own, are a chunk again. The format: README_CHUNK_FORMAT.rst of c-blosc 1.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

HEADER = struct.Struct("<4B3I")
"""Version, version of the compressor, flags, bytes of an element; bytes as they were, in a block,
and as they are stored."""
VERSION, STORED_AS_IS = 2, 0x2


def part_of(encoded: bytes | NDArray[np.uint8], start: int, stop: int) -> tuple[bytes, int]:
    """A chunk of the blocks that hold the bytes from `start` up to `stop`.

    Returns:
        The chunk, and which byte of the whole one it begins with.

    Raises:
        ValueError: this is no chunk of Blosc 1, or it is cut off.
    """
    stored = np.frombuffer(encoded, np.uint8).data
    if len(stored) < HEADER.size:
        raise ValueError(f"A chunk of Blosc has at least {HEADER.size} bytes, got {len(stored)}.")
    *kind, length, block, size = HEADER.unpack_from(stored)
    if kind[0] != VERSION or size > len(stored) or not 0 <= start < stop <= length:
        raise ValueError(f"Bytes {start} to {stop} of {length} are in no chunk of Blosc 1.")
    if kind[2] & STORED_AS_IS:
        here = stored[HEADER.size + start : HEADER.size + stop]
        sizes = len(here), min(block, len(here)), HEADER.size + len(here)
        return HEADER.pack(*kind, *sizes) + bytes(here), start
    starts = np.frombuffer(stored, "<u4", -(-length // block), HEADER.size)
    first, last = start // block, (stop - 1) // block + 1
    if last * block > length:  # Blosc takes no chunk that is shorter than a block
        first = max(min(first, last - 2), 0)
    # Threads that pack put down blocks in the order in which they are done.
    ends = np.append(np.sort(starts), size)
    cut = ends[np.searchsorted(ends, starts[first:last], "right")]
    blocks = [bytes(stored[a:b]) for a, b in zip(starts[first:last], cut, strict=True)]
    sizes = np.array([0, *map(len, blocks)])
    begins = HEADER.size + 4 * len(blocks) + np.cumsum(sizes)
    header = HEADER.pack(*kind, min(last * block, length) - first * block, block, begins[-1])
    return header + begins[:-1].astype("<u4").tobytes() + b"".join(blocks), first * block
