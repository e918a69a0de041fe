"""What a relay makes of several ranks' frames of one step: one joined frame, by cell.

Copies become one row that says whose it is. Different cells are united only where no other part of
the tree can hold one of them, or where all of them are here; else they stay rows of their own, and
are united further up. Copies that differ stay apart, and addends, too: whose they are is told from
them. So nothing that follows from the ranks' frames follows otherwise from the joined one, but for
the rounding of sums, and that of copies that differ another may be kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..sketch.table import BINS, Ints, SketchTable
from ..wire.joined import WHOLE, CellChecksums, JoinedFrame, pack_joined
from ..wire.messages import JoinedHeader, JoinedMember, Site
from .folding import fold
from .merging import add_windows, counted_cells
from .over_ranks import Observed, over_ranks
from .plan import Contribution, Plans

KEPT_RANKS = 64
"""In attempts of at most so many ranks the main statistics of each are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """How many cells each site has, and how many ranks hold each, on a device mesh."""

    cells: Ints
    """int64 [sites]; 0 where it is not known, since the mesh does not hold every rank once."""
    copies: Ints
    """int64 [sites]"""
    world_size: int

    @classmethod
    def of(cls, sites: Sequence[Site], mesh: Mapping[str, int], world_size: int) -> Topology:
        """That of sites on a mesh of these sizes, by axis."""
        covered = prod(mesh.values()) == world_size
        cells = [
            prod(
                mesh.get(axis, 1)
                for axis, placed in site.placement.items()
                if placed != "replicate"
            )
            for site in sites
        ]
        known = np.asarray(cells, np.int64) * covered
        return cls(known, world_size // np.maximum(known, 1), world_size)


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """One entry for each checksum of each cell, by site, cell and first rank."""

    row: NDArray[np.intp]
    """intp [entries]: the first row that has it."""
    place: NDArray[np.intp]
    cell: Ints
    cells: Ints
    """int64 [entries]: how many are united in it."""
    holders: NDArray[np.bool_]
    """bool [entries, members]"""
    united: NDArray[np.bool_]
    """bool [entries]: whether it goes into a row with others of its site."""
    whole: NDArray[np.bool_]
    """bool [places]: the sites of which one row holds all cells."""
    shared: NDArray[np.bool_]
    """bool [places]: the sites of which other ranks may hold copies."""

    def covered(self) -> NDArray[np.bool_]:
        """bool [entries]: which are of sites of which a row holds the whole."""
        return self.whole[self.place] & (self.cell != WHOLE)


def join(
    contributions: Mapping[int, Contribution],
    said: Mapping[int, JoinedMember],
    topology: Topology,
    schema: bytes,
    plans: Plans | None = None,
) -> tuple[JoinedHeader, bytes]:
    """Header and blob of the joined frame that stands for these frames of one step.

    Args:
        contributions: by rank, or by the first rank of a joined one; none unfinished or kept back.
            Their layouts index the sites and exact counts of the schema that is meant.
        said: by rank what is not merged.
        topology: of the sites of that schema.
        schema: its hash.
        plans: kept by the caller from step to step.
    """
    plans = plans or Plans()
    with np.errstate(all="ignore"):
        observed = Observed.of(contributions, plans)
        cells = _cells(observed, topology)
        over, known, groups = over_ranks(observed, plans, every_group=True)
        place, cell, piece, count, holders, table = _rows(observed, cells)
    header = observed.parts[0].frame.header
    ranks = [rank for own in observed.ranks for rank in own]
    keep = topology.world_size <= KEPT_RANKS and set(known) == set(ranks)
    over = replace(
        over, by_rank=over.by_rank[[known.index(rank) for rank in ranks] if keep else []]
    )
    return pack_joined(
        schema=schema,
        step=header.step,
        final=header.final,
        unmatched=any(part.frame.header.unmatched for part in observed.parts),
        members=[said[rank] for rank in ranks],
        sites=observed.plan.sites[place],
        cell=cell,
        piece=piece,
        cells=count,
        holders=holders,
        table=table,
        over=over,
        groups=groups,
        copies=_checksums(observed, cells),
        exact_counts=[
            (index, own, first, counts.astype(np.int64))
            for (index, own), (_, first, counts) in sorted(counted_cells(observed.parts).items())
        ],
    )


def _held(observed: Observed) -> NDArray[np.bool_]:
    """bool [rows, members]: whose each row is."""
    held = np.zeros((len(observed.plan.part), sum(map(len, observed.ranks))), np.bool_)
    row = member = 0
    for part, ranks in zip(observed.parts, observed.ranks, strict=True):
        rows, members = slice(row, row + len(part.frame.sites)), slice(member, member + len(ranks))
        held[rows, members] = part.frame.holders if isinstance(part.frame, JoinedFrame) else True
        row, member = rows.stop, members.stop
    return held


def _first(observed: Observed, held: NDArray[np.bool_]) -> NDArray[np.intp]:
    """intp [rows]: the lowest of the ranks that hold each."""
    ranks = np.asarray([rank for own in observed.ranks for rank in own], np.intp)
    return np.where(held, ranks, np.iinfo(np.intp).max).min(axis=1, initial=np.iinfo(np.intp).max)


def _distinct(
    place: NDArray[np.intp],
    cell: Ints,
    checksum: NDArray[np.uint64],
    rank: NDArray[np.intp],
    held: NDArray[np.bool_],
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The first row of each checksum of each cell, by place, cell and first rank; and all holders.

    Args:
        rank: intp [rows]: the lowest that holds each.
    """
    order = np.lexsort((rank, checksum, cell, place))
    keys = [column[order] for column in (place, cell, checksum)]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    start = np.flatnonzero(begins)
    first = order[start]
    holders = np.logical_or.reduceat(held[order], start, axis=0) if len(start) else held[:0]
    sort = np.lexsort((rank[first], cell[first], place[first]))
    return first[sort], holders[sort]


def _cells(observed: Observed, topology: Topology) -> _Cells:
    plan, checksum = observed.plan, observed.rows.checksum
    held = _held(observed)
    row, holders = _distinct(plan.place, plan.cell, checksum, _first(observed, held), held)
    place, cell, sites = plan.place[row], plan.cell[row], len(plan.sites)
    cells = _count(observed)[row]
    whole = np.zeros(sites, np.bool_)
    whole[place[cell == WHOLE]] = True
    same = np.zeros(len(row), np.bool_)
    same[1:] = (place[1:] == place[:-1]) & (cell[1:] == cell[:-1])
    differ = np.bincount(place[same], minlength=sites) > 0
    number = np.bincount(place, cells, sites).astype(np.int64)
    by_site = np.bincount(place, holders.sum(axis=1), sites).astype(np.int64)
    expected, copies = topology.cells[plan.sites], topology.copies[plan.sites]
    complete = number == expected
    exclusive = (expected > 0) & (by_site == number * copies)
    some = np.bincount(place, minlength=sites) > 1
    may = some & ~whole & ~differ & (complete | exclusive)
    may[plan.partial_sites] = False
    return _Cells(
        row, place, cell, cells, holders, may[place], whole | (may & complete), ~exclusive
    )


def _count(observed: Observed) -> Ints:
    """int64 [rows]: how many cells each row unites."""
    return np.concatenate(
        [
            part.frame.cells.astype(np.int64)
            if isinstance(part.frame, JoinedFrame)
            else np.ones(len(part.frame.sites), np.int64)
            for part in observed.parts
        ]
    )


def _rows(
    observed: Observed, cells: _Cells
) -> tuple[NDArray[np.intp], Ints, Ints, Ints, NDArray[np.bool_], SketchTable]:
    """Place, cell, piece, number of cells, holders and sketch of each row of the joined frame."""
    plan = observed.plan
    used = cells.united | ~cells.covered()
    entry = np.flatnonzero(used)
    place, united = cells.place[entry], cells.united[entry]
    # What is united goes into one row a site: that of the site's first entry.
    begins = np.ones(len(entry), np.bool_)
    begins[1:] = ~(united[1:] & (place[1:] == place[:-1]))
    target, start = np.cumsum(begins) - 1, np.flatnonzero(begins)
    first = entry[start]
    depth = np.arange(len(entry)) - start[target]
    by_depth = np.lexsort((target, depth))
    rows = observed.rows.take(cells.row[entry[by_depth]])
    table = fold(rows, depth[by_depth], target[by_depth])
    cell = np.where(cells.united[first] & cells.whole[place[start]], WHOLE, cells.cell[first])
    into = np.full(len(plan.place), -1, np.intp)
    into[cells.row[entry]] = target
    into[np.isin(plan.place, plan.partial_sites)] = -1  # of addends no histogram is kept
    return (
        place[start],
        cell,
        _pieces(observed)[cells.row[first]],
        np.add.reduceat(cells.cells[entry], start) if len(start) else cells.cells[:0],
        np.logical_or.reduceat(cells.holders[entry], start, axis=0)
        if len(start)
        else cells.holders[:0],
        SketchTable(
            table.counts, table.moments, table.checksum, _histogram(observed, into, len(start))
        ),
    )


def _pieces(observed: Observed) -> Ints:
    return np.concatenate([np.asarray(part.columns()[2], np.int64) for part in observed.parts])


def _histogram(observed: Observed, into: NDArray[np.intp], rows: int) -> Ints:
    """int64 [rows, BINS]: each frame's histograms added to the rows they go `into`; -1: to none."""
    histogram, begin = np.zeros((rows, BINS), np.int64), 0
    for part in observed.parts:
        own = into[begin : begin + len(part.frame.sites)]
        add_windows(histogram.reshape(-1), part.frame, own >= 0, np.maximum(own, 0))
        begin += len(own)
    return histogram


def _checksums(observed: Observed, cells: _Cells) -> CellChecksums:
    """Those of cells that only a row of the whole holds; copies of these may be elsewhere."""
    plan = observed.plan
    known = observed.rows.has_checksum()[cells.row]
    own = np.flatnonzero(cells.covered() & known & cells.shared[cells.place])
    place, cell = [cells.place[own]], [cells.cell[own]]
    checksum, held, member = [observed.rows.checksum[cells.row[own]]], [cells.holders[own]], 0
    for part, ranks in zip(observed.parts, observed.ranks, strict=True):
        if isinstance(part.frame, JoinedFrame):
            copies = part.frame.copies
            place.append(np.searchsorted(plan.sites, part.layout.site[copies.sites]))
            cell.append(copies.cell)
            checksum.append(copies.checksum)
            holders = np.zeros((len(copies.cell), cells.holders.shape[1]), np.bool_)
            holders[:, member : member + len(ranks)] = copies.holders
            held.append(holders)
        member += len(ranks)
    places, numbers = np.concatenate(place), np.concatenate(cell)
    values = np.concatenate(checksum)
    whose = np.concatenate(held)
    first, holders = _distinct(places, numbers, values, _first(observed, whose), whose)
    return CellChecksums(
        sites=plan.sites[places[first]].astype(np.uint32),
        cell=numbers[first],
        checksum=values[first],
        holders=holders,
    )
