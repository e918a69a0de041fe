"""Whether copies of one cell agree, by their checksums, and whose do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..wire.joined import WHOLE, JoinedFrame
from .over_ranks import Observed


@dataclass(frozen=True, slots=True)
class Divergence:
    """Copies of one site that should be equal and are not."""

    site: int
    ranks: tuple[int, ...]
    """All ranks that hold this copy."""
    odd: tuple[int, ...]
    """Those that differ from most; empty if no value has a majority."""


def find_divergences(observed: Observed) -> tuple[Divergence, ...]:
    """The copies that differ; those of ranks whose step had not ended are not compared."""
    plan, joined = observed.plan, observed.joined()
    if not plan.copies and not any(len(frame.copies.cell) for _, frame, _ in joined):
        return ()
    rows = _rows(observed, united=bool(joined))
    place, cell, checksum = plan.place[rows], plan.cell[rows], observed.rows.checksum[rows]
    whose, entry = np.full(len(rows), -1), rows
    for number, frame, _ in joined:
        copies, sites = frame.copies, observed.parts[number].layout.site
        place = np.append(place, np.searchsorted(plan.sites, sites[copies.sites]))
        cell = np.append(cell, copies.cell)
        checksum = np.append(checksum, copies.checksum)
        whose = np.append(whose, np.full(len(copies.cell), number))
        entry = np.append(entry, np.arange(len(copies.cell)))
    if joined:
        order = np.lexsort((cell, place))
        place, cell, checksum = place[order], cell[order], checksum[order]
        whose, entry = whose[order], entry[order]
    copy = (place[1:] == place[:-1]) & (cell[1:] == cell[:-1])
    begins = np.flatnonzero(np.append(True, ~copy))
    odd = 1 + np.flatnonzero(copy & (checksum[1:] != checksum[:-1]))
    found = list[Divergence]()
    for group in np.unique(np.searchsorted(begins, odd, side="right") - 1).tolist():
        end = begins[group + 1] if group + 1 < len(begins) else len(place)
        some = range(begins[group], end)
        site = int(plan.sites[place[begins[group]]])
        holders = [_holders(observed, int(whose[one]), int(entry[one])) for one in some]
        found.append(_judge(site, list(zip(holders, checksum[some], strict=True))))
    return tuple(found)


def _rows(observed: Observed, *, united: bool) -> NDArray[np.intp]:
    """The rows to be compared, by site and cell."""
    plan, order = observed.plan, observed.plan.order
    unfinished = np.zeros(len(observed.parts), np.bool_)
    unfinished[list(observed.unfinished)] = True
    compared = ~unfinished[plan.part[order]] & observed.rows.has_checksum()[order]
    if united:  # what was united is compared by its cells
        compared &= plan.cell[order] != WHOLE
    return order if compared.all() else order[compared]


def _holders(observed: Observed, number: int, one: int) -> list[int]:
    """The ranks of a row; or, of a contribution that is joined, those of one of its checksums."""
    if number < 0:
        return observed.holders(one)
    frame = observed.parts[number].frame
    assert isinstance(frame, JoinedFrame)
    held = np.flatnonzero(frame.copies.holders[one])
    return [observed.ranks[number][place] for place in held.tolist()]


def _judge(site: int, copies: Sequence[tuple[list[int], np.uint64]]) -> Divergence:
    value = {rank: int(checksum) for ranks, checksum in copies for rank in ranks}
    counts = Counter(value.values())
    [(usual, number)] = counts.most_common(1)
    sure = number * 2 > len(value)
    odd = tuple(rank for rank in sorted(value) if value[rank] != usual)
    return Divergence(site, tuple(sorted(value)), odd if sure else ())
