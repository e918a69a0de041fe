"""What one transaction writes: records, events and attributes, into the arrays of its session."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from . import compaction
from .arrays import Arrays
from .layout import CHUNK, Dims
from .pack import ByIndex, is_wide, pack, pack_apart
from .pyramid import with_patches
from .rank_frames import append_lines
from .record import Alert, Event, Record
from .selection import ALONE
from .state import Meta, State


def write_records(
    arrays: Arrays, state: State, meta: Meta, dims: Dims, records: Sequence[Record]
) -> State:
    """Write consecutive records, one chunk of the tail after the other, making room where needed.

    No more at once: it bounds memory, and what was packed is still in the cache when it is encoded.
    """
    chunk = CHUNK["tail"]
    while records:
        patches = max(state.records - records[0].index, 0)
        if not patches and compaction.tail_room(state) == 0:
            state = compaction.move_tail(
                arrays, state, state.records // CHUNK["recent"] * CHUNK["recent"]
            )
        left = chunk - records[0].index % chunk
        count = min(patches or compaction.tail_room(state), left)
        state = write_part(arrays, state, meta, dims, records[:count])
        records = records[count:]
    return state


def write_part(
    arrays: Arrays, state: State, meta: Meta, dims: Dims, records: Sequence[Record]
) -> State:
    """Write consecutive records for which there is room."""
    first = records[0].index
    state = with_patches(state, records)
    for record in records:
        state = state.with_record(record)
    wide = state.wide or any(is_wide(record.merged) for record in records)
    state = replace(state, wide=wide)
    packed = pack(records, meta, dims, wide=wide)
    for name, block in packed.items():
        arrays.write(name, state.bounds(name), first, block)
    alone = packed["records"][:, ALONE] > 0
    by_rank = [
        {} if follows else record.by_rank for record, follows in zip(records, alone, strict=True)
    ]
    state = write_ranks(arrays, state, dims, records, by_rank)
    write_groups(arrays, state, meta, dims, records)
    arrays.flush()
    return state


def write_ranks(
    arrays: Arrays,
    state: State,
    dims: Dims,
    records: Sequence[Record],
    numbers: Sequence[ByIndex],
) -> State:
    """Write the numbers by rank.

    A block that once held numbers is written for every later record: the tail is a ring, and what
    an earlier record left in a slot must go.
    """
    width = arrays.at("tail", "ranks").chunks[1]
    used = {rank // width for one in numbers for rank in one}
    blocks = tuple(sorted(used.union(state.rank_blocks)))
    write_apart(arrays, state, "ranks", records, numbers, blocks, dims)
    return replace(state, rank_blocks=blocks)


def write_groups(
    arrays: Arrays, state: State, meta: Meta, dims: Dims, records: Sequence[Record]
) -> None:
    """Write the numbers by group of ranks."""
    place = {name: index for index, name in enumerate(meta.groups)}
    numbers = [{place[name]: one for name, one in record.by_group.items()} for record in records]
    blocks = range(-(-len(meta.groups) // arrays.at("tail", "groups").chunks[1]))
    write_apart(arrays, state, "groups", records, numbers, blocks, dims)


def write_apart(
    arrays: Arrays,
    state: State,
    name: str,
    records: Sequence[Record],
    numbers: Sequence[ByIndex],
    blocks: Iterable[int],
    dims: Dims,
) -> None:
    """Write one block of ranks, or of groups of ranks, after the other: all may be large."""
    width = arrays.at("tail", name).chunks[1]
    length = dims["rank" if name == "ranks" else "group"]
    for block in blocks:
        some = slice(block * width, min((block + 1) * width, length))
        packed = pack_apart(records, numbers, some, dims["site"])
        arrays.write(name, state.bounds(name), records[0].index, packed, some)


def append_entries(
    arrays: Arrays, state: State, name: str, entries: Sequence[Event] | Sequence[Alert]
) -> State:
    """Append to one of `LOGS`."""
    return append_lines(arrays, state, name, (json.dumps(asdict(one)).encode() for one in entries))
