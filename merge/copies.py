"""Whether copies of one cell agree, by their checksums, and whose do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..sketch.table import Ints
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
    place, cell, checksum, whose = _rows(observed, united=bool(joined))
    for number, frame, _ in joined:
        copies, sites = frame.copies, observed.parts[number].layout.site
        place = np.append(place, np.searchsorted(plan.sites, sites[copies.sites]))
        cell = np.append(cell, copies.cell)
        checksum = np.append(checksum, copies.checksum)
        whose += [(number, one) for one in range(len(copies.cell))]
    if joined:
        order = np.lexsort((cell, place))
        place, cell, checksum = place[order], cell[order], checksum[order]
        whose = [whose[one] for one in order.tolist()]
    copy = (place[1:] == place[:-1]) & (cell[1:] == cell[:-1])
    begins = np.flatnonzero(np.append(True, ~copy))
    odd = 1 + np.flatnonzero(copy & (checksum[1:] != checksum[:-1]))
    found = list[Divergence]()
    for group in np.unique(np.searchsorted(begins, odd, side="right") - 1).tolist():
        end = begins[group + 1] if group + 1 < len(begins) else len(place)
        some = range(begins[group], end)
        site = int(plan.sites[place[begins[group]]])
        found.append(
            _judge(site, [(_holders(observed, *whose[one]), checksum[one]) for one in some])
        )
    return tuple(found)


def _rows(
    observed: Observed, *, united: bool
) -> tuple[NDArray[np.intp], Ints, NDArray[np.uint64], list[tuple[int, int]]]:
    """Place, cell and checksum of the rows to be compared, by site and cell, and which they are."""
    plan, order = observed.plan, observed.plan.order
    unfinished = np.asarray(
        [number in observed.unfinished for number in range(len(observed.parts))]
    )
    # Nor those that were left to the sentinel, which takes no checksum.
    compared = ~unfinished[plan.part[order]] & (observed.rows.measured()[order] > 0)
    if united:  # what was united is compared by its cells
        compared &= plan.cell[order] != WHOLE
    rows = order if compared.all() else order[compared]
    whose = [(-1, row) for row in rows.tolist()]
    return plan.place[rows], plan.cell[rows], observed.rows.checksum[rows], whose


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
