"""Frames of single ranks, kept as they came beside what all ranks make up.

All frames of one transaction lie back to back in one array of bytes, and begin where a chunk does,
so that no chunk is ever written twice. A log says where the frames of each record are; of several
entries for one record the last counts. Schemas, without which a frame says little, are kept once.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

import msgspec

from ..wire.codec import PackedFrame, blob_of, decode, encode, open_frame
from ..wire.messages import Schema
from .arrays import Arrays
from .layout import RANK_FRAME_CHUNK, RANK_FRAMES
from .record import RankFrames
from .state import State

INDEX, SCHEMAS = "rank_frame_index", "schemas"
HEAD = struct.Struct("<I")
"""Before each frame: how long its header is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAt:
    """Where the frames of one record lie."""

    record: int
    start: int
    """In the array of bytes."""
    ranks: tuple[int, ...]
    """Ascending."""
    sizes: tuple[int, ...]
    """Bytes of each one's frame, one after the other."""

    def spans(self) -> dict[int, slice]:
        """By rank."""
        ends = list(accumulate(self.sizes, initial=self.start))
        return {
            rank: slice(begin, end)
            for rank, begin, end in zip(self.ranks, ends, ends[1:], strict=False)
        }


def append(
    arrays: Arrays, state: State, some: Sequence[RankFrames], known: AbstractSet[bytes]
) -> State:
    """Append frames, where they are, and their schemas but for those whose hashes are `known`."""
    if not some:
        return state
    schemas = {schema.hash: schema for one in some for _, schema in one.frames.values()}
    new = [schema for name, schema in schemas.items() if name not in known]
    state = append_lines(arrays, state, SCHEMAS, map(msgspec.json.encode, new))
    start = stop = -(-state.logs[RANK_FRAMES] // RANK_FRAME_CHUNK) * RANK_FRAME_CHUNK
    parts, entries = list[bytes](), list[KeptAt]()
    for one in some:
        packed = {rank: pack(frame) for rank, (frame, _) in sorted(one.frames.items())}
        sizes = tuple(map(len, packed.values()))
        entries.append(KeptAt(record=one.record, start=stop, ranks=tuple(packed), sizes=sizes))
        parts += packed.values()
        stop += sum(sizes)
    arrays.append_bytes(RANK_FRAMES, start, b"".join(parts))
    state = replace(state, logs={**state.logs, RANK_FRAMES: stop})
    lines = (json.dumps(asdict(entry)).encode() for entry in entries)
    return append_lines(arrays, state, INDEX, lines)


def append_lines(arrays: Arrays, state: State, name: str, lines: Iterable[bytes]) -> State:
    """Append to one of `LOGS`."""
    text = b"".join(line + b"\n" for line in lines)
    if not text:
        return state
    start = state.logs[name]
    arrays.append_bytes(name, start, text)
    return replace(state, logs={**state.logs, name: start + len(text)})


def pack(frame: PackedFrame) -> bytes:
    """A frame as it is kept: the length of its header, its header and its blob."""
    header = encode(frame.header)
    return HEAD.pack(len(header)) + header + blob_of(frame)


def unpack(text: memoryview, schemas: Mapping[bytes, Schema]) -> PackedFrame:
    """What `pack` was given.

    Raises:
        ProtocolError: it was damaged.
    """
    [length] = HEAD.unpack_from(text)
    begin = HEAD.size + length
    header = decode(text[HEAD.size : begin], "agent")
    return open_frame(header, text[begin:], schemas[header.schema])


def read_index(lines: Iterable[Any]) -> dict[int, KeptAt]:
    """By record where its frames lie, from the entries of the log."""
    entries = (msgspec.convert(line, KeptAt) for line in lines)
    return {entry.record: entry for entry in entries}


def read_schemas(lines: Iterable[Any]) -> dict[bytes, Schema]:
    """By hash, from the entries of the log."""
    schemas = (msgspec.convert(line, Schema) for line in lines)
    return {schema.hash: schema for schema in schemas}
