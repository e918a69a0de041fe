"""Records as blocks of the store's arrays: pure NumPy, nothing is read or written here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from ..sketch.distribution import SPREAD
from ..sketch.table import BINS, SketchTable, without_copies
from .implied import TELLING, digits_of, is_of_one
from .layout import ARRAYS, COLUMNS, Dims, mask_words
from .record import Record
from .state import Meta

ByIndex = Mapping[int, NDArray[np.float32]]
Blocks = dict[str, NDArray[Any]]
"""By array: [records, …] in the array's own dtype."""

APART = {"ranks", "groups"}
"""Arrays whose blocks may be large."""
NONFINITE = MAIN.index("nonfinite")
SAID = [MAIN.index(name) for name in TELLING]
LOW_BITS = np.int64(0xFFFF_FFFF)
TOLD_NAN = np.array(0x7FF8_0000_0000_0001, np.uint64).view(np.float64)
"""A number that was told and is NaN; what was not told is NaN with no bit of its payload set."""


def dims_for(meta: Meta, records: Iterable[Record]) -> dict[str, int]:
    """The sizes of the growing axes that these records need."""
    highest = max((top_rank(record) for record in records), default=-1)
    ranks = max(meta.world_size, highest + 1, 1)
    return {
        "site": max(len(meta.sites), 1),
        "rank": ranks,
        "column": len(COLUMNS) + mask_words(ranks),
        "training": max(len(meta.training), 1),
        "health": max(len(meta.health), 1),
        "number": meta.numbers,
        "value": meta.values,
        "group": len(meta.groups),
        "peers": max((len(record.distribution) for record in records), default=0),
    }


def top_rank(record: Record) -> int:
    """The highest rank that a record speaks of, -1 for none."""
    return max(chain(record.ranks, record.by_rank, record.training, record.health), default=-1)


def pack(records: Sequence[Record], meta: Meta, dims: Dims, *, wide: bool) -> Blocks:
    """The blocks of consecutive records, but for `APART`; see `pack_apart`.

    `wide` asks for `histogram_high` too.
    """
    apart = APART if wide else {*APART, "histogram_high"}
    blocks = {name: empty(name, len(records), dims) for name in ARRAYS if name not in apart}
    columns = all_rows([record.merged for record in records])
    scalars = np.concatenate([main_scalars(record) for record in records])
    digits = digits_of(columns.counts, columns.moments, scalars[:, SAID])
    start = 0
    for row, record in enumerate(records):
        stop = start + len(record.sites)
        own = scalars[start:stop]
        alone = is_of_one(record, own)
        blocks["records"][row] = facts(record, own, dims, alone=alone)
        rows = {name: block[row] for name, block in blocks.items()}
        sites = without_copies(record.sites)
        rows["scalars"][sites], rows["digits"][sites] = own, digits[start:stop]
        if not alone:
            rows["spread"][sites] = record.spread
        pack_sites(rows, record)
        pack_numbers(blocks["training"][row], record.training, meta.training)
        pack_numbers(blocks["health"][row], record.health, meta.health)
        for index, counts in record.exact_counts.items():
            blocks["exact_counts"][row, meta.exact_counts[index].numbers] = counts.reshape(-1)
        for index, values in record.derived.numbers().values.items():
            told = np.where(np.isnan(values), TOLD_NAN, values)
            blocks["quantities"][row, meta.quantities[index].numbers] = told
        start = stop
    return blocks


def empty(name: str, records: int, dims: Dims) -> NDArray[Any]:
    """A block of that array in which nothing was observed."""
    layout = ARRAYS[name]
    return np.full((records, *layout.shape(dims)), layout.fill, layout.dtype)


def all_rows(tables: Sequence[SketchTable]) -> SketchTable:
    """The rows of several tables, one below the other, without histograms."""
    return SketchTable(
        np.concatenate([table.counts for table in tables]),
        np.concatenate([table.moments for table in tables]),
        np.concatenate([table.checksum for table in tables]),
        # Nobody asks for their histograms, whose copy would take longer than all else.
        np.empty((0, BINS), np.int64),
    )


