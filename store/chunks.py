"""Whole chunks to and from a store, in Zarr's own form but without its machinery for each chunk.

What Zarr does for one chunk (a task, a thread, several copies) takes 1 ms; a heatmap reads 80
chunks and a commit writes 10, so this is where the time goes. Anyone can read with Zarr what is
written here, and the other way round; the tests do.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BloscCodec, TransposeCodec
from zarr.core.common import concurrent_map
from zarr.core.sync import sync

from ..sketch.errors import StoreError
from .blosc_part import part_of
from .decoded import Chunk, Decoded

Slices = tuple[slice, ...]
Block = NDArray[Any]  # of the array's own dtype

LEVEL = 1
"""Of compression, for all chunks; the arrays' metadata say with what, and how to shuffle."""
LITTLE = 2
"""A part of a chunk is decoded alone where it is at most one in so many rows."""
AT_ONCE = 64
"""So many chunks are asked for or written at a time. For files Icechunk has a thread for each, and
each wakes us through the interpreter: 512 that wait for the GIL, of 5 ms each, leave it to nobody.
"""
SAMPLE = 509
"""A chunk is looked at for what is not the fill value in steps of so many elements first."""

_rooms = threading.local()
_threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="rankscope-chunks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Where one chunk and a region overlap."""

    chunk: tuple[int, ...]
    """The chunk's place in the grid."""
    inside: Slices
    """The overlap, counted from the chunk's beginning."""
    outside: Slices
    """The overlap, counted from the region's beginning."""
    whole: bool
    """Whether nothing of the chunk that lies in the array is left out."""


Work = tuple[zarr.Array[Any], Block, Part]
"""An array, the elements of a region, and the overlap of a chunk with it."""


def overlaps(region: Slices, shape: tuple[int, ...], chunks: tuple[int, ...]) -> Iterator[Part]:
    """The chunks that a region touches, in order."""
    axes = [
        list(axis_overlaps(where, length, size))
        for where, length, size in zip(region, shape, chunks, strict=True)
    ]
    for along in product(*axes):
        places, inside, outside, whole = zip(*along, strict=True)
        yield Part(chunk=places, inside=inside, outside=outside, whole=all(whole))


