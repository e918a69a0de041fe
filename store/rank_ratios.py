"""How far each rank is from its peers: one site over steps, as a picture of ranks and steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from ..sketch.distribution import log2_magnitude
from ..sketch.table import Floats, Ints
from .columns import in_columns
from .peers import by_mesh, peers
from .reader import Reader
from .selection import ATTEMPT, Chosen
from .values import main_column, silent_records

NONFINITE = MAIN.index("nonfinite")
AT_ONCE = 1 << 21
"""Numbers that are in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankRatios:
    """log2 of a statistic over the median of each rank's peers, of two over that of the other.

    Ranks come in the order of the mesh.
    """

    statistic: str
    site: str
    values: NDArray[np.float32]
    """float32 [ranks, columns]: of several steps in a column the one that is furthest from 0; NaN
    where there is no number, or no peer that has one."""
    nonfinite: NDArray[np.bool_]
    """bool [ranks, columns]: whether the rank had NaN or infinity."""
    observed: NDArray[np.bool_]
    """bool [ranks, columns]: whether the rank's own numbers are there."""
    ranks: list[int]
    names: list[str]
    """Of each rank: where it is on the mesh, as "dp=0,tp=1", or "rank 3"."""
    group: list[int]
    """Of each rank: with which others it is compared; -1 for none."""
    column_first: Ints
    """int64 [columns]: the first step of each."""
    column_last: Ints
    """int64 [columns]: and the last."""


def rank_ratios(
    reader: Reader, statistic: str, chosen: Chosen, place: int, *, width: int | None
) -> RankRatios:
    """See `Run.rank_ratios`.

    Raises:
        SettingError: it is no main statistic.
    """
    column, site = main_column(reader, statistic, "ranks"), reader.meta.sites[place]
    attempts = reader.meta.attempts
    last = int(chosen.attempts[-1]) if len(chosen) else len(attempts) - 1
    rows = by_mesh(attempts[last], reader.ranks) if attempts else []
    ranks = np.array([rank for rank, _ in rows], np.int64)
    columns = in_columns(
        chosen,
        width,
        reader.state,
        silent=silent_records(reader, statistic),
        by_blocks=False,
    )
    shape = len(ranks), len(columns)
    values = np.full(shape, np.nan, np.float32)
    nonfinite, observed = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    for some, parts in columns.batches(AT_ONCE // max(reader.ranks, 1)):
        for part in parts:
            own, bad = reader.read_all(
                [("ranks", part.rows, (slice(None), place, which)) for which in (column, NONFINITE)]
            )
            of = reader.facts()[part.rows, ATTEMPT]
            ratios = np.full(own.shape, np.nan)
            for attempt in np.unique(of).tolist():
                then = reader.meta.site(place, attempt)
                group = peers(then, attempts[attempt], own.shape[1])
                ratios[of == attempt] = over_peers(own[of == attempt], group)
            into = some.start + part.columns
            _keep_furthest(values, ratios[:, ranks].T, into)
            np.logical_or.at(nonfinite.T, into, bad[:, ranks] > 0)
            np.logical_or.at(observed.T, into, ~np.isnan(bad[:, ranks]))
    site = reader.meta.site(place, last)
    group = peers(site, attempts[last], reader.ranks)[ranks] if attempts else ranks
    return RankRatios(
        statistic=statistic,
        site=site.label,
        values=values,
        nonfinite=nonfinite,
        observed=observed,
        ranks=ranks.tolist(),
        names=[name for _, name in rows],
        group=group.tolist(),
        column_first=columns.first,
        column_last=columns.last,
    )


def over_peers(numbers: NDArray[np.floating], group: Ints) -> Floats:
    """float64 [records, ranks]: log2 of each number over the median of its group, of two the other.

    Numbers that are NaN or infinite count for nothing; NaN, too, where no other one is in a group.
    """
    known = np.isfinite(numbers)
    levels = np.where(known, log2_magnitude(np.where(known, numbers, 1.0)), np.nan)
    found = np.full(levels.shape, np.nan)
    for one in np.unique(group[group >= 0]).tolist():
        mine = group == one
        own = levels[:, mine]
        counts = (~np.isnan(own)).sum(axis=1)
        several = counts > 1
        if several.any():
            middle = np.nanmedian(own[several], axis=1, keepdims=True)
            times = np.where(counts[several] == 2, 2.0, 1.0)[:, None]
            found[np.ix_(several, mine)] = times * (own[several] - middle)
    return found


def _keep_furthest(values: NDArray[np.float32], new: Floats, columns: Ints) -> None:
    """Of all that falls into a column, what is furthest from 0."""
    if not len(columns):
        return
    far = np.where(np.isnan(new), -1.0, np.abs(new))
    cuts = np.flatnonzero(np.diff(columns, prepend=-1))
    into, most = columns[cuts], np.maximum.reduceat(far, cuts, axis=1)
    lengths = np.diff(np.append(cuts, len(columns)))
    is_most = far == np.repeat(most, lengths, axis=1)
    signed = np.where(is_most & (far >= 0), new, -np.inf)
    # Of two that are equally far the higher counts.
    best = np.maximum.reduceat(signed, cuts, axis=1)
    old = values[:, into]
    better = (most >= 0) & ~(np.abs(old) >= most)
    values[:, into] = np.where(better, best, old)
