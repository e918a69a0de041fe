"""What one transaction writes: records, events and attributes, into the arrays of its session."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from ..sketch.derive import MAIN
from . import compaction
from .arrays import Arrays
from .layout import CHUNK, Dims
from .pack import is_wide, pack, pack_ranks
from .record import Alert, Event, Record
from .state import Meta, State


def with_names(meta: Meta, records: Sequence[Record]) -> Meta:
    """The same with the names of training statistics and counters that are new in these records."""
    training = new_names(meta.training, [record.training for record in records])
    health = new_names(meta.health, [record.health for record in records])
    if not training and not health:
        return meta
    return replace(meta, training=(*meta.training, *training), health=(*meta.health, *health))


def new_names(
    known: Sequence[str], numbers: Sequence[Mapping[int, Mapping[str, float]]]
) -> list[str]:
    """The names among these numbers that are not known, in order of appearance."""
    names = {name: None for ranks in numbers for values in ranks.values() for name in values}
    return [name for name in names if name not in known]


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
    for record in records:
        state = state.with_record(record)
    wide = state.wide or any(is_wide(record.merged) for record in records)
    state = replace(state, wide=wide)
    for name, block in pack(records, meta, dims, wide=wide).items():
        arrays.write(name, state.bounds(name), first, block)
    state = write_ranks(arrays, state, dims, records)
    arrays.flush()
    return state


def write_ranks(arrays: Arrays, state: State, dims: Dims, records: Sequence[Record]) -> State:
    """Write the numbers by rank, one block of ranks after the other.

    A block that once held numbers is written for every later record: the tail is a ring, and what
    an earlier record left in a slot must go.
    """
    width = arrays.at("tail", "ranks").chunks[1]
    used = {rank // width for record in records for rank in record.by_rank}
    blocks = tuple(sorted(used.union(state.rank_blocks)))
    bounds = state.bounds("ranks")
    for block in blocks:
        ranks = slice(block * width, min((block + 1) * width, dims["rank"]))
        numbers = pack_ranks(records, ranks, dims["site"], len(MAIN))
        arrays.write("ranks", bounds, records[0].index, numbers, ranks)
    return replace(state, rank_blocks=blocks)


def append_lines(
    arrays: Arrays, state: State, name: str, entries: Sequence[Event] | Sequence[Alert]
) -> State:
    """Append to one of `LOGS`, a line of JSON each."""
    if not entries:
        return state
    start = state.logs[name]
    text = "".join(json.dumps(asdict(entry)) + "\n" for entry in entries).encode()
    arrays.append_bytes(name, start, text)
    return replace(state, logs={**state.logs, name: start + len(text)})
