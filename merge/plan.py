"""How the rows of several ranks' frames make up a record: what is a copy, what is a part.

It depends on layouts and on which sites were measured, so that one plan serves many records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..sketch.table import Ints
from ..wire.codec import PackedFrame
from ..wire.joined import WHOLE, JoinedFrame
from .placement import Layout

MAX_PLANS = 8
"""Schedules make few kinds of steps; a plan of 8 ranks x 500 sites takes 300 kB."""


MAX_GROUP_PLANS = 512


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """What one rank holds of one record, or several whose frames a relay has joined."""

    frame: PackedFrame | JoinedFrame
    layout: Layout
    members: tuple[int, ...] = ()
    """The ranks of a joined frame, in the order of its members."""

    def columns(self) -> tuple[NDArray[np.generic], ...]:
        """Of each row the run's site, the cell, the piece, and whether it is an addend."""
        frame, layout = self.frame, self.layout
        if isinstance(frame, JoinedFrame):
            return layout.site[frame.sites], frame.cell, frame.piece, layout.partial[frame.sites]
        own = layout.site, layout.cell, layout.piece, layout.partial
        return tuple(column[frame.sites] for column in own)

    def rows(self) -> bytes:
        """Which sites and cells it is of, in the terms of its layout."""
        frame = self.frame
        if isinstance(frame, JoinedFrame):
            return b"".join(one.tobytes() for one in (frame.sites, frame.cell, frame.holders))
        return frame.sites.tobytes()

    def first_holders(self, rank: int) -> NDArray[np.intp]:
        """intp [rows]: the lowest rank that each row is of; `rank` is the contribution's first."""
        if isinstance(self.frame, JoinedFrame):
            holders = np.where(self.frame.holders, np.asarray(self.members), np.iinfo(np.intp).max)
            return holders.min(axis=1, initial=np.iinfo(np.intp).max)
        return np.full(len(self.frame.sites), rank)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """Rows are those of all contributions, one below the other."""

    layouts: tuple[Layout, ...]
    measured: tuple[bytes, ...]
    """Of each contribution the rows of its frame."""
    sites: NDArray[np.intp]
    """intp [sites]: the run's sites that occur, increasing."""
    place: NDArray[np.intp]
    """intp [rows]: index into `sites`."""
    cell: Ints
    """int64 [rows]"""
    part: NDArray[np.intp]
    """intp [rows]: which contribution it comes from."""
    order: NDArray[np.intp]
    """intp [rows]: sorted by site, cell, first rank."""
    group: NDArray[np.intp]
    """intp [rows], in that order: number of the site's cell; equal for copies."""
    is_full: bool
    """Whether every rank holds every site, in order."""
    copies: bool
    """Whether there are any."""
    kept: NDArray[np.intp]
    """intp [cells]: the first of each cell's copies, sorted by `depth`, then site. Where a row
    holds the whole of a site, that alone."""
    keeps_all: bool
    """Whether these are all rows, in the order they have."""
    depth: NDArray[np.intp]
    """intp [cells]: number of the cell among those of its site."""
    histograms: tuple[tuple[NDArray[np.bool_] | None, NDArray[np.intp]], ...]
    """Of each contribution which rows' histograms are added (None: all), and to which sites."""
    partial_sites: NDArray[np.intp]
    """intp: places of the sites of which some rank holds an addend."""
    addends: NDArray[np.intp]
    """intp: kept rows of those sites, sorted by site, then piece."""
    first_addends: NDArray[np.intp]
    """intp: where in `addends` each piece begins."""

    @classmethod
    def of(cls, parts: Sequence[Contribution], first: Sequence[int]) -> Plan:
        """The plan for these contributions, in order of their first ranks."""
        columns = zip(*(part.columns() for part in parts), strict=True)
        site, cell, piece, partial = map(np.concatenate, columns)
        part = np.repeat(np.arange(len(parts)), [len(part.frame.sites) for part in parts])
        holder = [own.first_holders(rank) for own, rank in zip(parts, first, strict=True)]
        order = np.lexsort((np.concatenate(holder), cell, site))
        new_site = _begins(site[order])
        new_cell = new_site | _begins(cell[order])
        place = np.empty(len(order), np.intp)
        place[order] = np.cumsum(new_site) - 1
        sites = site[order][new_site].astype(np.intp)
        whole = np.zeros(len(sites), np.bool_)
        whole[place[cell == WHOLE]] = True
        kept = order[new_cell & ((cell[order] == WHOLE) | ~whole[place[order]])]
        depth = _depth(place[kept])
        partial_sites = np.unique(place[partial.astype(np.bool_)])
        addends, first_addends = _addends(kept, place, piece, partial_sites)
        by_depth = np.lexsort((place[kept], depth))
        sorted_kept = kept[by_depth]
        return cls(
            layouts=tuple(part.layout for part in parts),
            measured=tuple(part.rows() for part in parts),
            sites=sites,
            place=place,
            cell=cell,
            part=part,
            order=order,
            group=np.cumsum(new_cell, dtype=np.intp),
            is_full=np.array_equal(place, np.tile(np.arange(len(sites)), len(parts))),
            copies=int(new_cell.sum()) < len(order),
            kept=sorted_kept,
            keeps_all=np.array_equal(sorted_kept, np.arange(len(order))),
            depth=depth[by_depth],
            histograms=_histograms(parts, kept, place, partial_sites),
            partial_sites=partial_sites,
            addends=addends,
            first_addends=first_addends,
        )

    def fits(self, parts: Sequence[Contribution]) -> bool:
        """Whether it is the plan for these contributions."""
        return len(parts) == len(self.layouts) and all(
            part.layout is layout and part.rows() == measured
            for part, layout, measured in zip(parts, self.layouts, self.measured, strict=True)
        )


