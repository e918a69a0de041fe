"""Rows of equal sites into one: cells that differ are united, addends keep what they determine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..sketch.table import (
    COUNT,
    NAN,
    NEG_INF,
    POS_INF,
    PROJECTION,
    SUM,
    UNBINNED,
    UNSEEN,
    SketchTable,
)
from .plan import Plan

LOWER_BOUNDS = [COUNT, NAN, POS_INF, NEG_INF, UNBINNED, UNSEEN]
"""Counts that say something about a sum of addends: its size, and a bound of what is not finite."""


def united(plan: Plan, thin: SketchTable) -> SketchTable:
    """One row a site, without histograms."""
    kept = thin if plan.keeps_all else thin.take(plan.kept)
    rows = fold(kept, plan.depth, plan.place[plan.kept])
    if plan.partial_sites.size:
        _keep_linear(plan, thin.counts, rows)
    return rows


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
