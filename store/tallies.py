"""The elements of many sites by magnitude, a few records or stretches of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from ..sketch.table import (
    ABS_MIN,
    BINS,
    COUNT,
    MAX,
    MIN,
    MOMENTS,
    NAN,
    NEG_INF,
    OVER,
    POS_INF,
    UNDER,
    UNSEEN,
    ZERO,
    Floats,
    Ints,
    SketchTable,
)
from ..sketch.tally import Tally
from .columns import Columns, in_columns
from .layout import CHUNK
from .reader import Reader
from .selection import Chosen, Indices, is_counted
from .values import Pooled, pooled_by, silent_records, summed

ROWS_AT_ONCE = 8192
"""Histograms that are in memory at a time."""
RECORDS_AT_ONCE = CHUNK["recent"]
"""A chunk of histograms holds so many: of each as much as is wanted is taken at once."""
EXACT = ("float32", "float16", "bfloat16")
"""Of these the extremes are kept as they are; of others rounded to float32."""
ABS = tuple(MAIN.index(name) for name in ("abs_max", "abs_min"))


@dataclass(frozen=True, slots=True, eq=False)
class SomeTallies:
    """Those of some records, or stretches of them, and of some of the sites."""

    records: Indices
    """int64: which records these are; none of stretches."""
    steps: Indices
    """int64 [columns]: the step of each record, or the first of each stretch."""
    sites: slice
    """Which of the sites asked for."""
    tally: Tally
    """A row for each sketch that is there."""
    column: Indices
    """int64 [rows]: which column each is of."""
    site: Indices
    """int64 [rows]: and which of all sites asked for."""
    nonfinite: NDArray[np.bool_]
    """bool [rows]: whether the tensor has NaN or infinity."""
    seen_share: Floats
    """float64 [rows]: below 1 of a sample."""


class Tallies:
    """All of them, as often as they are asked for; a few are read only once."""

    def __init__(
        self, reader: Reader, chosen: Chosen, places: Indices, width: int | None = None
    ) -> None:
        """Of the chosen records.

        Args:
            reader: a snapshot.
            chosen: the records.
            places: the sites.
            width: take neighbouring steps together, so that there are at most so many stretches.
        """
        self._reader, self._chosen, self._places = reader, chosen, places
        self._width = width if width is not None and width < len(chosen) else None
        columns = len(chosen) if self._width is None else self._width
        self._key: tuple[object, ...] | None = None
        if columns * len(places) <= ROWS_AT_ONCE:
            self._key = ("tallies", self._width, chosen.records.tobytes(), places.tobytes())

    def __iter__(self) -> Iterator[SomeTallies]:
        made = self._stretches if self._width is not None else self._records
        if self._key is None:
            return made()
        key, found = self._reader.kept.get("tallies", (None, []))
        if key != self._key:  # another thread may ask for others meanwhile
            found = list(made())
            self._reader.kept["tallies"] = self._key, found
        return iter(found)

    def _records(self) -> Iterator[SomeTallies]:
        chosen, places = self._chosen, self._places
        at_once = min(max(len(chosen), 1), RECORDS_AT_ONCE)
        for sites in _parts(len(places), ROWS_AT_ONCE // at_once):
            for some in _parts(len(chosen), at_once):
                records = chosen.records[some]
                table = read_sketches(self._reader, records, places[sites])
                steps = chosen.steps[some]
                yield _some(records, steps, sites, table, exact=np.ones(len(table), np.bool_))

    def _stretches(self) -> Iterator[SomeTallies]:
        reader, silent = self._reader, silent_records(self._reader, "rms")
        columns = in_columns(self._chosen, self._width, reader.state, silent=silent)
        for sites in _parts(len(self._places), ROWS_AT_ONCE // max(1, len(columns))):
            places = self._places[sites]
            table, exact = _summed(reader, columns, places, glanced=self._chosen.glanced)
            nothing = np.zeros(0, np.int64)
            yield _some(nothing, columns.first, sites, table, exact=exact)


def _parts(length: int, at_once: int) -> Iterator[slice]:
    step = max(at_once, 1)
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def has_histogram(table: SketchTable) -> NDArray[np.bool_]:
    """bool [rows]: whether all elements are in it: of what is not added up yet none are."""
    counts = table.counts
    held = table.histogram.sum(axis=1) + counts[:, UNDER] + counts[:, OVER]
    return held == table.measured() - counts[:, ZERO]


def _some(
    records: Indices, steps: Indices, sites: slice, table: SketchTable, *, exact: NDArray[np.bool_]
) -> SomeTallies:
    """Args: table [columns x sites]; exact, bool of the same: whether its extremes are so."""
    known = np.flatnonzero(is_counted(table.counts) & has_histogram(table))
    column, site = divmod(known, sites.stop - sites.start)
    counts = table.counts[known]
    seen = counts[:, COUNT].astype(np.float64)
    every = seen + counts[:, UNSEEN]
    return SomeTallies(
        records=records,
        steps=steps,
        sites=sites,
        tally=Tally.of(table.take(known)).rounded(~exact[known]),
        column=column,
        site=site + sites.start,
        nonfinite=counts[:, [NAN, POS_INF, NEG_INF]].sum(axis=1) > 0,
        seen_share=np.divide(seen, every, out=np.full(len(seen), np.nan), where=every > 0),
    )


def read_sketches(reader: Reader, records: Indices, places: Indices) -> SketchTable:
    """[records x sites] rows of counts, histograms and extremes.

    The other moments are NaN; so is `min` in rows that lack moments, and nowhere else.
    """
    exact = () if reader.is_imported else EXACT
    wide = np.flatnonzero([site.dtype not in exact for site in reader.sites(places)])
    counts, largest, smallest, moments = reader.read_all(
        [
            ("counts", records, (places,)),
            *(("scalars", records, (places, column)) for column in ABS),
            ("moments", records, (places[wide],)),
        ]
    )
    every = _moments(largest, smallest)
    every[:, wide] = moments
    return _table(counts, every, reader.histograms(records, places))


def _summed(
    reader: Reader, columns: Columns, places: Indices, *, glanced: bool
) -> tuple[SketchTable, NDArray[np.bool_]]:
    """[columns x sites] rows of what all steps of a column hold together."""
    counts, histograms = summed(reader, columns, places)
    asked: list[Pooled] = [("abs_max", "merged", "max"), ("abs_min", "merged", "min")]
    extremes = pooled_by(reader, asked, columns, places, np.arange(len(places)))
    moments = _moments(*(one.T for one in extremes))
    if reader.is_imported:  # where one step does not tell its extremes, all do not
        moments[:] = np.nan
    table = _table(counts, moments, histograms)
    is_exact = np.array([site.dtype in EXACT for site in reader.sites(places)], np.bool_)
    # A sentinel sees extremes of what is in no histogram.
    return table, np.tile(is_exact & (not glanced), len(columns))


def _moments(largest: NDArray[np.floating], smallest: NDArray[np.floating]) -> Floats:
    """float64 [columns, sites, MOMENTS] of the extremes of |x|; the others are NaN."""
    moments = np.full((*largest.shape, len(MOMENTS)), np.nan)
    some = ~np.isnan(largest)
    moments[..., MAX] = np.where(some, largest, -np.inf)
    moments[..., MIN] = -moments[..., MAX]
    moments[..., ABS_MIN] = np.where(np.isnan(smallest), np.inf, smallest)
    return moments


def _table(counts: Ints, moments: Floats, histograms: Ints) -> SketchTable:
    rows = counts.shape[0] * counts.shape[1]
    return SketchTable(
        counts.reshape(rows, -1),
        moments.reshape(rows, -1),
        np.zeros(rows, np.uint64),
        histograms.reshape(rows, BINS),
    )