@dataclass(slots=True)
class Plans:
    """The plans that were used last."""

    _recent: list[Plan] = field(default_factory=list[Plan])
    _of_groups: dict[tuple[str, int], Plan] = field(default_factory=dict[tuple[str, int], Plan])
    """By name of the group, and how many sites its first rank measured: few kinds of steps."""

    def of(self, parts: Sequence[Contribution], first: Sequence[int]) -> Plan:
        """The plan for these contributions, by their first ranks; made if it is not known."""
        for place, plan in enumerate(self._recent):
            if plan.fits(parts):
                self._recent.insert(0, self._recent.pop(place))
                return plan
        self._recent = [Plan.of(parts, first), *self._recent[: MAX_PLANS - 1]]
        return self._recent[0]

    def of_group(self, name: str, parts: Sequence[Contribution], first: Sequence[int]) -> Plan:
        """The plan for the contributions of a group of ranks."""
        key = name, len(parts[0].frame.sites)
        known = self._of_groups.get(key)
        if known is None or not known.fits(parts):
            if len(self._of_groups) >= MAX_GROUP_PLANS:
                self._of_groups.clear()
            known = self._of_groups[key] = Plan.of(parts, first)
        return known


def _begins(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Where another value begins."""
    begins = np.ones(len(values), np.bool_)
    begins[1:] = values[1:] != values[:-1]
    return begins


def _depth(place: NDArray[np.intp]) -> NDArray[np.intp]:
    """Of sorted places: how many of the same came before."""
    begin = np.flatnonzero(_begins(place))
    return np.arange(len(place)) - np.repeat(begin, np.diff(np.append(begin, len(place))))


def _addends(
    kept: NDArray[np.intp],
    place: NDArray[np.intp],
    piece: NDArray[np.generic],
    partial_sites: NDArray[np.intp],
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    rows = kept[np.isin(place[kept], partial_sites)]
    rows = rows[np.lexsort((piece[rows], place[rows]))]
    return rows, np.flatnonzero(_begins(place[rows]) | _begins(piece[rows]))


def _histograms(
    parts: Sequence[Contribution],
    kept: NDArray[np.intp],
    place: NDArray[np.intp],
    partial_sites: NDArray[np.intp],
) -> tuple[tuple[NDArray[np.bool_] | None, NDArray[np.intp]], ...]:
    used = np.zeros(len(place), np.bool_)
    used[kept] = True
    used &= ~np.isin(place, partial_sites)
    chosen, start = list[tuple[NDArray[np.bool_] | None, NDArray[np.intp]]](), 0
    for part in parts:
        end = start + len(part.frame.sites)
        mine = used[start:end]
        chosen.append((None if mine.all() else mine, place[start:end]))
        start = end
    return tuple(chosen)
