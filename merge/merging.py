"""One record's numbers from the frames of its ranks: copies counted once, parts united.

Pure and vectorised over rows. The result depends on the set of contributions alone, never on the
order in which they came: of copies the lowest rank's is kept, parts are folded in order of cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN, main_statistics
from ..sketch.distribution import RANKED, SPREAD, SUMMARY, RankDistribution
from ..sketch.table import (
    BINS,
    COUNT,
    NAN,
    NEG_INF,
    POS_INF,
    PROJECTION,
    SUM,
    UNBINNED,
    UNSEEN,
    Ints,
    SketchTable,
)
from ..wire.codec import PackedFrame
from .plan import Contribution, Plan, Plans

MAX_GROUPS = 64
"""Groups of ranks whose numbers are kept of a record: as many as single ranks."""
MAX_PEERS = 64
"""Coordinates on the mesh axis `tp` of which the distribution over ranks is kept."""
LOWER_BOUNDS = [COUNT, NAN, POS_INF, NEG_INF, UNBINNED, UNSEEN]
"""Counts that say something about a sum of addends: its size, and a bound of what is not finite."""


@dataclass(frozen=True, slots=True, eq=False)
class Divergence:
    """Copies of one site that should be equal and are not."""

    site: int
    ranks: tuple[int, ...]
    """All ranks that hold this copy."""
    odd: tuple[int, ...]
    """Those that differ from most; empty if no value has a majority."""


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """All numbers of a record."""

    sites: NDArray[np.intp]
    table: SketchTable
    spread: NDArray[np.float32]
    by_rank: Mapping[int, NDArray[np.float32]]
    divergences: tuple[Divergence, ...]
    quantities: Mapping[int, Ints]
    """By index into the run's quantities."""
    unmatched: bool
    """Whether ranks' own gradients are not what the reduced ones were made of."""
    by_group: Mapping[str, NDArray[np.float32]]
    """By name of a group of ranks: float32 [sites, len(MAIN)] of what its ranks make up."""
    distribution: NDArray[np.float32]
    """float32 [peers, sites, len(RANKED), len(SUMMARY)]: over the ranks that are peers."""
    plan: Plan
    rows: SketchTable
    """Of all ranks, one below the other as in `plan`, without their histograms."""

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
        ranks = list(self.by_rank)
        return {
            ranks[self.plan.part[row]]: float(self.rows.moments[row, column])
            for row in rows.tolist()
        }


def merge_contributions(
    contributions: Mapping[int, Contribution], plans: Plans | None = None
) -> Merged:
    """The numbers of the record that the ranks in `contributions` make up.

    Args:
        plans: kept by the caller from record to record, since most are made up alike.
    """
    ranks = sorted(contributions)
    parts = [contributions[rank] for rank in ranks]
    plans = plans or Plans()
    plan = plans.of(parts)
    with np.errstate(all="ignore"):
        thin = _thin(parts)
        by_rank = _by_rank(plan, thin, len(ranks))
        return Merged(
            plan.sites,
            _merged(plan, thin, parts),
            spread_over_ranks(by_rank, ranks),
            dict(zip(ranks, by_rank, strict=True)),
            _divergences(plan, thin, ranks, parts),
            _counted(parts),
            any(part.frame.header.unmatched for part in parts),
            _by_group(plan, thin, parts, plans),
            _over_peers(by_rank, ranks, [part.layout.peers for part in parts]),
            plan,
            thin,
        )


def spread_over_ranks(by_rank: NDArray[np.float32], ranks: list[int]) -> NDArray[np.float32]:
    """float32 [rows, len(MAIN), len(SPREAD)] of [ranks, rows, len(MAIN)]; NaN is ignored."""
    spread = np.empty((*by_rank.shape[1:], len(SPREAD)), np.float32)
    # The largest of the products is that of the first rank: a third of the time of `argmax`.
    weight = np.arange(len(ranks), 0, -1, dtype=np.uint32)[:, None, None]
    name = np.array([np.nan, *reversed(ranks)], np.float32)
    for place, extreme in enumerate((np.fmin, np.fmax)):
        value = extreme.reduce(by_rank, axis=0)
        spread[..., place] = value
        spread[..., place + 2] = name[np.multiply(by_rank == value, weight).max(axis=0)]
    return spread


