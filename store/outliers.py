"""Which ranks, hosts or devices differ from the others that do the same: a robust score.

It comes from the distribution over ranks that the store keeps (`sketch.distribution`) and from
nothing else, so that it is the same for any number of ranks, and whoever merged it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..sketch.distribution import (
    DEVIATION,
    LEVELS_PER_OCTAVE,
    MAGNITUDES,
    MEDIAN,
    NAMES,
    RANKED,
    RANKS,
    log2_magnitude,
    weighted_medians,
)
from ..sketch.errors import SettingError
from ..sketch.table import Floats
from .layout import COLUMNS
from .reader import Reader
from .record import RankInfo
from .selection import Chosen, Indices, ranks_in

By = Literal["rank", "host", "device"]
"""What is told apart, over all attempts; a device by its UUID where it has one."""

LEAST_SPREAD = 1 / LEVELS_PER_OCTAVE
"""In log2: where ranks differ by less than this, 1.1 %, it is taken for so much."""
SIGMA = 1.4826
"""The standard deviation of normal numbers over their median absolute deviation."""
AT_ONCE = 1 << 22
"""Numbers that are in memory at a time."""


def rank_outliers(
    reader: Reader,
    statistic: str,
    chosen: Chosen,
    places: Indices,
    by: By,
    *,
    worst: bool,
    most: int,
) -> pd.DataFrame:
    """See `Run.rank_outliers`.

    Raises:
        SettingError: the distribution of that statistic is not kept, or there are no several ranks.
    """
    if by not in ("rank", "host", "device"):
        raise SettingError(f"`by` must be rank, host or device, got {by!r}.")
    if statistic not in RANKED:
        known = " and ".join(RANKED)
        raise SettingError(f"Over ranks the distributions of {known} are kept, got {statistic!r}.")
    if not len(chosen):
        raise SettingError("There is no record of these steps.")
    entities = _Entities.of(reader, chosen, by)
    found = [
        _ranking(extremes, entities, chosen, labels)
        for labels, extremes in _extremes(reader, RANKED.index(statistic), chosen, places)
    ]
    frame = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    if not len(frame):
        raise SettingError("There are no numbers of several ranks to compare.")
    frame.insert(1, by, [entities.names[place] for place in frame.pop("entity")])
    order = np.argsort(
        -np.abs(frame["worst_score" if worst else "score"].to_numpy(np.float64)), kind="stable"
    )
    return frame.iloc[order[: max(most, 0)]].reset_index(drop=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Entities:
    """The ranks, hosts or devices of the records asked for."""

    names: list[str | int]
    of_rank: Indices
    """int64 [attempts, ranks]: which entity it is; -1 for one that never introduced itself."""
    attempts: Indices
    """int64 [records]: which of these attempts it is of."""
    alike: list[tuple[Indices, NDArray[np.bool_]]]
    """Records that hold the same ranks of the same attempt, and bool [entities, peers]: which
    entities have one of them at a coordinate on the mesh axis `tp`."""

    @classmethod
    def of(cls, reader: Reader, chosen: Chosen, by: By) -> _Entities:
        numbers, attempts = np.unique(chosen.attempts, return_inverse=True)
        places, of_rank = dict[str | int, int](), np.full((len(numbers), reader.ranks), -1)
        peers = np.zeros_like(of_rank)
        for row, attempt in enumerate(numbers.tolist()):
            known = {rank.rank: rank for rank in reader.meta.attempts[attempt].ranks}
            for rank in range(reader.ranks) if by == "rank" else known:
                of_rank[row, rank] = places.setdefault(_entity(by, rank, known), len(places))
            for rank, info in known.items():
                peers[row, rank] = info.coordinates.get("tp", 0)
        masks = reader.facts()[chosen.records][:, len(COLUMNS) :]
        kinds, kind = np.unique(np.column_stack([attempts, masks]), axis=0, return_inverse=True)
        alike = list[tuple[Indices, NDArray[np.bool_]]]()
        for number, (row, *words) in enumerate(kinds.tolist()):
            ranks = np.array(ranks_in(np.array(words, np.int64)), np.intp)
            ranks = ranks[of_rank[row, ranks] >= 0]
            has = np.zeros((len(places), int(peers.max(initial=0)) + 1), np.bool_)
            has[of_rank[row, ranks], peers[row, ranks]] = True
            alike.append((np.flatnonzero(kind == number), has))
        return cls(list(places), of_rank, attempts, alike)

    def times(self, compared: NDArray[np.bool_]) -> Floats:
        """float64 [entities, sites]: in how many records each was compared with others.

        Args:
            compared: bool [records, peers, sites]: where several ranks have a number.
        """
        total = np.zeros((len(self.names), compared.shape[2]))
        for records, has in self.alike:
            times = compared[records].sum(axis=0)
            for peers in range(min(has.shape[1], len(times))):
                total += np.outer(has[:, peers], times[peers])
        return total


def _entity(by: By, rank: int, known: Mapping[int, RankInfo]) -> str | int:
    if by == "rank":
        return rank
    info = known[rank]
    device = info.facts.get("device_uuid", f"{info.host} {info.device}")
    return info.host if by == "host" else device


@dataclass(frozen=True, slots=True, eq=False)
class _Extremes:
    """The ranks that stand out somewhere, one row each time; and where ranks were compared."""

    record: Indices
    """Place among the records asked for."""
    site: Indices
    """Place among the sites asked for."""
    rank: Indices
    off: Floats
    """How far from the median of its peers, in log2."""
    score: Floats
    """The same in units of the peers' usual spread."""
    compared: NDArray[np.bool_]
    """bool [records, peers, sites]"""


