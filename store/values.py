"""Numbers of one snapshot, by record and site: which array holds what is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN, SENTINEL, STATISTICS, check_statistic, derive
from ..sketch.distribution import SPREAD
from ..sketch.errors import SettingError
from ..sketch.table import BINS, COUNT, COUNTS
from .columns import Columns, Rows, in_columns
from .frames import latest
from .layout import ENDS, pyramid_path
from .pooling import Heatmap, Pool, labels_by_row, pool_sites, pool_steps, reduce_groups, row_starts
from .reader import Asked, Reader, of_words
from .selection import ATTEMPT, BAD, GLANCED, Chosen, Indices, is_counted, may_hold_all
from .selection import SKETCHED as SKETCHES
from .views import View, exact

NEWEST = 512
"""Records that are looked at for the newest of something, before more are."""
AT_ONCE = 1 << 21
"""Numbers of one statistic that are in memory at a time while a heatmap is pooled."""

POOLED = "pooled"
MOST_KEPT = 1 << 20
"""Cells of a heatmap that are kept for the next question."""

SKETCHED = "zero_share"
"""A main statistic that every tensor with finite elements has, unless it was left to the sentinel.

So a tensor without elements is told as not observed here: it has none of these statistics."""

Pooled = tuple[str, View, Pool]
"""A statistic, as it is viewed, and which of several numbers of it is kept."""


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
        derived(reader, statistic, records, places, view) if place is None else next(kept)
        for place, (statistic, view) in zip(lying, asked, strict=True)
    ]


def where(
    reader: Reader, statistic: str, records: Indices, places: Indices, view: View
) -> Asked | None:
    """Where a statistic of these records and sites lies; None for one that is derived."""
    if view in SPREAD:
        column = main_column(reader, statistic, view)
        return "spread", records, (places, column, SPREAD.index(str(view)))
    check(reader, statistic)
    if not isinstance(view, str) and not 0 <= view < reader.ranks:
        raise SettingError(f"There is no rank {view}; there are 0 to {reader.ranks - 1}.")
    if isinstance(view, str) and view not in ("merged", *reader.meta.groups) and "=" not in view:
        known = ", ".join((*SPREAD, *reader.meta.groups))
        raise SettingError(f"`view` must be 'merged', a rank, or one of {known}, got {view!r}.")
    if statistic not in MAIN:
        return None
    column = MAIN.index(statistic)
    if view == "merged":
        return "scalars", records, (places, column)
    if view in reader.meta.groups:
        return "groups", records, (reader.meta.groups.index(str(view)), places, column)
    return None if isinstance(view, str) else ("ranks", records, (int(view), places, column))


def derived(
    reader: Reader, statistic: str, records: Indices, places: Indices, view: View
) -> NDArray[np.float64]:
    """float64 [records, sites] of any statistic, from the exact columns.

    Raises:
        SettingError: there is no such view, or there are no exact columns of it.
    """
    table = exact(reader, view, records, places, histograms=False)
    found = np.where(table.counts[:, COUNT] >= 0, derive(table, statistic), np.nan)
    return found.reshape(len(records), len(places))


def numbers(
    reader: Reader, name: str, names: tuple[str, ...], records: Indices
) -> NDArray[np.float64]:
    """float64 [records, ranks, names] of the array `training` or `health`."""
    if not names or not len(records):
        return np.empty((len(records), reader.ranks, len(names)))
    return reader.read(name, records, slice(None), slice(0, len(names)))


def newest_counters(reader: Reader) -> NDArray[np.float64]:
    """float64 [attempts, ranks, names]: the last that each rank told of `health`, NaN for none.

    Read from the end until each rank of an attempt has told something: each frame has all of them.
    """
    attempts, names = reader.facts()[:, ATTEMPT], reader.meta.health
    seen = np.unique(attempts)
    found = np.full((len(seen), reader.ranks, len(names)), np.nan)
    for attempt, told in zip(seen.tolist(), found, strict=True):
        records = np.flatnonzero(attempts == attempt)
        ranks = reader.meta.attempts[attempt].world_size or reader.ranks
        for stop in range(len(records), 0, -NEWEST):
            some = numbers(reader, "health", names, records[max(stop - NEWEST, 0) : stop])
            newest = latest(some.reshape(len(some), -1)).reshape(told.shape)
            np.copyto(told, newest, where=np.isnan(told))
            if not np.isnan(told[:ranks]).all(axis=1).any():
                break
    return found


def heatmap(
    reader: Reader,
    statistic: str,
    chosen: Chosen,
    places: Indices,
    *,
    view: View,
    lengths: Sequence[int],
    sizes: tuple[int | None, int | None],
    pool: Pool,
    kind: str | None,
) -> Heatmap:
    """One statistic over sites and steps, pooled to at most `sizes` (columns, rows).

    Each row is of as many sites as `lengths` says, or of several such rows.

    Raises:
        SettingError: there is no such statistic or view, or it cannot be pooled.
    """
    if pool not in ("max", "min"):
        raise SettingError(f"`pool` must be 'max' or 'min', got {pool!r}.")
    if view in ("argmin", "argmax"):
        raise SettingError(f"`view` {view!r} has no worst to pool; ask `scalar` for it.")
    # Some rank may have NaN where the best one has none.
    worst_view = "max" if view == "min" else view
    asked: list[Pooled] = [(statistic, view, pool), ("nonfinite", worst_view, "max")]
    if chosen.glanced and statistic not in SENTINEL:
        # What was left to the sentinel has this statistic not.
        asked.append((SKETCHED, worst_view, "max"))
    columns = in_columns(
        chosen,
        sizes[0],
        reader.state,
        silent=silent_records(reader, statistic),
        by_blocks=view == "merged" and statistic in MAIN,
    )
    several(reader, [(name, seen) for name, seen, _ in asked], chosen.records[:0], places)  # checks
    starts = row_starts(lengths, sizes[1])
    numbers, most_bad, *known = pooled_again(reader, asked, columns, places, starts)
    observed = ~np.isnan(known[0]) | (most_bad > 0) if known else ~np.isnan(most_bad)
    return Heatmap(
        statistic=statistic,
        kind=kind,
        view=view,
        values=numbers,
        nonfinite=most_bad > 0,
        observed=observed,
        row_sites=labels_by_row(reader.labels(places), starts),
        column_first=columns.first,
        column_last=columns.last,
    )


def silent_records(reader: Reader, statistic: str) -> NDArray[np.bool_]:
    """bool [records]: which cannot hold a statistic, see `choose_records`."""
    facts = reader.facts()
    if statistic in SENTINEL:
        return np.zeros(len(facts), np.bool_)
    return ~may_hold_all(*facts[:, [SKETCHES, GLANCED, BAD]].T)


def pooled_again(
    reader: Reader, asked: Sequence[Pooled], columns: Columns, places: Indices, starts: Indices
) -> list[NDArray[np.float32]]:
    """`pooled_by`, but for the columns that the last answer had, of a run that has grown since."""
    question = asked, places.tobytes(), starts.tobytes()
    asked_before, before, known = reader.of_records.get(POOLED, (None, columns, []))
    same = columns.same_as(before) if asked_before == question else 0
    known = [one[:, :same] for one in known]
    found = pooled_by(reader, asked, columns, places, starts, known=known if same else ())
    if found[0].size <= MOST_KEPT:
        reader.of_records[POOLED] = question, columns, [one.copy() for one in found]
    return found


def pooled_by(
    reader: Reader,
    asked: Sequence[Pooled],
    columns: Columns,
    places: Indices,
    starts: Indices,
    *,
    known: Sequence[NDArray[np.float32]] = (),
) -> list[NDArray[np.float32]]:
    """float32 [rows, columns] of each: the worst of the steps in a column and sites in a row.

    Args:
        known: of each the first columns, as far as they are known already.
    """
    found = [np.empty((len(starts), len(columns)), np.float32) for _ in range(len(asked))]
    same = known[0].shape[1] if known else 0
    for into, some in zip(found, known, strict=False):
        into[:, :same] = some
    for some, rows in columns.batches(AT_ONCE // max(len(places), 1), same):
        pooled = [np.full((some.stop - some.start, len(places)), np.nan, np.float32) for _ in asked]
        for part in rows:
            for values, into, (_, _, pool) in zip(
                numbers_of(reader, asked, part, places), pooled, asked, strict=True
            ):
                pool_steps(values.astype(np.float32, copy=False), part.columns, into, pool)
        for worst, into, (_, _, pool) in zip(pooled, found, asked, strict=True):
            into[:, some] = pool_sites(worst, starts, pool)
    return found


def numbers_of(
    reader: Reader, asked: Sequence[Pooled], part: Rows, places: Indices
) -> list[NDArray[Any]]:
    """[rows, sites] of each statistic, from the records or from the pyramid."""
    if part.block == 1:
        return several(reader, [(name, view) for name, view, _ in asked], part.rows, places)
    path = pyramid_path(part.block, "extremes")
    return reader.read_all(
        [(path, part.rows, (places, MAIN.index(name), ENDS.index(pool))) for name, _, pool in asked]
    )


def summed(
    reader: Reader, columns: Columns, places: Indices
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """int64 [columns, sites, COUNTS] and [columns, sites, BINS]: sums over the steps of a column.

    Of what was left to the sentinel there is nothing in them; -1 counts where no step has any.
    """
    counts = np.full((len(columns), len(places), len(COUNTS)), -1, np.int64)
    histograms = np.zeros((len(columns), len(places), BINS), np.int64)
    for some, rows in columns.batches(AT_ONCE // BINS // max(len(places), 1)):
        for part, (found, words) in zip(rows, exact_of(reader, rows, places), strict=True):
            known = is_counted(found)
            for one in (found, *words):
                one[~known] = 0
            cuts = np.flatnonzero(np.diff(part.columns, prepend=-1))
            if not len(cuts):
                continue
            into = some.start + part.columns[cuts]
            was, seen = counts[into], np.logical_or.reduceat(known, cuts, axis=0)
            more = np.maximum(was, 0) + np.add.reduceat(found, cuts, axis=0)
            counts[into] = np.where(seen[..., None] | (was >= 0), more, -1)
            sums = [reduce_groups(np.add, word, cuts, np.int64) for word in words]
            histograms[into] += of_words(sums)
    return counts, histograms


def exact_of(
    reader: Reader, rows: Sequence[Rows], places: Indices
) -> Iterator[tuple[NDArray[np.int64], list[NDArray[np.uint32]]]]:
    """int64 [rows, sites, COUNTS] and the words of [rows, sites, BINS] of each, read at once."""
    names = [
        ("counts", *reader.histogram_arrays)
        if part.block == 1
        else (pyramid_path(part.block, "counts"), pyramid_path(part.block, "histogram"))
        for part in rows
    ]
    asked = [
        (name, part.rows, (places,))
        for part, some in zip(rows, names, strict=True)
        for name in some
    ]
    found = iter(reader.read_all(asked))
    for some in names:
        counts, *words = (next(found) for _ in some)
        yield counts, words


def check(reader: Reader, statistic: str) -> None:
    """Raise a SettingError unless there is such a statistic of tensors."""
    if statistic not in STATISTICS and statistic in reader.meta.training:
        raise SettingError(
            f"{statistic!r} is a training statistic, and not one of tensors; "
            f"`run.training().sel(name={statistic!r})` has it."
        )
    check_statistic(statistic)


def main_column(reader: Reader, statistic: str, what: str) -> int:
    """Where a main statistic stands; SettingError for one that is kept merged only."""
    check(reader, statistic)
    if statistic not in MAIN:
        raise SettingError(
            f"{statistic!r} is kept merged only, not for {what}; "
            f"by rank there are {', '.join(MAIN)}."
        )
    return MAIN.index(statistic)