def axis_overlaps(where: slice, length: int, size: int) -> Iterator[tuple[int, slice, slice, bool]]:
    """Along one axis: (place, overlap in the chunk, overlap in the region, whether whole)."""
    for place in range(where.start // size, -(-where.stop // size)):
        begin, end = place * size, min((place + 1) * size, length)
        start, stop = max(where.start, begin), min(where.stop, end)
        yield (
            place,
            slice(start - begin, stop - begin),
            slice(start - where.start, stop - where.start),
            start == begin and stop == end,
        )


Request = tuple[zarr.Array[Any], Slices, Block]
"""An array, a region that lies within it, and a block of that region's shape."""
Key = tuple[zarr.Array[Any], tuple[int, ...]]
"""An array and the place of a chunk in its grid."""
Stored = bytes | NDArray[np.uint8]
"""A chunk as it is stored."""
Encoded = dict[str, bytes | None]
"""Chunks as they are stored, by their key in the store; None for one that holds nothing."""


def read_regions(requests: Iterable[Request], decoded: Decoded | None = None) -> None:
    """Fill each block with the elements of its region, which must lie within the array.

    Where nothing is stored it gets the fill value.

    Args:
        decoded: what is known of chunks of the same snapshot; what is read is kept there.
    """
    works = by_chunk(requests)
    if decoded is not None:
        works = [some for some in works if not place_known(some, decoded)]
    chunks = _get_all([key_of(some) for some in works])

    def decode_and_place(some: Sequence[Work], encoded: Stored | None) -> None:
        rows = rows_of(some)
        chunk = None if encoded is None else decode_rows(some[0][0], encoded, rows)
        place(some, chunk, rows.start)
        if decoded is not None:
            decoded.keep((name_of(*key_of(some)), rows.start, rows.stop), chunk)

    # Blosc lets go of the interpreter, so threads do help.
    list(_threads.map(decode_and_place, works, chunks))


def rows_of(works: Sequence[Work]) -> slice:
    """What to decode of one chunk, along the axis that comes first as it is stored."""
    array = works[0][0]
    axis = order_of(array)[0]
    first = min(part.inside[axis].start for _, _, part in works)
    stop = max(part.inside[axis].stop for _, _, part in works)
    length = array.chunks[axis]
    return slice(first, stop) if (stop - first) * LITTLE <= length else slice(0, length)


def place_known(works: Sequence[Work], decoded: Decoded) -> bool:
    """Copy what is asked for of one chunk if it is known; whether it is."""
    rows = rows_of(works)
    is_known, chunk = decoded.find((name_of(*key_of(works)), rows.start, rows.stop))
    if is_known:
        place(works, chunk, rows.start)
    return is_known


def each_chunk(array: zarr.Array[Any], region: Slices, use: Callable[[Part, Block], None]) -> None:
    """Call `use` with the elements of each chunk that a region overlaps, in threads.

    They are its own until it returns: without copies, a long region takes no memory.
    """
    parts = list(overlaps(region, array.shape, array.chunks))
    chunks = _get_all([(array, part.chunk) for part in parts])

    def decode_and_use(part: Part, encoded: Stored | None) -> None:
        if encoded is None:
            chunk = np.full(array.chunks, array.fill_value, array.dtype)
        else:
            chunk = decode(array, encoded, _room(array))
        use(part, chunk[part.inside])

    list(_threads.map(decode_and_use, parts, chunks))


def write_regions(requests: Iterable[Request], known: Encoded | None = None) -> Encoded:
    """Store the elements of regions, which may lie in the same chunks but not overlap.

    Args:
        known: chunks as they are stored, which need not be read where a part of one is written.

    Returns:
        What is stored now of the chunks of which a part was written.
    """
    known = known or {}
    works = by_chunk(requests)
    names = [name_of(*key_of(chunk)) for chunk in works]
    partial = [at for at, chunk in enumerate(works) if not chunk[0][2].whole]
    asked = [at for at in partial if names[at] not in known]
    found = zip(asked, _get_all([key_of(works[at]) for at in asked]), strict=True)
    before: dict[int, Stored | None] = {at: known.get(names[at]) for at in partial}
    before |= dict(found)
    encoded = list(_threads.map(encode, works, [before.get(at) for at in range(len(works))]))
    values = [(*key_of(chunk), value) for chunk, value in zip(works, encoded, strict=True)]
    sync(concurrent_map(values, _set, AT_ONCE))
    return {names[at]: encoded[at] for at in partial}


def by_chunk(requests: Iterable[Request]) -> list[list[Work]]:
    """What requests touch, chunk by chunk."""
    works: dict[str, list[Work]] = {}
    for array, block, part in parts_of(requests):
        works.setdefault(name_of(array, part.chunk), []).append((array, block, part))
    return list(works.values())


def key_of(works: Sequence[Work]) -> Key:
    """The one chunk that they are about."""
    return works[0][0], works[0][2].chunk


def parts_of(requests: Iterable[Request]) -> Iterator[Work]:
    """All chunks that requests touch."""
    for array, region, block in requests:
        for part in overlaps(region, array.shape, array.chunks):
            yield array, block, part


def _get_all(keys: Sequence[Key]) -> list[Stored | None]:
    return sync(concurrent_map(keys, _get, AT_ONCE)) if keys else []


async def _get(array: zarr.Array[Any], chunk: tuple[int, ...]) -> Stored | None:
    found = await array.store.get(name_of(array, chunk), default_buffer_prototype())
    return None if found is None else found.as_numpy_array()


async def _set(array: zarr.Array[Any], chunk: tuple[int, ...], value: bytes | None) -> None:
    if value is None:
        await array.store.delete(name_of(array, chunk))
    else:
        as_buffer = default_buffer_prototype().buffer.from_bytes
        await array.store.set(name_of(array, chunk), as_buffer(value))


def name_of(array: zarr.Array[Any], chunk: tuple[int, ...]) -> str:
    """Under which key of the store a chunk lies."""
    return f"{array.path}/{array.metadata.encode_chunk_key(chunk)}"


def place(works: Sequence[Work], chunk: Chunk, first: int) -> None:
    """Copy what is asked for of one chunk, of which the rows from `first` on are given."""
    axis = order_of(works[0][0])[0]
    for array, block, part in works:
        if chunk is None:
            block[part.outside] = array.fill_value
            continue
        rows = part.inside[axis]
        moved = slice(rows.start - first, rows.stop - first)
        block[part.outside] = chunk[(*part.inside[:axis], moved, *part.inside[axis + 1 :])]


def _room(array: zarr.Array[Any]) -> Block:
    """Memory for one chunk, of which each thread has one: new pages cost as much as decoding."""
    size = math.prod(array.chunks) * array.dtype.itemsize
    memory: NDArray[np.uint8] | None = getattr(_rooms, "memory", None)
    if memory is None or len(memory) < size:
        memory = _rooms.memory = np.empty(size, np.uint8)
    return memory[:size]


def decode(array: zarr.Array[Any], encoded: Stored, room: Block | None = None) -> Block:
    """The elements of one chunk.

    Raises:
        StoreError: it is damaged.
    """
    with readable(array):
        return turned(array, np.frombuffer(Blosc().decode(encoded, out=room), array.dtype))


def decode_rows(array: zarr.Array[Any], encoded: Stored, rows: slice) -> Block:
    """Those elements of one chunk along the axis that comes first as it is stored.

    Raises:
        StoreError: it is damaged.
    """
    length = array.chunks[order_of(array)[0]]
    if rows.stop - rows.start == length:
        return decode(array, encoded)
    size = math.prod(array.chunks) * array.dtype.itemsize // length
    start, stop = rows.start * size, rows.stop * size
    with readable(array):
        some, first = part_of(encoded, start, stop)
        # A copy, for a block of Blosc may be much larger than what is kept of it.
        found = np.frombuffer(Blosc().decode(some), np.uint8)[start - first : stop - first].copy()
        return turned(array, found.view(array.dtype))


@contextmanager
def readable(array: zarr.Array[Any]) -> Generator[None]:
    """What Blosc and NumPy say of bytes that are not what was stored becomes a `StoreError`."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise StoreError(f"a chunk of the array {array.path} is damaged: {error}") from error


def turned(array: zarr.Array[Any], flat: Block) -> Block:
    """Elements in the order in which they are stored, as a chunk, or as some rows of one."""
    order = order_of(array)
    shape = [array.chunks[axis] for axis in order[1:]]
    return flat.reshape(-1, *shape).transpose(np.argsort(order))


def order_of(array: zarr.Array[Any]) -> tuple[int, ...]:
    """The order of the axes of a chunk, as it is stored."""
    turns = (codec.order for codec in codecs_of(array) if isinstance(codec, TransposeCodec))
    return next(turns, tuple(range(array.ndim)))


def delete_chunks(array: zarr.Array[Any]) -> None:
    """Make all of an array what it was before anything was written."""
    sync(array.store.delete_dir(f"{array.path}/c"))


def encode(works: Sequence[Work], before: Stored | None) -> bytes | None:
    """A chunk with the parts of regions' blocks put into it, over what it held.

    None where all of it is the fill value: then nothing is stored, as Zarr has it.
    """
    array, block, part = works[0]
    chunk = block[part.outside]
    if chunk.shape != array.chunks:
        chunk = np.empty(array.chunks, array.dtype)
        if before is not None:
            chunk[...] = decode(array, before)
        elif len(works) == 1:
            fill_around(chunk, part.inside, array.fill_value)
        else:
            chunk.fill(array.fill_value)
        for _, block, part in works:
            chunk[part.inside] = block[part.outside]
    chunk = np.ascontiguousarray(chunk.transpose(order_of(array)))
    if is_filled(chunk, array.fill_value):
        return None
    [codec] = (one for one in codecs_of(array) if isinstance(one, BloscCodec))
    # As its metadata are stored: of the codec's own attributes zarr has changed the types.
    how: Any = codec.to_dict()["configuration"]
    shuffle = Blosc.BITSHUFFLE if how["shuffle"] == "bitshuffle" else Blosc.SHUFFLE
    blosc = Blosc(how["cname"], LEVEL, shuffle, blocksize=how["blocksize"], typesize=chunk.itemsize)
    return blosc.encode(chunk)


def fill_around(chunk: Block, inside: Slices, fill: Any) -> None:
    """Fill all of a chunk but a part."""
    for axis, where in enumerate(inside):
        along = inside[:axis]
        chunk[(*along, slice(None, where.start))] = fill
        chunk[(*along, slice(where.stop, None))] = fill


def codecs_of(array: zarr.Array[Any]) -> tuple[object, ...]:
    """What an array's metadata say of how its chunks are stored."""
    return getattr(array.metadata, "codecs", ())


def is_filled(chunk: Block, fill: Any) -> bool:
    """Whether all elements are the fill value; a float64 NaN is only if its bits are, too."""
    flat = chunk.reshape(-1)
    if flat.dtype == np.float64:
        flat, fill = flat.view(np.uint64), np.float64(fill).view(np.uint64)
    return all(
        bool((np.isnan(some) if fill != fill else some == fill).all())
        for some in (flat[::SAMPLE], flat)
    )
