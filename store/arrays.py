"""The arrays of a run in one session: the only file that makes, reads and writes Zarr chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, Self

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.codecs import BloscCodec, TransposeCodec
from zarr.storage import StorePath

from .chunks import LEVEL, Block, Encoded, Request, delete_chunks, readable, write_regions
from .deferred import Deferred
from .layout import (
    ARRAYS,
    BLOCKS,
    LOGS,
    PYRAMID,
    RANK_FRAME_CHUNK,
    RANK_FRAMES,
    RING,
    Dims,
    Layout,
    Tier,
    pyramid_path,
)
from .tiers import Bounds, Piece, pieces

Index = int | slice
"""Selects along an axis after the record."""

CODEC = BloscCodec(cname="lz4", clevel=LEVEL, shuffle="shuffle")
LOG_CHUNK = 1 << 16
FRAME_CODEC = BloscCodec(cname="zstd", clevel=1, shuffle="shuffle", typesize=8)
"""Of frames, which are mostly columns of eight bytes: they come to half of what they are."""
BLOCK_BYTES = {"lz4": 0, "zstd": 1 << 18}
"""What is compressed at a time, by compressor of the history; 0: what Blosc takes. For Zstandard it
takes an eighth of this, and so twice the time for both ways and a twentieth more room."""
OVER_RANKS = ("rank", "group", "extreme")
FIRST_AXIS = {"history": "record", "pyramid": "block"}
"""Its name, by place; else it is a slot of a ring."""


class Arrays:
    """The arrays of a run as one session sees them, each opened when it is asked for."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._open: dict[str, zarr.Array[Any]] = {}
        self._writes: list[Request] = []
        self._begun: Encoded = {}
        """Chunks of the tail that the last `flush` wrote a part of."""

    def on(self, store: Store) -> Self:
        """The same arrays in another session, without reading their metadata again."""
        other = type(self)(store)
        for path, array in self._open.items():
            moved: Any = zarr.AsyncArray(array.metadata, StorePath(store, path))
            other._open[path] = zarr.Array(moved)
        other._begun = self._begun
        return other

    def at(self, tier: Tier, name: str) -> zarr.Array[Any]:
        """The array of that name in one tier."""
        return self.open(f"{tier}/{name}")

    def open(self, path: str) -> zarr.Array[Any]:
        """The array at a path."""
        if path not in self._open:
            mode = "r" if self.store.read_only else "r+"
            self._open[path] = zarr.open_array(self.store, path=path, mode=mode)
        return self._open[path]

    def create(self, dims: Dims) -> None:
        """Make all arrays, without a record."""
        for layout in ARRAYS.values():
            for tier in layout.tiers:
                path = f"{tier}/{layout.name}"
                self._open[path] = create(self.store, path, layout, tier, dims)
        for path, layout in pyramid_arrays():
            self._open[path] = create(self.store, path, layout, "history", dims)
        for name in LOGS:
            self._open[name] = create_bytes(self.store, name, LOG_CHUNK)
        self._open[RANK_FRAMES] = create_bytes(
            self.store, RANK_FRAMES, RANK_FRAME_CHUNK, FRAME_CODEC
        )

    def dims(self) -> dict[str, int]:
        """How large the axes are that grow."""
        return {
            "site": self.at("tail", "scalars").shape[1],
            "rank": self.at("tail", "ranks").shape[1],
            "column": self.at("tail", "records").shape[1],
            "training": self.at("tail", "training").shape[2],
            "health": self.at("tail", "health").shape[2],
            "number": self.at("tail", "exact_counts").shape[1],
            "value": self.at("tail", "quantities").shape[1],
            "group": self.at("tail", "groups").shape[1],
            "peers": self.at("tail", "distribution").shape[1],
        }

    def grow(self, dims: Dims) -> None:
        """Make the arrays as large as `dims`; never smaller."""
        for layout in ARRAYS.values():
            for tier in layout.tiers:
                array = self.at(tier, layout.name)
                resize(array, (array.shape[0], *layout.shape(dims)))
        for path, layout in pyramid_arrays():
            array = self.open(path)
            resize(array, (array.shape[0], *layout.shape(dims)))

    def read(self, name: str, bounds: Bounds, first: int, stop: int, *inner: Index) -> Deferred:
        """The records from `first` up to `stop`; along later axes what is asked for, or all."""
        block = room(self.at("tail", name), stop - first, inner)
        requests = [
            request(self.at(piece.tier, name), piece, inner, block, first)
            for piece in pieces(bounds, first, stop)
        ]
        return Deferred(requests, lambda: block[(slice(None), *dropped(inner))])

    def read_blocks(self, path: str, first: int, stop: int, *inner: Index) -> Deferred:
        """The blocks from `first` up to `stop` of an array of the pyramid."""
        array = self.open(path)
        block = room(array, stop - first, inner)
        region = slice(first, stop), *ranges(array, inner)
        return Deferred([(array, region, block)], lambda: block[(slice(None), *dropped(inner))])

    def write(self, name: str, bounds: Bounds, first: int, block: Block, *inner: slice) -> None:
        """Put consecutive records where they lie, at the next `flush`; `bounds` must hold them."""
        self._writes += [
            request(self.at(piece.tier, name), piece, inner, block, first)
            for piece in pieces(bounds, first, first + len(block))
        ]

    def flush(self) -> None:
        """Store what was written, all at once."""
        writes, self._writes = self._writes, []
        written = write_regions(writes, self._begun)
        # The next records go into the chunks that these began. Only the tail is written here alone.
        self._begun = {name: text for name, text in written.items() if name.startswith("tail/")}

    def clear_rings(self) -> None:
        """Delete what lies in rings; all of it must lie in the history, too."""
        for layout in ARRAYS.values():
            for tier in layout.tiers:
                if tier in RING:
                    delete_chunks(self.at(tier, layout.name))
        self._begun = {}

    def entries(self, name: str, length: int) -> list[Any]:
        """What one of `LOGS` says in so many bytes.

        Raises:
            StoreError: they are damaged.
        """
        if not length:
            return []
        array = self.open(name)
        with readable(array):
            text = np.asarray(array[:length]).tobytes()
            return [json.loads(line) for line in text.decode().splitlines()]

    def append_bytes(self, name: str, start: int, text: bytes) -> None:
        """Put `text` into one of `LOGS`, or `RANK_FRAMES`, from position `start` on."""
        array = self.open(name)
        resize(array, (start + len(text),))
        array[start:] = np.frombuffer(text, np.uint8)


