"""Which ranks, hosts or devices differ from the others that do the same: a robust score."""

from __future__ import annotations

import warnings
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
    reader: Reader, statistic: str, chosen: Chosen, places: Indices, by: By, most: int
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
            for rank in range(reader.ranks):
                parts[_entity(by, rank, ranks.get(rank))].append((attempt, rank))
        labels = [reader.label(place) for place in some]
        for entity, own in parts.items():
            rows += _rows(by, entity, own, off, score, chosen, labels)
    if not rows:
        raise SettingError(
            "There are no numbers of several ranks to compare: collectors keep them for jobs of "
            "at most 64 ranks; of larger ones ask `scalar` for the views min, max and argmax."
        )
    frame = pd.DataFrame(rows)
    order = np.argsort(-np.abs(frame["score"].to_numpy(np.float64)), kind="stable")
    return frame.iloc[order[:most]].reset_index(drop=True)


def _entity(by: By, rank: int, info: RankInfo | None) -> str | int:
    if by == "rank":
        return rank
    if info is None:
        return ""
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of medians of nothing
        off = logs - np.nanmedian(logs, axis=1, keepdims=True)
        # Over all steps: of a few ranks one step alone says little about their usual spread.
        spread = SIGMA * np.nanmedian(np.abs(off), axis=(0, 1), keepdims=True)
    alone = np.isfinite(off).sum(axis=1, keepdims=True) < 2
    off = np.where(alone, np.nan, off)
    return off, off / np.maximum(spread, LEAST_SPREAD)


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
                "score": float(np.nanmedian(scores[:, column])),
                "ratio": float(2 ** np.nanmedian(offs[:, column])),
                "worst_score": float(scores[worst, column]),
                "worst_step": int(steps[worst]),
            }
        )
    return rows
