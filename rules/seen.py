"""What a rule sees: one record, and what is known of the sites in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN
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
        self._of: Rows = np.empty(0, np.intp)
        """The sites of the last record: most have those of the one before."""
        self._known: dict[object, Floats] = {}
        """By name the numbers of these."""
        self._rows: dict[object, Rows] = {}
        """By kinds the rows of that record that are of one of them."""
        self._numbers: dict[object, int] = {}

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

    def known(self, sites: Rows, name: object, of: Callable[[SiteInfo], float]) -> Floats:
        """float64 [sites]: a number of each of a record's sites; it cannot be written to."""
        self._look_at(sites)
        known = self._known.get(name)
        if known is None:
            upto = int(sites[-1]) + 1 if len(sites) else 0
            known = self._known[name] = self.column(name, upto, of)[sites]
            known.flags.writeable = False
        return known

    def rows(self, sites: Rows, kinds: tuple[str, ...]) -> Rows:
        """Which of a record's rows are of one of these kinds; it cannot be written to."""
        known = self.known(sites, kinds, lambda site: float(site.kind in kinds))
        rows = self._rows.get(kinds)
        if rows is None:
            rows = self._rows[kinds] = np.flatnonzero(known)
            rows.flags.writeable = False
        return rows

    def number(self, key: object) -> float:
        """Stands for what several sites share, as a module: the same for equal keys."""
        return float(self._numbers.setdefault(key, len(self._numbers)))

    def _look_at(self, sites: Rows) -> None:
        if sites is not self._of:
            self._of, self._known, self._rows = sites, {}, {}


@dataclass(slots=True)
class Seen:
    """One record under judgement."""

    record: Record
    sites: Sites
    world_size: int
    is_resumed: bool = False
    """Whether memories begin in the middle of the attempt: the collector was started again."""

    def statistic(self, name: str) -> Floats:
        """float64 [rows]: a statistic of what all ranks make up; NaN where it is not known.

        It is the record's, and cannot be written to; so it is with `known` and `rows`.
        """
        return self.record.statistics[name]

    @property
    def size(self) -> int:
        """One more than the largest index of a site in the record."""
        return int(self.record.sites[-1]) + 1 if len(self.record.sites) else 0

    def known(self, name: object, of: Callable[[SiteInfo], float]) -> Floats:
        """float64 [rows]: a number of each site that does not change, see `Sites.column`."""
        return self.sites.known(self.record.sites, name, of)

    def rows(self, *kinds: str) -> Rows:
        """Which rows of the record are of one of these kinds."""
        return self.sites.rows(self.record.sites, kinds)

    def shared(self, name: str, key: Callable[[SiteInfo], object]) -> Rows:
        """int64 [rows]: the same number for sites of equal keys."""
        number = self.sites.number
        return self.known(name, lambda site: number((name, key(site)))).astype(np.intp)

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
