"""Deleting the detail of old records, where the user asked for it, and saying so for ever.

What is deleted goes in whole chunks of the history, so up to 511 records more than asked are kept.
That a record was there, when, and with which ranks, stays (`records`), as do training statistics
and counters: they are small. Readers never look at the rest of a deleted record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zarr.abc.store import Store
from zarr.core.sync import sync

from .arrays import Arrays
from .layout import ARRAYS, CHUNK, RANK_FRAME_CHUNK, RANK_FRAMES
from .rank_frames import INDEX, read_index
from .record import Event
from .selection import ATTEMPT, STEP, Indices
from .state import State

FOR_EVER = ("records", "training", "health")
"""Arrays of which nothing is deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """What retention would delete."""

    first: int
    stop: int
    """Records from `first` up to `stop`."""
    chunks: Sequence[str]
    """Their keys in the store."""
    size_bytes: int
    """As they are stored."""


def cut_of(state: State, keep: int) -> int:
    """Below which record the detail can be deleted, if the last `keep` are to stay."""
    chunk = CHUNK["history"]
    moved = min(state.bounds(name).history for name in ARRAYS)
    return max(min(state.records - keep, moved) // chunk * chunk, state.deleted)


def doomed(arrays: Arrays, state: State, keep: int) -> Doomed:
    """What would be deleted, if the last `keep` records are to stay."""
    stop = cut_of(state, keep)
    if stop == state.deleted:
        return Doomed(first=stop, stop=stop, chunks=(), size_bytes=0)
    limits = {
        f"history/{name}": stop // arrays.at("history", name).chunks[0]
        for name in ARRAYS
        if name not in FOR_EVER
    }
    limits[RANK_FRAMES] = _frames_below(arrays, state, stop) // RANK_FRAME_CHUNK
    chunks, size_bytes = sync(_below(arrays.store, limits))
    return Doomed(first=state.deleted, stop=stop, chunks=chunks, size_bytes=size_bytes)


def _frames_below(arrays: Arrays, state: State, stop: int) -> int:
    """Up to which byte of `RANK_FRAMES` there are only frames of records below `stop`."""
    index = read_index(arrays.entries(INDEX, state.logs[INDEX]))
    later = (at.start for record, at in index.items() if record >= stop)
    return min(later, default=state.logs[RANK_FRAMES])


def event_of(found: Doomed, facts: Indices, keep: int, time_ns: int) -> Event:
    """What the run tells of it for ever.

    Args:
        facts: int64 [records, columns]: the rows of the array `records` that are meant.
    """
    steps = facts[:, STEP]
    text = (
        f"{len(facts)} records of steps {steps.min()} to {steps.max()} were deleted by retention, "
        f"which keeps the last {keep}: {found.size_bytes} bytes."
    )
    attempt = int(facts[-1, ATTEMPT])
    last = int(steps.max())
    return Event(kind="retention", attempt=attempt, rank=-1, step=last, text=text, time_ns=time_ns)


def delete(store: Store, chunks: Sequence[str]) -> None:
    """Take chunks out of a session; the space is free once no snapshot needs them."""
    sync(_delete(store, chunks))


async def _below(store: Store, limits: dict[str, int]) -> tuple[list[str], int]:
    """The chunks of arrays whose place along the records is below a limit, and their bytes."""
    found, size_bytes = list[str](), 0
    for path, limit in limits.items():
        begin = f"{path}/c/"
        async for key in store.list_prefix(path):
            if key.startswith(begin) and int(key.removeprefix(begin).split("/")[0]) < limit:
                found.append(key)
                size_bytes += await store.getsize(key)
    return found, size_bytes


async def _delete(store: Store, chunks: Sequence[str]) -> None:
    for key in chunks:
        await store.delete(key)
