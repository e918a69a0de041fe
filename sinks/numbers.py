"""What one record says in a few numbers with clear names. Pure.

Sites are put together by group: their kind, of optimizer state its slot too. Names are listed in
docs/sinks.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN, derive, main_statistics
from ..sketch.formats import number_format
from ..sketch.ranges import overflow, underflow
from ..sketch.table import Floats, Ints, SketchTable
from ..store.record import Record, SiteInfo
from .news import Table

FORMATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Of which under- and overflow are told where a run marks no formats itself."""
WHOLE = ("count", "l1", "l2", "rms", "mean", "mean_abs", "abs_max", "min", "max", "zero_share")
"""Statistics of a group as if all of its elements were one tensor."""
DESCRIBED = ("count", *MAIN, "var", "l1", "negative_share")
"""Columns of a table."""

Rows = NDArray[np.intp]


def numbers_of(
    record: Record, sites: Sequence[SiteInfo], formats: Sequence[str] = ()
) -> dict[str, float]:
    """By name the numbers of a record; statistics that are undefined are left out.

    Args:
        sites: of the run.
        formats: number formats of which under- and overflow are told; none: `FORMATS`.

    Raises:
        SettingError: there is no such format.
    """
    numbers = {f"training/{name}": value for name, value in _over(record.training, np.mean)}
    for group, rows in _groups(record, sites).items():
        one = _united(record.merged.take(rows))
        found = [
            *_averages(record.merged.take(rows)),
            *((f"all/{name}", float(derive(one, name)[0])) for name in WHOLE),
            *_rates(one, formats or FORMATS),
        ]
        numbers |= {f"{group}/{name}": value for name, value in found if not isnan(value)}
    # They are counters of each rank, and one that is in trouble is not to be averaged away.
    return numbers | {f"agent/{name}": value for name, value in _over(record.health, np.max)}


def exponents_of(record: Record, sites: Sequence[SiteInfo]) -> dict[str, Ints]:
    """By group: int64 [BINS], how many elements of all of its sites have which exponent."""
    return {
        group: record.merged.histogram[rows].sum(axis=0)
        for group, rows in _groups(record, sites).items()
    }


def table_of(record: Record, sites: Sequence[SiteInfo]) -> Table:
    """Each site of a record with the statistics of `DESCRIBED`."""
    return Table(
        sites=tuple(sites[place].label for place in record.sites.tolist()),
        statistics=DESCRIBED,
        values=np.stack([derive(record.merged, name) for name in DESCRIBED], axis=1),
    )


def group_of(site: SiteInfo) -> str:
    """The kind of a site, of optimizer state with its slot: `optimizer_state.exp_avg`."""
    is_state = site.kind == "optimizer_state" and site.slot
    return f"{site.kind}.{site.slot}" if is_state else site.kind


def _groups(record: Record, sites: Sequence[SiteInfo]) -> dict[str, Rows]:
    """By group, in alphabetical order, the rows of a record."""
    of_row = np.array([group_of(sites[place]) for place in record.sites.tolist()], dtype=object)
    return {group: np.flatnonzero(of_row == group) for group in sorted(set(of_row.tolist()))}


def _averages(table: SketchTable) -> Iterator[tuple[str, float]]:
    """Main statistics averaged over the sites that have them; what is not finite is added up."""
    values = main_statistics(table)
    known = ~np.isnan(values)
    with np.errstate(all="ignore"):
        sums = np.where(known, values, 0.0).sum(axis=0)
        means: Floats = sums / np.where(known.any(axis=0), known.sum(axis=0), np.nan)
    for column, name in enumerate(MAIN):
        yield name, float((sums if name == "nonfinite" else means)[column])


def _united(table: SketchTable) -> SketchTable:
    """One row: all tensors of a table as one."""
    while len(table) > 1:
        half = len(table) // 2
        pairs = table.take(slice(half)).merge(table.take(slice(half, 2 * half)))
        table = SketchTable.concatenate([pairs, table.take(slice(2 * half, None))])
    return table


def _rates(one: SketchTable, formats: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Which share of the non-zero elements each format would lose; nothing where none was seen."""
    if one.measured()[0] == 0:
        return
    with np.errstate(all="ignore"):  # beyond the largest float64 thresholds are infinite
        for name in formats:
            target = number_format(name)
            yield f"underflow/{name}", float(underflow(one, target).value[0])
            yield f"overflow/{name}", float(overflow(one, target).value[0])


def _over(
    by_rank: Mapping[int, Mapping[str, float]], unite: Callable[[Floats], float]
) -> Iterator[tuple[str, float]]:
    """By name one number over the ranks that have it; NaN if one of them has NaN."""
    names = {name: None for said in by_rank.values() for name in said}
    for name in names:
        said = [one[name] for one in by_rank.values() if name in one]
        with np.errstate(all="ignore"):  # the mean of +inf and -inf is NaN
            yield name, float(unite(np.array(said, np.float64)))