def create_bytes(
    store: Store, name: str, chunk: int, codec: BloscCodec | Literal["auto"] = "auto"
) -> zarr.Array[Any]:
    """Make an array of bytes, without any."""
    return zarr.create_array(
        store,
        name=name,
        shape=(0,),
        chunks=(chunk,),
        dtype="uint8",
        fill_value=0,
        compressors=codec,
    )


def pyramid_arrays() -> Iterator[tuple[str, Layout]]:
    """The arrays of the pyramid, with their paths."""
    for block in BLOCKS:
        for layout in PYRAMID.values():
            yield pyramid_path(block, layout.name), layout


def create(store: Store, path: str, layout: Layout, tier: Tier, dims: Dims) -> zarr.Array[Any]:
    """Make one array, as it is in one tier."""
    kept = tier == "history"
    return zarr.create_array(
        store,
        name=path,
        shape=(RING.get(tier, 0), *layout.shape(dims)),
        chunks=layout.chunks(tier, dims),
        dtype=layout.dtype,
        fill_value=layout.fill,
        filters=[TransposeCodec(order=order_in_history(layout))] if kept else None,
        compressors=[
            BloscCodec(
                cname=layout.compressor,
                clevel=LEVEL,
                shuffle="bitshuffle",
                blocksize=BLOCK_BYTES[layout.compressor],
            )
            if kept
            else CODEC
        ],
        dimension_names=(FIRST_AXIS.get(path.partition("/")[0], "slot"), *layout.axes),
    )


def order_in_history(layout: Layout) -> tuple[int, ...]:
    """The order of the axes of a chunk of the history, as it is stored: so it packs best.

    What follows in time lies side by side, and so do what ranks say of one site: often the same.
    """
    axes = range(1, 1 + len(layout.axes))
    return (*sorted(axes, key=lambda axis: layout.axes[axis - 1] in OVER_RANKS), 0)


def room(array: zarr.Array[Any], rows: int, inner: tuple[Index, ...]) -> Block:
    """A block for so many rows of an array."""
    lengths = (where.stop - where.start for where in ranges(array, inner))
    return np.empty((rows, *lengths), array.dtype)


def dropped(inner: tuple[Index, ...]) -> tuple[int | slice, ...]:
    """Selects from a block that was read what was asked for: an integer drops its axis."""
    return tuple(0 if isinstance(index, int) else slice(None) for index in inner)


def request(
    array: zarr.Array[Any], piece: Piece, inner: tuple[Index, ...], block: Block, first: int
) -> Request:
    """Where a piece lies in its array, and its rows of a block that begins with record `first`."""
    return array, (piece.slots, *ranges(array, inner)), block[piece.within(first)]


def ranges(array: zarr.Array[Any], inner: tuple[Index, ...]) -> tuple[slice, ...]:
    """Slices with both ends for all axes after the first."""
    lengths = array.shape[1:]
    some = tuple(
        slice(index, index + 1) if isinstance(index, int) else slice(*index.indices(length)[:2])
        for index, length in zip(inner, lengths, strict=False)
    )
    return some + tuple(slice(0, length) for length in lengths[len(inner) :])


def resize(array: zarr.Array[Any], least: tuple[int, ...]) -> None:
    """Grow the array to at least that shape."""
    shape = tuple(map(max, array.shape, least))
    if shape != array.shape:
        array.resize(shape)


def spans(length: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover 0 to `length`."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))
