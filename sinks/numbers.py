"""What one record says in a few numbers with clear names. Pure.

Sites are put together by group: their kind, of optimizer state its slot too. Names are listed in
docs/sinks.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN, Statistics, derive
from ..sketch.formats import number_format
from ..sketch.ranges import overflow, underflow
from ..sketch.table import Floats, Ints, SketchTable
from ..store.record import Record, SiteInfo
from .news import Table

FORMATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Of which under- and overflow are told."""
WHOLE = ("count", "l1", "l2", "rms", "mean", "mean_abs", "abs_max", "min", "max", "zero_share")
"""Statistics of a group as if all of its elements were one tensor."""
DESCRIBED = ("count", *MAIN, "var", "l1", "negative_share")
"""Columns of a table."""

Places = NDArray[np.intp]


def numbers_of(record: Record, sites: Sequence[SiteInfo]) -> dict[str, float]:
    """By name the numbers of a record; statistics that are undefined are left out.

    Args:
        sites: of the run.
    """
    groups, of_row = _groups(record, sites)
    wholes = _united(record.merged, of_row)
    columns = {
        **_averages(record.statistics, of_row, len(groups)),
        **{f"all/{name}": derive(wholes, name) for name in WHOLE},
        **_rates(wholes),
    }
    # They are counters of each rank, and one that is in trouble is not to be averaged away.
    agents = {f"agent/{name}": value for name, value in _over(record.health, np.max)}
    training = {f"training/{name}": value for name, value in _over(record.training, np.mean)}
    statistics = {
        f"{group}/{name}": float(column[place])
        for place, group in enumerate(groups)
        for name, column in columns.items()
        if not isnan(column[place])
    }
    return training | statistics | agents


def exponents_of(record: Record, sites: Sequence[SiteInfo]) -> dict[str, Ints]:
    """By group: int64 [BINS], how many elements of all of its sites have which exponent."""
    groups, of_row = _groups(record, sites)
    return {
        group: record.merged.histogram[of_row == place].sum(axis=0)
        for place, group in enumerate(groups)
    }


def table_of(record: Record, sites: Sequence[SiteInfo]) -> Table:
    """Each site of a record with the statistics of `DESCRIBED`."""
    return Table(
        sites=tuple(sites[place].label for place in record.sites.tolist()),
        statistics=DESCRIBED,
        values=np.stack([record.statistics[name] for name in DESCRIBED], axis=1),
    )


def group_of(site: SiteInfo) -> str:
    """The kind of a site, of optimizer state with its slot: `optimizer_state.exp_avg`."""
    is_state = site.kind == "optimizer_state" and site.slot
    return f"{site.kind}.{site.slot}" if is_state else site.kind


def _groups(record: Record, sites: Sequence[SiteInfo]) -> tuple[list[str], Places]:
    """The groups of a record in the order of the alphabet, and the place of each row's."""
    of_row = [group_of(sites[place]) for place in record.sites.tolist()]
    groups = sorted(set(of_row))
    places = {group: place for place, group in enumerate(groups)}
    return groups, np.array([places[group] for group in of_row], np.intp)


def _averages(statistics: Statistics, of_row: Places, groups: int) -> dict[str, Floats]:
    """Main statistics averaged over the sites that have them; what is not finite is added up."""
    values = statistics.main()
    sums, known = np.zeros((groups, len(MAIN))), np.zeros((groups, len(MAIN)))
    np.add.at(sums, of_row, np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf))
    np.add.at(known, of_row, ~np.isnan(values))
    with np.errstate(all="ignore"):
        means = sums / np.where(known > 0, known, np.nan)
    told = {name: means[:, column] for column, name in enumerate(MAIN)}
    return told | {"nonfinite": sums[:, MAIN.index("nonfinite")]}


def _united(table: SketchTable, of_row: Places) -> SketchTable:
    """A row for each group: all of its tensors as one."""
    order = np.argsort(of_row, kind="stable")
    table, group = table.take(order), of_row[order]
    while True:
        place = np.arange(len(group)) - np.searchsorted(group, group)
        odd = np.flatnonzero(place % 2)
        if not len(odd):
            return table
        # All groups at once, by pairs of neighbours: as many merges as the longest needs.
        alone = np.setdiff1d(np.arange(len(group)), np.concatenate([odd - 1, odd]))
        kept = np.concatenate([odd - 1, alone])
        pairs = table.take(odd - 1).merge(table.take(odd))
        table = SketchTable.concatenate([pairs, table.take(alone)]).take(np.argsort(kept))
        group = group[np.sort(kept)]


def _rates(wholes: SketchTable) -> dict[str, Floats]:
    """Which share of the non-zero elements each format would lose; NaN where none was seen."""
    seen = wholes.measured() > 0
    rates = dict[str, Floats]()
    with np.errstate(all="ignore"):  # beyond the largest float64 thresholds are infinite
        for name in FORMATS:
            target = number_format(name)
            rates[f"underflow/{name}"] = np.where(seen, underflow(wholes, target).value, np.nan)
            rates[f"overflow/{name}"] = np.where(seen, overflow(wholes, target).value, np.nan)
    return rates


def _over(
    by_rank: Mapping[int, Mapping[str, float]], unite: Callable[[Floats], float]
) -> Iterator[tuple[str, float]]:
    """By name one number over the ranks that have it; NaN if one of them has NaN."""
    names = {name: None for said in by_rank.values() for name in said}
    for name in names:
        said = [one[name] for one in by_rank.values() if name in one]
        with np.errstate(all="ignore"):  # the mean of +inf and -inf is NaN
            yield name, float(unite(np.array(said, np.float64)))
