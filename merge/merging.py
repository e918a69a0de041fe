"""One record's numbers from the frames of its ranks: copies counted once, parts united.

Pure and vectorised over rows. The result depends on the set of contributions alone, never on the
order in which they came: of copies the lowest rank's is kept, parts are folded in order of cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sketch.distribution import RANKED, SUMMARY
from ..sketch.table import BINS, Ints, SketchTable
from ..wire.codec import PackedRows
from ..wire.joined import JoinedFrame
from ..wire.messages import CellWindow
from .copies import Divergence, find_divergences
from .folding import united
from .over_ranks import Observed, over_ranks
from .placement import CountedAt
from .plan import Contribution, Plan, Plans


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """All numbers of a record."""

    sites: NDArray[np.intp]
    table: SketchTable
    spread: NDArray[np.float32]
    by_rank: Mapping[int, NDArray[np.float32]]
    """Of the ranks whose own numbers are known: not of all behind relays that join many."""
    divergences: tuple[Divergence, ...]
    exact_counts: Mapping[int, Ints]
    """By index into the run's exact counts."""
    unmatched: bool
    """Whether ranks' own gradients are not what the reduced ones were made of."""
    by_group: Mapping[str, NDArray[np.float32]]
    """By name of a group of ranks: float32 [sites, len(MAIN)] of what its ranks make up."""
    distribution: NDArray[np.float32]
    """float32 [peers, sites, len(RANKED), len(SUMMARY)]: over the ranks that are peers."""
    observed: Observed

    @property
    def plan(self) -> Plan:
        """How the rows of all ranks make up the table."""
        return self.observed.plan

    def addends(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """intp: how many addends each piece of these sites has; `places` are rows of `table`."""
        plan = self.plan
        of_piece = plan.addends[plan.first_addends]
        every, pieces = (
            np.bincount(plan.place[rows], minlength=len(plan.sites))
            for rows in (plan.addends, of_piece)
        )
        return (every // np.maximum(pieces, 1))[places]

    def addends_of(self, place: int, column: int) -> dict[int, float]:
        """By rank: a linear moment of its addend of one site, a row of `table`."""
        rows = self.plan.addends[self.plan.place[self.plan.addends] == place]
        moments = self.observed.rows.moments
        return {self.observed.holders(row)[0]: float(moments[row, column]) for row in rows.tolist()}

    def copies_of(self, place: int) -> list[tuple[tuple[int, ...], list[float]]]:
        """Ranks and moments of each copy of one site, a row of `table`; none if it is in pieces."""
        rows = np.flatnonzero(self.plan.place == place)
        if len(np.unique(self.plan.cell[rows])) != 1:
            return []
        moments = self.observed.rows.moments[rows].astype(np.float64).tolist()
        holders = (tuple(self.observed.holders(row)) for row in rows.tolist())
        return list(zip(holders, moments, strict=True))


def merge_contributions(
    contributions: Mapping[int, Contribution], plans: Plans | None = None
) -> Merged:
    """The numbers of the record that the ranks in `contributions` make up.

    Args:
        contributions: by rank; joined frames by the first of their ranks.
        plans: kept by the caller from record to record, since most are made up alike.
    """
    plans = plans or Plans()
    with np.errstate(all="ignore"):
        observed = Observed.of(contributions, plans)
        plan, parts = observed.plan, observed.parts
        over, ranks, groups = over_ranks(observed, plans)
        summaries = [one.summary() for one in over.distributions if observed.is_of_several]
        shape = (len(summaries), len(plan.sites), len(RANKED), len(SUMMARY))
        return Merged(
            plan.sites,
            _merged(plan, observed.rows, parts),
            over.spread,
            dict(zip(ranks, over.by_rank, strict=True)),
            find_divergences(observed),
            _counted(parts),
            any(part.frame.header.unmatched for part in parts),
            dict(zip(groups, over.by_group, strict=True)),
            np.asarray(summaries, np.float32).reshape(shape),
            observed,
        )


def merge_tables(
    contributions: Mapping[int, Contribution], plans: Plans | None = None
) -> tuple[NDArray[np.intp], SketchTable]:
    """The sites and the table alone of what `merge_contributions` gives."""
    with np.errstate(all="ignore"):
        observed = Observed.of(contributions, plans or Plans())
        return observed.plan.sites, _merged(observed.plan, observed.rows, observed.parts)


def _merged(plan: Plan, thin: SketchTable, parts: Sequence[Contribution]) -> SketchTable:
    """One row a site."""
    rows = united(plan, thin)
    histogram = np.zeros((len(plan.sites), BINS), np.int64)
    for part, (chosen, target) in zip(parts, plan.histograms, strict=True):
        add_windows(histogram.reshape(-1), part.frame, chosen, target)
    return SketchTable(rows.counts, rows.moments, rows.checksum, histogram)


def counted_cells(
    parts: Sequence[Contribution],
) -> dict[tuple[int, int], tuple[CountedAt, int, NDArray[Any]]]:
    """By exact count and cell: what it is, where its window begins, and its counts; once a cell.

    Of addends nothing follows for the whole.
    """
    found = dict[tuple[int, int], tuple[CountedAt, int, NDArray[Any]]]()
    for part in parts:
        layout = part.layout
        for window, counts in zip(part.frame.header.exact_counts, part.frame.windows, strict=True):
            known = layout.exact_counts[window.exact_count]
            if known.index is not None and not layout.partial[known.site]:
                own = isinstance(window, CellWindow)
                cell = window.cell if own else int(layout.cell[known.site])
                found.setdefault((known.index, cell), (known, window.first, counts))
    return found


def _counted(parts: Sequence[Contribution]) -> dict[int, Ints]:
    """The counts of all exact counts."""
    whole = dict[int, Ints]()
    for (index, _), (known, first, counts) in counted_cells(parts).items():
        total = whole.setdefault(index, np.zeros(known.shape, np.int64)).reshape(-1)
        total[first : first + len(counts)] += counts.astype(np.int64)
    return whole


def add_windows(
    flat: NDArray[np.int64],
    frame: PackedRows,
    chosen: NDArray[np.bool_] | None,
    target: NDArray[np.intp],
) -> None:
    """Add a frame's histograms to the rows `target`; only those of the rows `chosen`, if given."""
    places, bins = frame.window_places(target), frame.bins
    if chosen is not None:
        inside = np.repeat(chosen, frame.bin_count)
        places, bins = places[inside], bins[inside]
    if isinstance(frame, JoinedFrame):  # several of its rows may go to one
        np.add.at(flat, places, bins.astype(np.int64))
    else:
        flat[places] += bins.astype(np.int64)
