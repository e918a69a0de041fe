"""Moving records from the tail to the wide chunks that long questions want, a few chunks at a time.

A move copies and then shifts a bound; both are in one transaction, so a reader sees either the
old place or the new one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import zarr

from .arrays import Arrays, ranges, request, resize, spans
from .chunks import read_regions, write_regions
from .layout import ARRAYS, CHUNK, RING, Layout, Tier
from .state import State
from .tiers import ring_pieces

Part = tuple[slice, ...]
"""Selects along the axes after the record."""

AT_ONCE_BYTES = 8 << 20
"""What is moved at a time: each time costs about 10 ms, and all of it is in memory."""
LINGER = 32
"""Records that stay in the tail, where a late rank can patch them cheaply."""


def tail_due(state: State) -> int:
    """Up to which record the tail can be moved in whole chunks; `state.recent` if it cannot."""
    chunk = CHUNK["recent"]
    return max((state.records - LINGER) // chunk * chunk, state.recent)


def history_due(state: State) -> str | None:
    """The name of an array whose recent tier holds a whole chunk of the history."""
    for name, layout in ARRAYS.items():
        if layout.recent and full_chunks(state, name) > state.history[name]:
            return name
    return None


def full_chunks(state: State, name: str) -> int:
    """Up to which record the recent tier of an array fills whole chunks of its history."""
    chunk = ARRAYS[name].history[0]
    return state.recent // chunk * chunk


def tail_room(state: State) -> int:
    """How many records the tail can still take."""
    return RING["tail"] - (state.records - state.recent)


def move_tail(arrays: Arrays, state: State, upto: int) -> State:
    """Move the tail's records up to `upto` one tier down, in all arrays."""
    for name, layout in ARRAYS.items():
        if layout.recent and upto - state.history[name] > RING["recent"]:
            state = move_full(arrays, state, name)
    for name, layout in ARRAYS.items():
        if name == "histogram_high" and not state.wide:
            # Nothing was written, but what is read later must lie within the shape.
            history = arrays.at("history", name)
            resize(history, (upto, *history.shape[1:]))
        else:
            copy(arrays, state, layout, "tail", state.recent, upto)
    return replace(state, recent=upto)


def move_full(arrays: Arrays, state: State, name: str) -> State:
    """Move what fills whole chunks of an array's history there from its recent tier."""
    return move_recent(arrays, state, name, full_chunks(state, name))


def move_recent(arrays: Arrays, state: State, name: str, upto: int) -> State:
    """Move the records of an array's recent tier up to `upto` into its history."""
    copy(arrays, state, ARRAYS[name], "recent", state.history[name], upto)
    return replace(state, history={**state.history, name: upto})


def move_all(arrays: Arrays, state: State) -> State:
    """Move every record into the history, whole chunk or not."""
    state = move_tail(arrays, state, state.records)
    for name, layout in ARRAYS.items():
        if layout.recent and state.history[name] < state.recent:
            state = move_recent(arrays, state, name, state.recent)
    return state


def copy(arrays: Arrays, state: State, layout: Layout, source: Tier, first: int, stop: int) -> None:
    """Copy records of one array from a tier to the next."""
    if first == stop:
        return
    target: Tier = "recent" if source == "tail" and layout.recent else "history"
    reader, writer = arrays.at(source, layout.name), arrays.at(target, layout.name)
    if target == "history":
        resize(writer, (stop, *writer.shape[1:]))
    for some in groups(parts(state, layout, reader), reader, stop - first):
        blocks = [
            (inner, np.empty((stop - first, *lengths(ranges(reader, inner))), reader.dtype))
            for inner in some
        ]
        read_regions(
            request(reader, piece, inner, block, first)
            for inner, block in blocks
            for piece in ring_pieces(source, first, stop)
        )
        write_regions(
            request(writer, piece, inner, block, first)
            for inner, block in blocks
            for piece in ring_pieces(target, first, stop)
        )


def lengths(where: Iterable[slice]) -> Iterator[int]:
    """How long slices with both ends are."""
    return (along.stop - along.start for along in where)


def groups(all_parts: Iterable[Part], array: zarr.Array[Any], records: int) -> Iterator[list[Part]]:
    """Parts that are moved in one go: as many as fit into `AT_ONCE_BYTES`, and at least one."""
    group: list[Part] = []
    size = 0
    for part in all_parts:
        more = records * math.prod(lengths(ranges(array, part))) * array.dtype.itemsize
        if group and size + more > AT_ONCE_BYTES:
            yield group
            group, size = [], 0
        group.append(part)
        size += more
    if group:
        yield group


def parts(state: State, layout: Layout, array: zarr.Array[Any]) -> Iterator[Part]:
    """Selections after the record that together cover an array: of a large one chunk by chunk."""
    if not {"site", "number", "value"}.intersection(layout.axes):
        yield ()
        return
    along = [
        [
            span
            for span in spans(length, size)
            if axis != "rank" or span.start // size in state.rank_blocks
        ]
        for axis, length, size in zip(layout.axes, array.shape[1:], array.chunks[1:], strict=True)
    ]
    yield from product(*along)
