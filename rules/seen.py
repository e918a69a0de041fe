"""What a rule sees: one record, and what is known of the sites in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN, derive
from ..sketch.distribution import SPREAD
from ..sketch.table import Floats
from ..store.record import Record, SiteInfo

Rows = NDArray[np.intp]

ARGMAX = SPREAD.index("argmax")


class Sites:
    """The sites of a run, and numbers of them that do not change, as arrays over their index.

    Args:
        site: what is known of a site of the run, by its index.
    """

    def __init__(self, site: Callable[[int], SiteInfo]) -> None:
        self._site = site
        self._columns: dict[object, Floats] = {}

    def __getitem__(self, index: int) -> SiteInfo:
        return self._site(index)

    def column(self, name: object, upto: int, of: Callable[[SiteInfo], float]) -> Floats:
        """float64 [at least upto]: a number of each site; sites that are new are added to it.

        Args:
            name: under which it is kept.
            of: gives the number of a site.
        """
        known = self._columns.get(name, np.empty(0))
        if len(known) < upto:
            new = [of(self._site(index)) for index in range(len(known), upto)]
            known = self._columns[name] = np.concatenate([known, new])
        return known


@dataclass(slots=True)
class Seen:
    """One record under judgement."""

    record: Record
    sites: Sites
    world_size: int
    is_resumed: bool = False
    """Whether memories begin in the middle of the attempt: the collector was started again."""
    _statistics: dict[str, Floats] = field(default_factory=dict[str, Floats])

    def statistic(self, name: str) -> Floats:
        """float64 [rows]: a statistic of what all ranks make up; NaN where it is not known."""
        if name not in self._statistics:
            self._statistics[name] = self._derived(name)
        return self._statistics[name]

    def _derived(self, name: str) -> Floats:
        found, told = derive(self.record.merged, name), self.record.told
        if not len(told) or name not in MAIN:
            return found
        return np.where(self.record.merged.lacks_moments(), told[:, MAIN.index(name)], found)

    @property
    def size(self) -> int:
        """One more than the largest index of a site in the record."""
        return int(self.record.sites[-1]) + 1 if len(self.record.sites) else 0

    def known(self, name: object, of: Callable[[SiteInfo], float]) -> Floats:
        """float64 [rows]: a number of each site that does not change, see `Sites.column`."""
        return self.sites.column(name, self.size, of)[self.record.sites]

    def rows(self, *kinds: str) -> Rows:
        """Which rows of the record are of one of these kinds."""
        return np.flatnonzero(self.known(kinds, lambda site: float(site.kind in kinds)))

    def site(self, row: int) -> SiteInfo:
        """What is known of the site of a row."""
        return self.sites[int(self.record.sites[row])]

    def worst_rank(self, row: int, statistic: str) -> tuple[int, ...]:
        """On which rank a main statistic of a row is the largest, if that is known."""
        rank = float(self.record.spread[row, MAIN.index(statistic), ARGMAX])
        return () if np.isnan(rank) else (int(rank),)

    def ranks_above(self, row: int, statistic: str, most: float) -> tuple[int, ...]:
        """The ranks on which a main statistic of a row is above `most`, as far as they are known.

        Where the record keeps no numbers of single ranks it is the rank of the largest alone.
        """
        column = MAIN.index(statistic)
        own = self.record.by_rank
        if len(own) >= len(self.record.ranks) and own:
            return tuple(rank for rank in sorted(own) if own[rank][row, column] > most)
        return self.worst_rank(row, statistic)

    def training(self, name: str) -> float:
        """A training statistic, its mean over ranks; NaN where none has told it."""
        told = [values[name] for values in self.record.training.values() if name in values]
        return float(np.mean(told)) if told else float("nan")
