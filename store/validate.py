"""What a writer refuses to store. Checked before anything is written; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from ..sketch.distribution import RANKED, SPREAD, SUMMARY
from ..sketch.errors import StoreError
from ..sketch.table import BINS, COUNTS, MOMENTS, NEGATIVE, SUBNORMAL, SketchTable
from .record import Record
from .state import Meta


def check_records(records: Sequence[Record], meta: Meta, next_record: int) -> list[Record]:
    """The records to write, ascending; of two with one index the later counts.

    Raises:
        StoreError: a record cannot be stored; the message says which and why.
    """
    by_index = {record.index: record for record in records}
    ordered = [by_index[index] for index in sorted(by_index)]
    for record in ordered:
        problem = problem_of(record, meta)
        if problem:
            raise StoreError(f"Record {record.index} (step {record.step}) {problem}")
        if record.index > next_record:
            raise StoreError(
                f"Record {record.index} would leave a hole: the next free index is {next_record}."
            )
        next_record = max(next_record, record.index + 1)
    return ordered


def problem_of(record: Record, meta: Meta) -> str | None:
    """Why a record cannot be stored, as the rest of a sentence."""
    rows, sites = len(record.sites), np.asarray(record.sites)
    if record.index < 0:
        return "has a negative index."
    if not 0 <= record.attempt < len(meta.attempts):
        return f"is of attempt {record.attempt}; known are {len(meta.attempts)}, see `attempt_of`."
    if sites.dtype.kind not in "iu" or sites.ndim != 1:
        return f"needs its sites as one axis of integers, got {sites.dtype} {sites.shape}."
    if rows and (sites[0] < 0 or sites[-1] >= len(meta.sites) or np.any(np.diff(sites) <= 0)):
        return f"needs sites strictly increasing below {len(meta.sites)}, see `add_sites`."
    return (
        wrong_shape(record, rows)
        or wrong_exact_count(record, meta)
        or wrong_quantity(record, meta)
        or wrong_ranks(record)
    )


def wrong_shape(record: Record, rows: int) -> str | None:
    """Which column has the wrong shape or dtype."""
    counts, moments, checksum, histogram = record.merged.columns()
    expected: dict[str, tuple[NDArray[Any], tuple[int, ...], str]] = {
        "counts": (counts, (rows, len(COUNTS)), "int64"),
        "moments": (moments, (rows, len(MOMENTS)), "float64"),
        "checksum": (checksum, (rows,), "uint64"),
        "histogram": (histogram, (rows, BINS), "int64"),
        "spread": (record.spread, (rows, len(MAIN), len(SPREAD)), "float32"),
    }
    if len(record.told):
        expected["what was told"] = record.told, (rows, len(MAIN)), "float32"
    if len(record.distribution):
        shape = len(record.distribution), rows, len(RANKED), len(SUMMARY)
        expected["distribution"] = record.distribution, shape, "float32"
    for rank, numbers in record.by_rank.items():
        expected[f"the numbers of rank {rank}"] = (numbers, (rows, len(MAIN)), "float32")
    for group, numbers in record.by_group.items():
        if "=" not in group:
            return f"needs groups called like axis=coordinate, got {group!r}."
        expected[f"the numbers of {group}"] = (numbers, (rows, len(MAIN)), "float32")
    for name, (column, shape, dtype) in expected.items():
        if column.shape != shape or column.dtype != dtype:
            return f"needs {name} as {dtype} {shape}, got {column.dtype} {column.shape}."
    if rows and (int(counts.min()) < 0 or int(histogram.min()) < 0) and is_negative(record.merged):
        return "has a negative count."
    return None


def is_negative(table: SketchTable) -> bool:
    """Whether some count is below 0 that does not mean that it was not kept."""
    not_kept = np.zeros(table.counts.shape, np.bool_)
    not_kept[:, [NEGATIVE, SUBNORMAL]] = table.lacks_moments()[:, None]
    not_kept &= table.counts == -1
    return bool((table.counts < 0)[~not_kept].any() or (table.histogram < 0).any())


def wrong_exact_count(record: Record, meta: Meta) -> str | None:
    """Which counts are of no exact count of the run, or have another shape."""
    for index, counts in record.exact_counts.items():
        if not 0 <= index < len(meta.exact_counts):
            return f"needs exact counts below {len(meta.exact_counts)}, got {index}."
        info = meta.exact_counts[index]
        if counts.shape != info.exact_count.shape or counts.dtype != np.int64:
            expected = f"int64 {info.exact_count.shape}"
            return f"needs {info.name} as {expected}, got {counts.dtype} {counts.shape}."
        if int(counts.min()) < 0:
            return f"has a negative count in {info.name}."
    return None


def wrong_quantity(record: Record, meta: Meta) -> str | None:
    """Which numbers are of no quantity of the run, or more or fewer than it has."""
    for index, values in record.derived.numbers().values.items():
        if not 0 <= index < len(meta.quantities):
            return f"needs quantities below {len(meta.quantities)}, got {index}."
        info = meta.quantities[index]
        if values.shape != (info.width,):
            return f"needs {info.label} as float64 ({info.width},), got {values.shape}."
    return None


def wrong_ranks(record: Record) -> str | None:
    """What is wrong with the ranks that a record speaks of."""
    named: dict[str, Sequence[int] | Mapping[int, object]] = {
        "ranks": record.ranks,
        "by_rank": record.by_rank,
        "training": record.training,
        "health": record.health,
    }
    for name, ranks in named.items():
        if any(rank < 0 for rank in ranks):
            return f"has a negative rank in `{name}`."
    if any(
        later <= earlier for earlier, later in zip(record.ranks, record.ranks[1:], strict=False)
    ):
        return f"needs its ranks ascending, got {record.ranks}."
    return None
