"""What counts as bad, and where it is in one record: by rank and site."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from ..sketch.formats import number_format
from ..sketch.ranges import overflow
from .reader import Reader
from .record import SPREAD
from .selection import BAD, Chosen


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
        return MAIN.index("abs_max" if self.format else "nonfinite")

    def exceeds(self, numbers: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Where the main statistic tells of it."""
        if not self.format:
            return numbers > 0
        return numbers >= number_format(self.format).overflow_threshold

    def first(self, reader: Reader, chosen: Chosen) -> tuple[int, NDArray[np.bool_]] | None:
        """The first of the chosen records that has some, and in it bool [sites]: which have."""
        if self.format:
            return self._first_overflow(reader, chosen)
        bad = np.flatnonzero(reader.facts()[chosen.records, BAD] > 0)
        if not len(bad):
            return None
        return int(bad[0]), np.ones(len(reader.meta.sites), np.bool_)

    def _first_overflow(
        self, reader: Reader, chosen: Chosen
    ) -> tuple[int, NDArray[np.bool_]] | None:
        target = number_format(self.format)
        largest = reader.read(
            "spread", chosen.records, slice(None), self.column, SPREAD.index("max")
        )
        for at in np.flatnonzero(self.exceeds(largest).any(axis=1)).tolist():
            places = np.flatnonzero(self.exceeds(largest[at]))
            here, table = reader.table(int(chosen.records[at]), places)
            # Of addends, which are not merged, and of what a sentinel saw there is no share.
            unknown = ~(table.measured() > 0)
            enough = unknown | (overflow(table, target).low > self.above)
            if enough.any():
                bad = np.zeros(len(reader.meta.sites), np.bool_)
                bad[here[enough]] = True
                return at, bad
        return None


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
        at = np.array([record])
        by_rank = reader.read("ranks", at, slice(None), slice(None), badness.column)[0]
        if not np.isnan(by_rank).all():
            bad = badness.exceeds(by_rank) & sites
            return cls(list(range(len(by_rank))), bad, ~np.isnan(by_rank))
        spread = reader.read("spread", at, slice(None), badness.column)[0]
        largest, whose = spread[:, SPREAD.index("max")], spread[:, SPREAD.index("argmax")]
        bad = badness.exceeds(largest) & sites
        ranks = np.unique(whose[bad]).astype(int).tolist()
        seen = np.broadcast_to(~np.isnan(largest), (len(ranks), len(largest)))
        return cls(ranks, bad & (whose == np.array(ranks)[:, None]), seen)