def _thin(parts: Sequence[Contribution]) -> SketchTable:
    """All rows of all contributions, one below the other, without their histograms."""
    counts = np.concatenate([part.frame.counts for part in parts])
    return SketchTable(
        counts,
        # Columns side by side in memory, as all arithmetic on moments wants them.
        np.concatenate([part.frame.moments.T for part in parts], axis=1).T,
        np.concatenate([part.frame.checksum for part in parts]),
        np.empty((len(counts), 0), np.int64),
    )


def _by_rank(plan: Plan, thin: SketchTable, ranks: int) -> NDArray[np.float32]:
    """float32 [ranks, sites, len(MAIN)]: the main statistics of each rank's own rows."""
    numbers = main_statistics(thin).astype(np.float32)
    if plan.is_full:
        return numbers.reshape(ranks, len(plan.sites), len(MAIN))
    dense = np.full((ranks, len(plan.sites), len(MAIN)), np.nan, np.float32)
    dense[plan.part, plan.place] = numbers
    return dense


def _merged(plan: Plan, thin: SketchTable, parts: Sequence[Contribution]) -> SketchTable:
    """One row a site."""
    rows = _united(plan, thin)
    histogram = np.zeros((len(plan.sites), BINS), np.int64)
    for part, (chosen, target) in zip(parts, plan.histograms, strict=True):
        _add_windows(histogram.reshape(-1), part.frame, chosen, target)
    return SketchTable(rows.counts, rows.moments, rows.checksum, histogram)


def _united(plan: Plan, thin: SketchTable) -> SketchTable:
    """One row a site, without histograms."""
    kept = thin if plan.keeps_all else thin.take(plan.kept)
    rows = fold(kept, plan.depth, plan.place[plan.kept])
    if plan.partial_sites.size:
        _keep_linear(plan, thin.counts, rows)
    return rows


def _by_group(
    plan: Plan, thin: SketchTable, parts: Sequence[Contribution], plans: Plans
) -> dict[str, NDArray[np.float32]]:
    """The main statistics of each group of ranks that is neither one rank nor all."""
    members = dict[str, list[int]]()
    for number, part in enumerate(parts):
        for name in part.layout.groups:
            members.setdefault(name, []).append(number)
    found = dict[str, NDArray[np.float32]]()
    wanted = [name for name, some in members.items() if 1 < len(some) < len(parts)]
    # Single axes before several, and hosts at last: all of a large mesh would cost too much.
    wanted.sort(key=lambda name: (name.startswith("host="), name.count(","), name))
    for name in wanted[:MAX_GROUPS]:
        some = members[name]
        own = plans.of_group(name, [parts[number] for number in some])
        rows = _united(own, thin.take(np.flatnonzero(np.isin(plan.part, some))))
        numbers = np.full((len(plan.sites), len(MAIN)), np.nan, np.float32)
        numbers[np.searchsorted(plan.sites, own.sites)] = main_statistics(rows)
        found[name] = numbers
    return found


def _over_peers(
    by_rank: NDArray[np.float32], ranks: list[int], peers: Sequence[int]
) -> NDArray[np.float32]:
    """How the main statistics that are `RANKED` are distributed over ranks, by their peers."""
    count = min(max(peers) + 1, MAX_PEERS) if len(ranks) > 1 else 0
    found = np.full((count, by_rank.shape[1], len(RANKED), len(SUMMARY)), np.nan, np.float32)
    columns = [MAIN.index(name) for name in RANKED]
    for one, numbers in enumerate(found):
        some = [place for place, own in enumerate(peers) if own == one]
        if some:
            values = by_rank[some][:, :, columns].reshape(len(some), -1)
            over = RankDistribution.of(values, [ranks[place] for place in some])
            numbers[:] = over.summary().reshape(numbers.shape)
    return found


def _counted(parts: Sequence[Contribution]) -> dict[int, Ints]:
    """The counts of all quantities, of each cell once; of addends nothing follows for the whole."""
    whole = dict[int, Ints]()
    taken = set[tuple[int, int]]()
    for part in parts:
        header, layout = part.frame.header, part.layout
        for window, counts in zip(header.quantities, part.frame.windows, strict=True):
            known = layout.quantities[window.quantity]
            if known.index is None or layout.partial[known.site]:
                continue
            cell = (known.index, int(layout.cell[known.site]))
            if cell not in taken:
                taken.add(cell)
                total = whole.setdefault(known.index, np.zeros(known.shape, np.int64)).reshape(-1)
                total[window.first : window.first + window.length] += counts.astype(np.int64)
    return whole