def main_scalars(record: Record) -> NDArray[np.float32]:
    """float32 [rows, len(MAIN)]; what lies beyond float32 is infinite there."""
    with np.errstate(over="ignore"):
        return record.statistics.main().astype(np.float32)


def facts(
    record: Record, scalars: NDArray[np.float32], dims: Dims, *, alone: bool
) -> NDArray[np.int64]:
    """int64 [columns]: the row of the array `records`."""
    # What cannot be merged (Partial tensors) is seen by rank only.
    bad = (scalars[:, NONFINITE] > 0) | (record.spread[:, NONFINITE, SPREAD.index("max")] > 0)
    row = np.zeros(dims["column"], np.int64)
    row[: len(COLUMNS)] = (
        record.step,
        record.attempt,
        record.time_ns,
        record.complete,
        record.partial,
        record.final,
        len(record.sites),
        len(record.ranks),
        np.count_nonzero(record.merged.measured() > 0),
        np.count_nonzero(record.merged.is_glance()),
        np.count_nonzero(bad),
        record.unmatched,
        record.kept,
        alone,
    )
    words = row[len(COLUMNS) :].view(np.uint64)
    for rank in record.ranks:
        words[rank // 64] |= np.uint64(1) << np.uint64(rank % 64)
    return row


def pack_sites(rows: Blocks, record: Record) -> None:
    """Fill one record's rows [sites, …] with what was observed and follows from nothing else."""
    sites, merged = without_copies(record.sites), record.merged
    rows["counts"][sites] = merged.counts
    rows["checksum"][sites] = merged.checksum
    rows["histogram"][sites] = merged.histogram  # what does not fit is cut off: the upper bits
    if len(record.distribution):
        rows["distribution"][: len(record.distribution), sites] = record.distribution
    if "histogram_high" in rows:
        rows["histogram_high"][sites] = merged.histogram >> 32


def is_wide(table: SketchTable) -> bool:
    """Whether a bin's count needs more than 32 bits."""
    # A bin holds no more than there are elements: the columns of counts are much smaller.
    largest = int(table.counts.max(initial=0))
    return largest > int(LOW_BITS) and bool((table.histogram > LOW_BITS).any())


def pack_numbers(
    rows: NDArray[np.float64], numbers: Mapping[int, Mapping[str, float]], names: Sequence[str]
) -> None:
    """Fill float64 [ranks, names] with named numbers of each rank."""
    place = {name: position for position, name in enumerate(names)}
    for rank, values in numbers.items():
        for name, value in values.items():
            rows[rank, place[name]] = TOLD_NAN if value != value else value


def pack_apart(
    records: Sequence[Record], apart: Sequence[ByIndex], some: slice, sites: int
) -> NDArray[np.float32]:
    """float32 [records, some, sites, len(MAIN)]: the numbers of some ranks, or groups of ranks.

    Args:
        apart: of each record the numbers by rank or group, float32 [rows, len(MAIN)].
    """
    block = np.full((len(records), some.stop - some.start, sites, len(MAIN)), np.nan, np.float32)
    for row, (record, numbers_of) in enumerate(zip(records, apart, strict=True)):
        rows = without_copies(record.sites)
        for index, numbers in numbers_of.items():
            if some.start <= index < some.stop:
                block[row, index - some.start, rows] = numbers
    return block


def was_told(numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    """bool: which of these were told, if as NaN."""
    return ~np.isnan(numbers) | (numbers.view(np.uint64) == TOLD_NAN.view(np.uint64))


def consecutive(records: Iterable[Record]) -> list[list[Record]]:
    """Records in stretches without a hole, each to be written at once. They must be ascending."""
    stretches: list[list[Record]] = []
    for record in records:
        if stretches and stretches[-1][-1].index + 1 == record.index:
            stretches[-1].append(record)
        else:
            stretches.append([record])
    return stretches
