"""Which ranks, hosts or devices differ from the others that do the same: a robust score.

It comes from the distribution over ranks that the store keeps (`sketch.distribution`) and from
nothing else, so that it is the same for any number of ranks, and whoever merged it. Fewer than four
have no usual spread: there it is ratios that rank them, and a rank's own past that may tell more.
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
    EXTREMES,
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
from ..sketch.mesh_axes import TENSOR_PARALLEL
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
FEWEST = 4
"""Of fewer peers none has a majority to be unlike: they have no score."""
PAST, NEAR = 16, 1 / 4
"""A rank's past are its last so many records before in which it was, in log2, so much nearer."""
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
    order = _order(frame, "worst_" if worst else "")
    return frame.iloc[order[: max(most, 0)]].reset_index(drop=True)


def _order(frame: pd.DataFrame, which: str) -> Indices:
    """By score; then, where there is none, by ratio, and first what its own past tells of."""
    score, ratio, worst_ratio, own_ratio = (
        frame[name].to_numpy(np.float64)
        for name in (f"{which}score", f"{which}ratio", "worst_ratio", "own_ratio")
    )
    far, own = log2_magnitude(ratio), log2_magnitude(own_ratio) * np.sign(np.log2(worst_ratio))
    # Of two ranks both are as far from the other, but for the last bits.
    keys = (np.nan_to_num(np.abs(score), nan=-1.0), np.round(np.abs(far), 6), own)
    return np.lexsort([-np.nan_to_num(key, nan=-np.inf) for key in reversed(keys)])


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
                peers[row, rank] = info.coordinates.get(TENSOR_PARALLEL, 0)
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
    level: Floats
    """log2 of its number."""
    off: Floats
    """How far from the median of its peers, in log2; of two from the other one."""
    score: Floats
    """The same in units of the peers' usual spread."""
    peers: Indices
    """How many ranks hold the same part of the model, itself among them."""
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
        most = np.nan_to_num(numbers[..., RANKS]).max(axis=0).astype(np.int64)[group, site]
        levels = log2_magnitude(numbers[..., MAGNITUDES])
        level = levels[named]
        two = (most < FEWEST) & (numbers[..., RANKS][record, group, site] == 2)
        other = levels[..., 0] + levels[..., EXTREMES]  # the lowest and the highest: both of them
        off = level - numbers[..., MEDIAN][record, group, site]
        off[two] = (2 * level - other[record, group, site])[two]
        score = off / np.maximum(usual[group, site], LEAST_SPREAD)
        rank = numbers[..., NAMES][named].astype(np.int64)
        yield (
            reader.labels(some),
            _Extremes(record, site, rank, level, off, score, most, compared),
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
    peers = extremes.peers[worst]
    return pd.DataFrame(
        {
            "site": [labels[one] for one in site.tolist()],
            "entity": who,
            "ranks": _ranks_of(number, extremes.rank[told], len(pairs)),
            "peers": peers,
            "score": np.where(peers < FEWEST, np.nan, _usual(number, extremes.score[told], times)),
            "ratio": 2 ** _usual(number, extremes.off[told], times),
            "worst_score": np.where(peers < FEWEST, np.nan, extremes.score[worst]),
            "worst_ratio": 2 ** extremes.off[worst],
            "worst_step": chosen.steps[extremes.record[worst]],
            "own_ratio": 2
            ** np.where(peers < FEWEST, _over_past(extremes, number, told, worst), np.nan),
        }
    )


def _over_past(extremes: _Extremes, pair: Indices, told: Indices, worst: Indices) -> Floats:
    """float64 [pairs]: log2 of each one's number in its worst record over that of its own past.

    Args:
        pair: of each of `told`, ascending; within a pair they are in the order of records.
        told: places among the extremes.
        worst: of each pair its worst, among the extremes.
    """
    is_past = extremes.record[told] < extremes.record[worst][pair]
    is_past &= np.abs(extremes.off[told]) <= NEAR * np.abs(extremes.off[worst])[pair]
    counts = np.bincount(pair[is_past], minlength=len(worst))
    to_end = np.repeat(np.cumsum(counts), counts) - np.arange(counts.sum())
    before, of = told[is_past][to_end <= PAST], pair[is_past][to_end <= PAST]
    levels = extremes.level[before]
    order = np.lexsort((levels, of))
    ones = np.ones(len(order), np.int64)
    return extremes.level[worst] - weighted_medians(of[order], levels[order], ones, len(worst))


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
