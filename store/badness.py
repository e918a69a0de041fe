"""What counts as bad, and where it is in one record: by rank and site."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from ..sketch.distribution import SPREAD
from ..sketch.formats import number_format
from ..sketch.ranges import overflow
from ..sketch.table import OVER, UNDER, ZERO, SketchTable
from .reader import Reader
from .selection import BAD, Chosen, Indices

NONFINITE, ABS_MAX = MAIN.index("nonfinite"), MAIN.index("abs_max")
LARGEST, WHOSE = SPREAD.index("max"), SPREAD.index("argmax")
ROWS_AT_ONCE = 8192
"""Histograms that are in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Badness:
    """What counts as bad: NaN and infinity, or more than so many numbers beyond a format."""

    format: str = ""
    """Of numbers; none: NaN and infinity are bad."""
    above: float = 0.0
    """Share of a tensor's finite numbers other than 0 that may lie beyond the format."""

    @property
    def words(self) -> str:
        """What a bad tensor has."""
        return f"numbers beyond {self.format}" if self.format else "non-finite values"

    @property
    def column(self) -> int:
        """The main statistic that tells of it, for each rank."""
        return ABS_MAX if self.format else NONFINITE

    def exceeds(self, numbers: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Where the main statistic tells of it."""
        if not self.format:
            return numbers > 0
        return numbers >= number_format(self.format).overflow_threshold

    def first(self, reader: Reader, chosen: Chosen) -> tuple[int, NDArray[np.bool_]] | None:
        """The first of the chosen records that has some, and in it bool [sites]: which have."""
        if not self.format:
            bad = np.flatnonzero(reader.facts()[chosen.records, BAD] > 0)
            return (int(bad[0]), np.ones(len(reader.meta.sites), np.bool_)) if len(bad) else None
        largest = reader.read("spread", chosen.records, slice(None), ABS_MAX, LARGEST)
        beyond = self.exceeds(largest)[:, : len(reader.meta.sites)]
        candidates = np.flatnonzero(beyond.any(axis=1))
        if not len(candidates):
            return None
        if self.above <= 0:  # one number is enough
            return int(candidates[0]), beyond[candidates[0]]
        places = np.flatnonzero(beyond.any(axis=0))
        at_once = max(1, ROWS_AT_ONCE // len(places))
        for start in range(0, len(candidates), at_once):
            some = candidates[start : start + at_once]
            enough = self._share_exceeds(reader, chosen.records[some], places)
            enough &= beyond[np.ix_(some, places)]
            hit = np.flatnonzero(enough.any(axis=1))
            if len(hit):
                bad = np.zeros(beyond.shape[1], np.bool_)
                bad[places[enough[hit[0]]]] = True
                return int(some[hit[0]]), bad
        return None

    def _share_exceeds(
        self, reader: Reader, records: Indices, places: Indices
    ) -> NDArray[np.bool_]:
        """bool [records, places]: whether the share beyond is more than allowed, for sure.

        Where there is no share, of addends, which are not merged, and of what only a sentinel saw,
        one number beyond counts as enough, or not at all.
        """
        shape = len(records), len(places)
        counts = np.maximum(reader.read("counts", records, places), 0)
        table = SketchTable(
            counts.reshape(-1, counts.shape[-1]),
            reader.read("moments", records, places).reshape(shape[0] * shape[1], -1),
            np.zeros(shape[0] * shape[1], np.uint64),
            reader.histograms(records, places).reshape(shape[0] * shape[1], -1),
        )
        binned = table.histogram.sum(axis=1) + table.counts[:, [ZERO, UNDER, OVER]].sum(axis=1)
        nonzero = np.maximum(table.measured() - table.counts[:, ZERO], 1)
        share = np.maximum(overflow(table, number_format(self.format)).low, 1 / nonzero)
        is_addend = (binned != table.measured()) & ~table.is_glance()
        enough = is_addend | ((share > self.above) & ~table.is_glance())
        return enough.reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """One record, rank by rank."""

    ranks: list[int]
    bad: NDArray[np.bool_]
    """bool [ranks, sites]"""
    seen: NDArray[np.bool_]
    """bool [ranks, sites]"""

    @classmethod
    def of(cls, reader: Reader, record: int, badness: Badness, sites: NDArray[np.bool_]) -> Seen:
        """What a record holds by rank; where that was not kept, by the rank of the worst."""
        at, count = np.array([record]), len(reader.meta.sites)
        by_rank = reader.read("ranks", at, slice(None), slice(0, count))[0]
        bad = badness.exceeds(by_rank[..., badness.column]) & sites
        spread = reader.read("spread", at, slice(0, count))[0]
        largest = spread[:, badness.column, LARGEST]
        wrong = badness.exceeds(largest) & sites
        if np.array_equal(bad.any(axis=0), wrong):
            return cls(list(range(len(by_rank))), bad, ~np.isnan(by_rank[..., NONFINITE]))
        whose = spread[:, badness.column, WHOSE]
        ranks = np.unique(whose[wrong]).astype(int).tolist()
        there = ~np.isnan(spread[:, NONFINITE, LARGEST])
        seen = np.broadcast_to(there, (len(ranks), count))
        return cls(ranks, wrong & (whose == np.array(ranks)[:, None]), seen)
