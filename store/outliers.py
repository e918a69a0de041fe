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
AT_ONCE = 1 << 23
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
        _ranking(part, entities, chosen, some, reader)
        for some, part in _extremes(reader, RANKED.index(statistic), chosen, places)
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
    of_rank: list[NDArray[np.intp]]
    """Of each record, by rank: which entity it is; -1 for one that never introduced itself."""
    present: list[list[int]]
    """Of each record: the ranks it holds."""
    peers: list[NDArray[np.intp]]
    """Of each record, by rank: its coordinate on the mesh axis `tp`."""

    @classmethod
    def of(cls, reader: Reader, chosen: Chosen, by: By) -> _Entities:
        places = dict[str | int, int]()
        tables = dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]]()
        for attempt in np.unique(chosen.attempts).tolist():
            known = {rank.rank: rank for rank in reader.meta.attempts[attempt].ranks}
            own = np.full(reader.ranks, -1, np.intp)
            peers = np.zeros(reader.ranks, np.intp)
            for rank in range(reader.ranks) if by == "rank" else known:
                own[rank] = places.setdefault(_entity(by, rank, known), len(places))
            for rank, info in known.items():
                peers[rank] = info.coordinates.get("tp", 0)
            tables[attempt] = own, peers
        facts = reader.facts()[chosen.records]
        pairs = [tables[attempt] for attempt in chosen.attempts.tolist()]
        return cls(
            list(places),
            [own for own, _ in pairs],
            [ranks_in(row[len(COLUMNS) :]) for row in facts],
            [peers for _, peers in pairs],
        )

    def weights(self, compared: NDArray[np.bool_]) -> Floats:
        """float64 [entities, sites]: how many numbers of each were compared, over all records.

        Args:
            compared: bool [records, peers, sites]: where several ranks have a number.
        """
        total = np.zeros((len(self.names), compared.shape[2]))
        for record, own in enumerate(compared):
            ranks = np.asarray(self.present[record], np.intp)
            entity, peers = self.of_rank[record][ranks], self.peers[record][ranks]
            usable = (entity >= 0) & (peers < len(own))
            np.add.at(total, entity[usable], own[peers[usable]])
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
) -> Iterator[tuple[Indices, _Extremes]]:
    """For some of the sites after the other."""
    peers = reader.arrays.at("tail", "distribution").shape[1] if reader.state.created else 0
    each = max(1, len(chosen) * peers * NAMES.stop)
    at_once = max(1, AT_ONCE // each)
    for start in range(0, len(places) if peers else 0, at_once):
        some = places[start : start + at_once]
        # [records, peers, sites, summary]
        numbers = reader.read("distribution", chosen.records, slice(None), some, column)
        compared = numbers[..., RANKS] > 1
        # Over all steps: of a few ranks one step alone says little about their usual spread.
        usual = SIGMA * _median_over_records(np.where(compared, numbers[..., DEVIATION], np.nan))
        names = np.where(compared[..., None], numbers[..., NAMES], np.nan)
        record, group, site, which = np.nonzero(~np.isnan(names))
        rank = names[record, group, site, which].astype(np.int64)
        # Among few ranks one may be extreme on both sides.
        keys = (record * len(some) + site) * max(1, reader.ranks) + rank
        _, once = np.unique(keys, return_index=True)
        record, group, site, which, rank = (one[once] for one in (record, group, site, which, rank))
        magnitude = numbers[..., MAGNITUDES][record, group, site, which]
        off = log2_magnitude(magnitude) - numbers[record, group, site, MEDIAN]
        score = off / np.maximum(usual[group, site], LEAST_SPREAD)
        yield some, _Extremes(record, site, rank, off, score, compared)


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
    extremes: _Extremes, entities: _Entities, chosen: Chosen, places: Indices, reader: Reader
) -> pd.DataFrame:
    """One row for each entity and site at which it was among the extremes in some step."""
    by_record = zip(extremes.record.tolist(), extremes.rank.tolist(), strict=True)
    entity = np.array([entities.of_rank[record][rank] for record, rank in by_record], np.int64)
    mine = np.flatnonzero(entity >= 0)
    pairs, pair = np.unique(entity[mine] * len(places) + extremes.site[mine], return_inverse=True)
    who, site = np.divmod(pairs, len(places))
    weights = entities.weights(extremes.compared)[who, site].astype(np.int64)
    score, off = extremes.score[mine], extremes.off[mine]
    table = pd.DataFrame({"pair": pair, "rank": extremes.rank[mine], "size": np.abs(score)})
    worst = mine[table.groupby("pair")["size"].idxmax().to_numpy(np.int64)]
    ranks = table.groupby("pair")["rank"].unique()
    return pd.DataFrame(
        {
            "site": [reader.label(int(places[one])) for one in site.tolist()],
            "entity": who,
            "ranks": [tuple(sorted(map(int, some))) for some in ranks],
            "score": _usual(pair, score, weights),
            "ratio": 2 ** _usual(pair, off, weights),
            "worst_score": extremes.score[worst],
            "worst_step": chosen.steps[extremes.record[worst]],
        }
    )


def _usual(pair: Indices, values: Floats, weights: Indices) -> Floats:
    """The median of each pair's numbers; where a rank was not among the extremes it has 0."""
    more = np.maximum(weights - np.bincount(pair, minlength=len(weights)), 0)
    pair = np.concatenate([pair, np.arange(len(weights))])
    values = np.concatenate([values, np.zeros(len(weights))])
    counts = np.concatenate([np.ones(len(pair) - len(weights), np.int64), more])
    order = np.lexsort((values, pair))
    return weighted_medians(pair[order], values[order], counts[order], len(weights))
