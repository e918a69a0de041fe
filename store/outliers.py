"""Which ranks, hosts or devices differ from the others that do the same: a robust score."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd

from ..sketch.errors import SettingError
from ..sketch.table import Floats
from .reader import Reader
from .record import RankInfo
from .selection import Chosen, Indices
from .values import main_column

By = Literal["rank", "host", "device"]
"""What is told apart, over all attempts; a device by its UUID where it has one."""

LEAST_SPREAD = 0.01
"""In log2: where ranks differ by less than this, 0.7 %, it is taken for so much."""
SIGMA = 1.4826
"""The standard deviation of normal numbers over their median absolute deviation."""
SMALLEST = 2.0**-200
"""Stands for 0, of which there is no logarithm."""
MODEL_AXES = ("tp", "pp")
"""Ranks at different coordinates on these hold other parts of the model, and are not compared."""
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
        SettingError: it is no main statistic, or numbers by rank were not kept.
    """
    if by not in ("rank", "host", "device"):
        raise SettingError(f"`by` must be rank, host or device, got {by!r}.")
    column = main_column(statistic, "ranks")
    at_once = max(1, AT_ONCE // max(1, len(chosen) * reader.ranks))
    rows: list[dict[str, object]] = []
    for start in range(0, len(places), at_once):
        some = places[start : start + at_once]
        numbers = reader.read("ranks", chosen.records, slice(None), some, column)
        off = np.full(numbers.shape, np.nan)
        score = off.copy()
        parts = defaultdict[str | int, list[tuple[int, int]]](list)
        for attempt in np.unique(chosen.attempts).tolist():
            ranks = {rank.rank: rank for rank in reader.meta.attempts[attempt].ranks}
            steps = np.flatnonzero(chosen.attempts == attempt)
            for group in _peers(ranks, reader.ranks):
                cut = np.ix_(steps, np.array(group))
                off[cut], score[cut] = _scores(numbers[cut].astype(np.float64))
            for rank in range(reader.ranks) if by == "rank" else ranks:
                parts[_entity(by, rank, ranks.get(rank))].append((attempt, rank))
        labels = [reader.label(place) for place in some]
        for entity, own in parts.items():
            rows += _rows(by, entity, own, off, score, chosen, labels)
    if not len(chosen):
        raise SettingError("There is no record of these steps.")
    if not rows:
        raise SettingError(
            "There are no numbers of several ranks to compare: collectors keep them for jobs of "
            "at most 64 ranks; of larger ones ask `scalar` for the views min, max and argmax."
        )
    frame = pd.DataFrame(rows)
    order = np.argsort(
        -np.abs(frame["worst_score" if worst else "score"].to_numpy(np.float64)), kind="stable"
    )
    return frame.iloc[order[: max(most, 0)]].reset_index(drop=True)


def _entity(by: By, rank: int, info: RankInfo | None) -> str | int:
    if by == "rank":
        return rank
    assert info is not None, "hosts and devices are of ranks that introduced themselves"
    device = info.facts.get("device_uuid", f"{info.host} {info.device}")
    return info.host if by == "host" else device


def _peers(ranks: Mapping[int, RankInfo], count: int) -> list[list[int]]:
    """The ranks that hold the same part of the model, group by group."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(count):
        at = ranks[rank].coordinates if rank in ranks else {}
        groups.setdefault(tuple(at.get(axis, 0) for axis in MODEL_AXES), []).append(rank)
    return list(groups.values())


def _scores(numbers: Floats) -> tuple[Floats, Floats]:
    """How far each number is from the median of its peers: in log2, and in units of their spread.

    Args:
        numbers: float64 [steps, peers, sites]
    """
    logs = np.log2(np.maximum(np.abs(numbers), SMALLEST))
    off = logs - median(logs, 1)[:, None]
    # Over all steps: of a few ranks one step alone says little about their usual spread.
    spread = SIGMA * median(np.abs(off).reshape(-1, off.shape[2]), 0)
    alone = np.isfinite(off).sum(axis=1, keepdims=True) < 2
    off = np.where(alone, np.nan, off)
    return off, off / np.maximum(spread, LEAST_SPREAD)


def median(numbers: Floats, axis: int) -> Floats:
    """Along an axis of those that are not NaN; NaN where there is none, without a warning."""
    ordered = np.sort(numbers, axis=axis)  # NaN comes last
    count = np.isfinite(ordered).sum(axis=axis, keepdims=True)
    last = ordered.shape[axis] - 1
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, last), axis)
    return np.squeeze((low + high) / 2, axis)


def _rows(
    by: By,
    entity: str | int,
    own: Sequence[tuple[int, int]],
    off: Floats,
    score: Floats,
    chosen: Chosen,
    labels: Sequence[str],
) -> list[dict[str, object]]:
    """One row a site of what one rank, host or device showed."""
    records = [np.flatnonzero(chosen.attempts == attempt) for attempt, _ in own]
    ranks = [rank for _, rank in own]
    pairs = list(zip(records, ranks, strict=True))
    scores = np.concatenate([score[steps, rank] for steps, rank in pairs])
    offs = np.concatenate([off[steps, rank] for steps, rank in pairs])
    steps = chosen.steps[np.concatenate(records)]
    rows: list[dict[str, object]] = []
    for column in np.flatnonzero(np.isfinite(scores).any(axis=0)).tolist():
        worst = int(np.nan_to_num(np.abs(scores[:, column]), nan=-1.0).argmax())
        rows.append(
            {
                "site": labels[column],
                by: entity,
                "ranks": tuple(sorted(set(ranks))),
                "score": float(median(scores[:, column], 0)),
                "ratio": float(2 ** median(offs[:, column], 0)),
                "worst_score": float(scores[worst, column]),
                "worst_step": int(steps[worst]),
            }
        )
    return rows