def _extremes(
    reader: Reader, column: int, chosen: Chosen, places: Indices
) -> Iterator[tuple[list[str], _Extremes]]:
    """For some of the sites, whose labels are given, after the other."""
    peers = reader.arrays.at("tail", "distribution").shape[1] if reader.state.created else 0
    at_once = max(1, AT_ONCE // max(1, len(chosen) * peers * NAMES.stop))
    for start in range(0, len(places) if peers else 0, at_once):
        some = places[start : start + at_once]
        # [records, peers, sites, summary]
        numbers = reader.read("distribution", chosen.records, slice(None), some, column)
        compared = numbers[..., RANKS] > 1
        # Over all steps: of a few ranks one step alone says little about their usual spread.
        usual = SIGMA * _median_over_records(np.where(compared, numbers[..., DEVIATION], np.nan))
        named = ~np.isnan(numbers[..., NAMES]) & compared[..., None]
        record, group, site, _ = np.nonzero(named)
        off = log2_magnitude(numbers[..., MAGNITUDES][named])
        off -= numbers[..., MEDIAN][record, group, site]
        score = off / np.maximum(usual[group, site], LEAST_SPREAD)
        rank = numbers[..., NAMES][named].astype(np.int64)
        yield (
            [reader.label(int(one)) for one in some],
            _Extremes(record, site, rank, off, score, compared),
        )


def _median_over_records(numbers: Floats) -> Floats:
    """Along the first axis, of those that are not NaN; NaN where there is none."""
    flat = numbers.reshape(len(numbers), -1)
    column, row = np.nonzero(~np.isnan(flat.T))
    values = flat[row, column].astype(np.float64)
    order = np.lexsort((values, column))
    ones = np.ones(len(order), np.int64)
    medians = weighted_medians(column[order], values[order], ones, flat.shape[1])
    return medians.reshape(numbers.shape[1:])


def _ranking(
    extremes: _Extremes, entities: _Entities, chosen: Chosen, labels: list[str]
) -> pd.DataFrame:
    """One row for each entity and site at which it was among the extremes in some step."""
    entity = entities.of_rank[entities.attempts[extremes.record], extremes.rank]
    pair = entity * len(labels) + extremes.site
    known = np.flatnonzero(entity >= 0)
    # Of the ranks of a host the most extreme one speaks for it in each step.
    order = known[np.lexsort((-np.abs(extremes.score[known]), extremes.record[known], pair[known]))]
    first = np.ones(len(order), np.bool_)
    first[1:] = (np.diff(pair[order]) != 0) | (np.diff(extremes.record[order]) != 0)
    told = order[first]
    pairs, begin = np.unique(pair[told], return_index=True)
    who, site = np.divmod(pairs, len(labels))
    number = np.repeat(np.arange(len(pairs)), np.diff(np.append(begin, len(told))))
    times = entities.times(extremes.compared)[who, site].astype(np.int64)
    worst = told[
        np.lexsort((np.abs(extremes.score[told]), number))[np.cumsum(np.bincount(number)) - 1]
    ]
    return pd.DataFrame(
        {
            "site": [labels[one] for one in site.tolist()],
            "entity": who,
            "ranks": _ranks_of(number, extremes.rank[told], len(pairs)),
            "score": _usual(number, extremes.score[told], times),
            "ratio": 2 ** _usual(number, extremes.off[told], times),
            "worst_score": extremes.score[worst],
            "worst_step": chosen.steps[extremes.record[worst]],
        }
    )


def _ranks_of(number: Indices, rank: Indices, count: int) -> list[tuple[int, ...]]:
    """Of each pair the ranks that spoke for it."""
    if not count:
        return []
    once = np.unique(np.column_stack([number, rank]), axis=0)
    ends = np.searchsorted(once[:, 0], np.arange(1, count))
    return [tuple(some.tolist()) for some in np.split(once[:, 1], ends)]


def _usual(pair: Indices, values: Floats, weights: Indices) -> Floats:
    """The median of each pair's numbers; where a rank was not among the extremes it has 0."""
    more = np.maximum(weights - np.bincount(pair, minlength=len(weights)), 0)
    pair = np.concatenate([pair, np.arange(len(weights))])
    values = np.concatenate([values, np.zeros(len(weights))])
    counts = np.concatenate([np.ones(len(pair) - len(weights), np.int64), more])
    order = np.lexsort((values, pair))
    return weighted_medians(pair[order], values[order], counts[order], len(weights))
