"""What neighbouring records come to together: extremes, counts and histograms of 16 and of 256.

The blocks of 2,048 records are made at once when these lie in the history, which does not change,
so that each chunk is written once. A record that is patched later makes its stretch stale in the
same transaction: questions read the records themselves until it has been made again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray

from ..sketch.derive import MAIN, SENTINEL
from ..sketch.table import BINS
from .arrays import Arrays, ranges, resize, spans
from .chunks import Part, each_chunk, read_regions, write_regions
from .layout import ARRAYS, BLOCKS, ENDS, PYRAMID, STRETCH, pyramid_path
from .record import Record
from .selection import BAD, GLANCED, SKETCHED, is_counted, may_hold_all
from .state import State

SEEN_ALWAYS = [MAIN.index(name) for name in MAIN if name in SENTINEL]
"""Main statistics that are known of what was left to the sentinel, too."""
SITES_AT_ONCE = ARRAYS["histogram"].history[1]
"""Sites whose counts and histograms are added up in one piece of work."""


class Piece(NamedTuple):
    """What is made of a stretch at a time."""

    sums: bool
    """Counts and histograms, or else the extremes."""
    sites: slice


def stretch_due(state: State) -> int | None:
    """The number of the stretch that is to be made now, if any."""
    if state.stale:
        return state.stale[0]
    settled = min(state.recent, state.history["scalars"], state.history["counts"])
    return state.stretches if (state.stretches + 1) * STRETCH <= settled else None


def is_behind(state: State) -> bool:
    """Whether it is late: more than one stretch waits."""
    settled = min(state.recent, state.history["scalars"], state.history["counts"])
    return (state.stretches + 2) * STRETCH <= settled


def stretch_of(record: Record) -> int:
    """The number of the stretch that a record is in."""
    return record.index // STRETCH


def with_patches(state: State, records: Iterable[Record]) -> State:
    """The state in which the stretches of these records are stale, if they had been made."""
    touched = set(map(stretch_of, records))
    stale = {stretch for stretch in touched if stretch < state.stretches}
    if stale <= set(state.stale):
        return state
    return replace(state, stale=tuple(sorted(stale.union(state.stale))))


def with_stretch(state: State, stretch: int) -> State:
    """The state in which a stretch is made."""
    stale = tuple(other for other in state.stale if other != stretch)
    return replace(state, stale=stale, stretches=max(state.stretches, stretch + 1))


def pieces_of(arrays: Arrays) -> list[Piece]:
    """The work on a stretch, in pieces of about equal cost."""
    sites = arrays.at("history", "scalars").shape[1]
    extremes = [Piece(False, span) for span in spans(sites, PYRAMID["extremes"].history[1])]
    return extremes + [Piece(True, span) for span in spans(sites, SITES_AT_ONCE)]


def make(arrays: Arrays, state: State, stretch: int, piece: Piece) -> None:
    """Make one piece of a stretch from the history, and store it."""
    records = slice(stretch * STRETCH, (stretch + 1) * STRETCH)
    facts = arrays.at("history", "records")
    columns = read(facts, records, slice(0, BAD + 1))
    sketched = may_hold_all(*columns[:, [SKETCHED, GLANCED, BAD]].T)
    if piece.sums:
        make_sums(arrays, state, records, piece.sites, sketched)
    else:
        make_extremes(arrays, records, piece.sites, sketched)


def make_extremes(
    arrays: Arrays, records: slice, sites: slice, sketched: NDArray[np.bool_]
) -> None:
    """The smallest and the largest number of each block."""
    source, block = arrays.at("history", "scalars"), min(BLOCKS)
    shape = len(sketched) // block, sites.stop - sites.start, len(MAIN), len(ENDS)
    extremes = np.empty(shape, np.float32)

    def fold(part: Part, chunk: NDArray[Any]) -> None:
        where, some, statistics = part.outside
        for column in range(statistics.start, statistics.stop):
            if column not in SEEN_ALWAYS:
                chunk[~sketched[where], :, column - statistics.start] = np.nan
        at = slice(where.start // block, where.stop // block), some, statistics
        fold_blocks(chunk, chunk, block, extremes[at])

    each_chunk(source, (records, *ranges(source, (sites,))), fold)
    for size in reversed(BLOCKS):
        if size > block:
            low, high = extremes[..., 0], extremes[..., 1]
            extremes = np.empty((shape[0] * block // size, *shape[1:]), np.float32)
            fold_blocks(low, high, size // block, extremes)
        store(arrays, size, "extremes", records.start, extremes, (sites,))


def fold_blocks(
    low: NDArray[np.float32], high: NDArray[np.float32], size: int, into: NDArray[np.float32]
) -> None:
    """The smallest of `low` and the largest of `high`, of each `size` rows; NaN for none."""
    for end, (rows, worst) in enumerate(((low, np.fmin), (high, np.fmax))):
        worst.reduce(rows.reshape(-1, size, *rows.shape[1:]), axis=1, out=into[..., end])


def make_sums(
    arrays: Arrays, state: State, records: slice, sites: slice, sketched: NDArray[np.bool_]
) -> None:
    """The counts and histograms of each block, over the records that sketched a site."""
    counts = read(arrays.at("history", "counts"), records, sites)
    known = is_counted(counts) & sketched[:, None]
    counts[~known] = 0
    some, block, not_kept = known, 1, counts < 0
    histogram = add_histograms(arrays, state, records, sites, known, int(counts.max(initial=0)))
    for size in reversed(BLOCKS):
        times, block = size // block, size
        counts, some = add_blocks(counts, times), add_blocks(some, times) > 0
        not_kept = add_blocks(not_kept, times) > 0
        counts[not_kept] = -1
        if size != min(BLOCKS):
            histogram = add_blocks(histogram, times)
        told = np.where(some[..., None], counts, -1)
        store(arrays, size, "counts", records.start, told, (sites,))
        store(arrays, size, "histogram", records.start, histogram, (sites,))


def add_blocks(rows: NDArray[Any], size: int) -> NDArray[np.int64]:
    """int64: of each `size` rows the sum."""
    return rows.reshape(-1, size, *rows.shape[1:]).sum(axis=1, dtype=np.int64)


def add_histograms(
    arrays: Arrays,
    state: State,
    records: slice,
    sites: slice,
    known: NDArray[np.bool_],
    most: int,
) -> NDArray[np.int64]:
    """int64 [smallest blocks, sites, BINS]: sums over the records that are `known`.

    Args:
        known: bool [records, sites]
        most: the largest count of a record.
    """
    size = min(BLOCKS)
    total = np.zeros((len(known) // size, known.shape[1], BINS), np.int64)
    # Half the time where no sum can pass 32 bits.
    dtype = np.uint32 if most * size <= np.iinfo(np.uint32).max else np.uint64
    for name, shift in (("histogram", 0), ("histogram_high", 32))[: 1 + state.wide]:
        array = arrays.at("history", name)

        def add(part: Part, chunk: NDArray[Any], shift: int = shift) -> None:
            counted = known[part.outside[:2]]
            if not counted.all():
                chunk[~counted] = 0
            sums = chunk.reshape(-1, size, *chunk.shape[1:]).sum(axis=1, dtype=dtype)
            first, last = part.outside[0].start // size, part.outside[0].stop // size
            total[first:last, part.outside[1]] += sums.astype(np.int64) << shift

        each_chunk(array, (records, *ranges(array, (sites,))), add)
    return total


def read(array: zarr.Array[Any], records: slice, *inner: slice) -> NDArray[Any]:
    """These records of an array, and what is selected after the record."""
    where = (records, *ranges(array, inner))
    found = np.empty([span.stop - span.start for span in where], array.dtype)
    read_regions([(array, where, found)])
    return found


def store(
    arrays: Arrays, block: int, name: str, record: int, rows: NDArray[Any], inner: tuple[slice, ...]
) -> None:
    """Put the rows of the blocks from a record on where they belong."""
    array = arrays.open(pyramid_path(block, name))
    first = record // block
    resize(array, (first + len(rows), *array.shape[1:]))
    where = slice(first, first + len(rows)), *ranges(array, inner)
    write_regions([(array, where, np.ascontiguousarray(rows, array.dtype))])