def _add_windows(
    flat: NDArray[np.int64],
    frame: PackedFrame,
    chosen: NDArray[np.bool_] | None,
    target: NDArray[np.intp],
) -> None:
    """Add a frame's histograms to the rows `target`; only those of the rows `chosen`, if given."""
    places, bins = frame.window_places(target), frame.bins
    if chosen is not None:
        inside = np.repeat(chosen, frame.bin_count)
        places, bins = places[inside], bins[inside]
    flat[places] += bins.astype(np.int64)


def _keep_linear(plan: Plan, counts: NDArray[np.int64], rows: SketchTable) -> None:
    """Of sums that are not reduced yet, leave only what the addends determine, in place."""
    sums = plan.partial_sites
    linear = rows.moments[sums][:, [SUM, PROJECTION]]
    rows.moments[sums] = np.nan
    rows.moments[sums[:, None], [SUM, PROJECTION]] = linear
    rows.checksum[sums] = 0
    largest = np.maximum.reduceat(counts[plan.addends][:, LOWER_BOUNDS], plan.first_addends, axis=0)
    rows.counts[sums] = 0
    place = plan.place[plan.addends[plan.first_addends]]
    for column, number in enumerate(LOWER_BOUNDS):
        np.add.at(rows.counts[:, number], place, largest[:, column])


def fold(table: SketchTable, depth: NDArray[np.intp], place: NDArray[np.intp]) -> SketchTable:
    """Merge the rows of equal `place` as a balanced tree: one row a place, in order.

    Args:
        table: sorted by depth, then place.
        depth: int [rows]: number of the row among those of its place.
        place: int [rows]: from 0, without holes.
    """
    count = np.bincount(place)
    while len(count) and count.max() > 1:
        half = (count + 1) // 2
        low = depth < half[place]
        upper = np.flatnonzero(~low)
        if count.min() == count.max() and count[0] % 2 == 0:
            # Every place has the same even number of rows: the halves lie one below the other.
            table = table.take(slice(None, len(upper))).merge(table.take(slice(len(upper), None)))
        else:
            table = _fold_half(table, low, upper, depth, place, half)
        depth, place, count = depth[low], place[low], half
    return table


def _fold_half(
    table: SketchTable,
    low: NDArray[np.bool_],
    upper: NDArray[np.intp],
    depth: NDArray[np.intp],
    place: NDArray[np.intp],
    half: NDArray[np.intp],
) -> SketchTable:
    """Merge row `half` + i of each place into its row i; `low` says which rows stay."""
    row_at = np.full((int(half.max()), len(half)), -1, np.intp)
    row_at[depth[low], place[low]] = np.arange(int(low.sum()))
    target = row_at[depth[upper] - half[place[upper]], place[upper]]
    kept = table.take(np.flatnonzero(low))
    merged = kept.take(target).merge(table.take(upper))
    for mine, new in zip(kept.columns(), merged.columns(), strict=True):
        mine[target] = new
    return kept


def _divergences(
    plan: Plan, thin: SketchTable, ranks: list[int], parts: Sequence[Contribution]
) -> tuple[Divergence, ...]:
    """The copies that differ; those of ranks whose step had not ended are not compared."""
    if not plan.copies:
        return ()
    order, group, checksum = plan.order, plan.group, thin.checksum
    unfinished = np.asarray([part.frame.header.partial for part in parts])
    # Nor those that were left to the sentinel, which takes no checksum.
    compared = ~unfinished[plan.part[order]] & (thin.measured()[order] > 0)
    if not compared.all():
        order, group = order[compared], group[compared]
    odd = (group[1:] == group[:-1]) & (checksum[order[1:]] != checksum[order[:-1]])
    found: list[Divergence] = []
    for number in np.unique(group[1:][odd]).tolist():
        rows = order[group == number]
        holders = [ranks[part] for part in plan.part[rows].tolist()]
        found.append(_judge(int(plan.sites[plan.place[rows[0]]]), holders, checksum[rows]))
    return tuple(found)


def _judge(site: int, ranks: list[int], checksum: NDArray[np.uint64]) -> Divergence:
    values, which, count = np.unique(checksum, return_inverse=True, return_counts=True)
    top = int(count.argmax())
    sure = count[top] * 2 > len(ranks) and len(values) > 1
    odd = tuple(rank for rank, value in zip(ranks, which.tolist(), strict=True) if value != top)
    return Divergence(site, tuple(ranks), odd if sure else ())
