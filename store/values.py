"""Numbers of one snapshot, by record and site: which array holds what is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN, SENTINEL, check_statistic, derive
from ..sketch.distribution import SPREAD
from ..sketch.errors import SettingError
from ..sketch.table import BINS, COUNT, SketchTable
from .pooling import Heatmap, Pool, group_size, pool_numbers
from .reader import Asked, Reader
from .selection import Chosen, Indices

AT_ONCE = 1 << 21
"""Numbers of one statistic that are in memory at a time while a heatmap is pooled."""

SKETCHED = "zero_share"
"""A main statistic that every tensor with finite elements has, unless it was left to the sentinel.

So a tensor without elements is told as not observed here: it has none of these statistics."""

View = str | int
"""`merged`, one rank, a group of ranks, or `min`, `max`, `argmin`, `argmax` over ranks."""


def values(
    reader: Reader, statistic: str, records: Indices, places: Indices, view: View
) -> NDArray[Any]:
    """[records, sites] of a statistic, NaN where it was not observed.

    float32 for main statistics, float64 for those that are derived.

    Raises:
        SettingError: there is no such statistic or view.
    """
    return several(reader, [(statistic, view)], records, places)[0]


def several(
    reader: Reader, asked: Sequence[tuple[str, View]], records: Indices, places: Indices
) -> list[NDArray[Any]]:
    """`values` of several statistics and views, read at once."""
    lying = [where(reader, statistic, records, places, view) for statistic, view in asked]
    kept = iter(reader.read_all([place for place in lying if place is not None]))
    return [
        derived(reader, statistic, records, places) if place is None else next(kept)
        for place, (statistic, _) in zip(lying, asked, strict=True)
    ]


def where(
    reader: Reader, statistic: str, records: Indices, places: Indices, view: View
) -> Asked | None:
    """Where a statistic of these records and sites lies; None for one that is derived."""
    check_statistic(statistic)
    if view == "merged" and statistic not in MAIN:
        return None
    column = main_column(statistic, f"view {view!r}")
    if view == "merged":
        return "scalars", records, (places, column)
    if view in reader.meta.groups:
        return "groups", records, (reader.meta.groups.index(str(view)), places, column)
    if isinstance(view, str):
        return "spread", records, (places, column, spread_column(view, reader.meta.groups))
    if not 0 <= view < reader.ranks:
        raise SettingError(f"There is no rank {view}; there are 0 to {reader.ranks - 1}.")
    return "ranks", records, (int(view), places, column)


def derived(
    reader: Reader, statistic: str, records: Indices, places: Indices
) -> NDArray[np.float64]:
    """float64 [records, sites] of any statistic, from the exact columns."""
    counts = reader.read("counts", records, places)
    moments = reader.read("moments", records, places)
    rows = counts.shape[0] * counts.shape[1]
    table = SketchTable(
        counts.reshape(rows, counts.shape[2]),
        moments.reshape(rows, moments.shape[2]),
        np.empty(0, np.uint64),
        np.empty((0, BINS), np.int64),
    )
    found = derive(table, statistic).reshape(counts.shape[:2])
    return np.where(counts[..., COUNT] >= 0, found, np.nan)


def numbers(
    reader: Reader, name: str, names: tuple[str, ...], records: Indices
) -> NDArray[np.float64]:
    """float64 [records, ranks, names] of the array `training` or `health`."""
    if not names:
        return np.empty((len(records), reader.ranks, 0))
    return reader.read(name, records, slice(None), slice(0, len(names)))


def heatmap(
    reader: Reader,
    statistic: str,
    chosen: Chosen,
    places: Indices,
    *,
    view: View,
    sizes: tuple[int | None, int | None],
    pool: Pool,
    kind: str | None,
) -> Heatmap:
    """One statistic over sites and steps, pooled to at most `sizes` (columns, rows).

    Raises:
        SettingError: there is no such statistic or view, or it cannot be pooled.
    """
    if pool not in ("max", "min"):
        raise SettingError(f"`pool` must be 'max' or 'min', got {pool!r}.")
    if view in ("argmin", "argmax"):
        raise SettingError(f"`view` {view!r} has no worst to pool; ask `scalar` for it.")
    # Some rank may have NaN where the best one has none.
    worst_view = "max" if view == "min" else view
    asked = [(statistic, view), ("nonfinite", worst_view)]
    if chosen.glanced and statistic not in SENTINEL:
        asked.append((SKETCHED, worst_view))
    groups = group_size(len(chosen), sizes[0]), group_size(len(places), sizes[1])
    at_once = max(AT_ONCE // max(len(places), 1) // groups[0], 1) * groups[0]
    pooled: list[NDArray[np.float32]] = []
    for start in range(0, max(len(chosen), 1), at_once):  # once without records, too: it checks
        found, bad, *sketched = several(
            reader, asked, chosen.records[start : start + at_once], places
        )
        for known in sketched:  # what was left to the sentinel has this statistic not
            bad = np.where(np.isnan(known) & ~(bad > 0), np.nan, bad)
        worst = pool_numbers(found.astype(np.float32, copy=False), groups, pool)
        pooled.append(np.stack([worst, pool_numbers(bad, groups, "max")]))
    numbers, most_bad = np.concatenate(pooled, axis=2)
    labels = [reader.label(place) for place in places]
    return Heatmap(
        statistic=statistic,
        kind=kind,
        view=view,
        values=numbers,
        nonfinite=most_bad > 0,
        observed=~np.isnan(most_bad),
        row_sites=[labels[start : start + groups[1]] for start in range(0, len(labels), groups[1])],
        column_first=chosen.steps[:: groups[0]],
        column_last=np.append(chosen.steps[groups[0] - 1 : -1 : groups[0]], chosen.steps[-1:]),
    )


def main_column(statistic: str, what: str) -> int:
    """Where a main statistic stands; SettingError for one that is kept merged only."""
    check_statistic(statistic)
    if statistic not in MAIN:
        raise SettingError(
            f"{statistic!r} is kept merged only, not for {what}; "
            f"by rank there are {', '.join(MAIN)}."
        )
    return MAIN.index(statistic)


def spread_column(view: str, groups: Sequence[str]) -> int:
    """Where a view over ranks stands on the last axis of the spread."""
    if view not in SPREAD:
        known = ", ".join((*SPREAD, *groups))
        raise SettingError(f"`view` must be 'merged', a rank, or one of {known}, got {view!r}.")
    return SPREAD.index(view)
