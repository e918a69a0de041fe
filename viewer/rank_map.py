"""The ranks page as data: how far each rank is from its peers, over steps, and who stands out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..sketch.distribution import RANKED
from ..sketch.errors import SettingError
from ..store.peers import OF_SAMPLES
from ..store.selection import execution_order
from . import words
from .columns import (
    MISSING,
    NONFINITE,
    NUMBER,
    UNDEFINED,
    between,
    lay_out,
    pool_columns,
    span_of,
)
from .grid import Grid, recorded_steps

if TYPE_CHECKING:
    from ..store import Alert, RankRatios, Run

DIVERGENCES = ("replica-divergence", "conservation")
"""The rules that compare what ranks hold, bit by bit or in sum."""
MOST = 12
"""Rows of each table."""
LAST = 3
"""Steps among which the last is sought that has gradients: the state after training has none."""
NEAR, NEAR_ONCE = 3.0, 12.0
"""Scores below these, of all steps and of one among many, are what chance makes."""
WORTH = 5.0
"""A score of all steps that is worth a look; below it chance still makes some of very many."""
APART, APART_ONCE = 1.25, 2.0
"""Where there is no score, in log2: ratios below these are taken for what chance makes."""
LEFT = 0.75, 1.25
"""A rank that moved, in log2, by so much of what it is away from its peers has left them."""
FAR = 0.5
"""In log2: 1.4 times the median; what is nearer is not worth a sentence."""
FURTHEST = 3.0
"""In log2: 8 times the median; what is further has no deeper shade, so that its onset is seen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankMap:
    """A row for each rank, in the order of the mesh, as a grid to be painted."""

    grid: Grid
    ranks: list[int]
    group: list[int]
    """Of each: with which others it is compared; -1 for none."""

    @property
    def peers(self) -> int:
        """How many ranks are compared with one another, at most; 1: no rank has a peer."""
        known = [group for group in self.group if group >= 0]
        return max(int(np.bincount(known).max()), 1) if known else 1

    def row_of(self, odd: Outlier | None, rows: Sequence[int]) -> int | None:
        """The row of the rank that is known to be odd, if that is among these rows."""
        if odd is None or not odd.is_known:
            return None
        return next((row for row in rows if self.ranks[row] == odd.rank), None)


def load_rank_map(
    run: Run,
    statistic: str,
    *,
    site: str,
    steps: tuple[float, float] | None = None,
    width: int,
) -> RankMap:
    """How far each rank is from the median of its peers, in at most `width` columns."""
    recorded = between(recorded_steps(run.records(), statistic), steps)
    found = run.rank_ratios(statistic, site=site, steps=span_of(recorded), width=width)
    first, last = found.column_first, found.column_last
    shade, state = found.values, states(found)
    left, stride, held = lay_out(first, last, width)
    if held is not None:
        shade, state = pool_furthest(shade, state, held)
        first = np.array([first[span[0]] if len(span) else -1 for span in held], np.int64)
        last = np.array([last[span[-1]] if len(span) else -1 for span in held], np.int64)
    places = [name.replace(",", " ") for name in found.names]
    names = [
        place if place == f"rank {rank}" else f"rank {rank} ({place})"
        for rank, place in zip(found.ranks, places, strict=True)
    ]
    grid = Grid(
        shade=shade,
        state=state,
        left=left,
        stride=stride,
        first=first,
        last=last,
        row_sites=[[name] for name in names],
        names=names,
        logarithmic=True,
        signed=True,
    )
    return RankMap(grid=grid, ranks=found.ranks, group=found.group)


def states(found: RankRatios) -> NDArray[np.uint8]:
    """uint8 [ranks, columns]: one state a cell; non-finite goes above everything."""
    state = np.full(found.values.shape, NUMBER, np.uint8)
    state[np.isnan(found.values)] = UNDEFINED
    state[~found.observed] = MISSING
    state[found.nonfinite] = NONFINITE
    return state


def pool_furthest(
    shade: NDArray[np.float32], state: NDArray[np.uint8], held: Sequence[NDArray[np.intp]]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Several columns in one, keeping what is furthest from 0."""
    high, state_out = pool_columns(shade, state, held, "max")
    low, _ = pool_columns(shade, state, held, "min")
    return np.where(np.abs(low) > np.abs(high), low, high), state_out


def describe(found: RankMap, *, statistic: str, odd: Outlier | None = None) -> str:
    """The picture in one sentence, for those who do not see it.

    Args:
        found: the picture.
        statistic: of what it is.
        odd: what is known of the site's ranks beside; of two it tells which is odd, if any does.
    """
    grid = found.grid
    if not grid.shade.size or not (grid.first >= 0).any():
        return "Nothing of this site has been recorded here."
    first, last = int(grid.first[grid.first >= 0].min()), int(grid.last.max())
    text = f"{words.count(len(grid.names), 'rank')}, {words.steps(first, last)}"
    far = np.where(np.isnan(grid.shade), 0, np.abs(grid.shade))
    if found.peers == 1:
        text += "; no rank holds the same part as another, so there is nothing to compare"
    elif np.isnan(grid.shade).all():
        text += "; no rank has a number to compare"
    elif far.max() >= FAR:
        row, column = (int(at) for at in np.unravel_index(far.argmax(), far.shape))
        text += (
            _of_two(found, row, column, statistic, odd)
            if found.peers == 2
            else f"; furthest from the median of its peers is {grid.names[row]} "
            f"at step {int(grid.first[column])}, where {statistic} is that of the median "
            f"{words.ratio(2.0 ** float(grid.shade[row, column]))}"
        )
    else:
        most = words.number(2.0 ** float(far.max()))
        near = "equal to" if most == "1" else f"within {most} times"
        text += f"; all are {near} the median of their peers"
    bad = grid.state == NONFINITE
    if bad.any():
        ranks = [found.ranks[row] for row in np.flatnonzero(bad.any(axis=1))]
        text += f"; not finite on {words.rank_words(ranks)}, {grid.span(bad)}"
    missing = int((grid.state == MISSING).sum())
    if missing:
        text += f"; {words.share(missing / grid.state.size)} of the cells not observed"
    return text + "."


def _of_two(found: RankMap, row: int, column: int, statistic: str, odd: Outlier | None) -> str:
    """How far two ranks are apart, and which of them is odd, if that is known."""
    grid = found.grid
    pair = [at for at, group in enumerate(found.group) if group == found.group[row]]
    low, high = sorted(pair, key=lambda at: float(grid.shade[at, column]))
    blamed = found.row_of(odd, pair)
    which = (
        f"its own past tells that {grid.names[blamed]} is the odd one"
        if blamed is not None
        else "which of the two is odd cannot be known from their numbers alone"
    )
    return (
        f"; furthest apart are {words.rank_words([found.ranks[at] for at in pair])} at step "
        f"{int(grid.first[column])}, where {statistic} on {grid.names[high]} is that on "
        f"{grid.names[low]} {words.ratio(2.0 ** float(grid.shade[high, column]))}; {which}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AtStep:
    """One rank at one step, in numbers."""

    rank: int
    name: str
    """Where it is on the mesh."""
    value: float
    ratio: float
    """Over the median of its peers; NaN where there is none."""
    nonfinite: int | None
    """How many elements are not finite; None where the rank was not observed."""


def load_at_step(run: Run, statistic: str, *, site: str, step: int) -> list[AtStep]:
    """The ranks at a step, in the order of the mesh; none where it was not recorded."""
    found = run.rank_ratios(statistic, site=site, steps=slice(step, step))
    if not found.values.shape[1]:
        return []
    values, bad = (
        run.ranks(name, site=site, steps=step).values[-1] for name in (statistic, "nonfinite")
    )
    return [
        AtStep(
            rank=rank,
            name=name,
            value=float(values[rank]),
            ratio=2.0 ** float(found.values[row, -1]),
            nonfinite=None if np.isnan(bad[rank]) else int(bad[rank]),
        )
        for row, (rank, name) in enumerate(zip(found.ranks, found.names, strict=True))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A rank that differs from its peers at a site."""

    site: str
    rank: int
    peers: int
    score: float
    """NaN where there are too few peers for one; then ratios count."""
    ratio: float
    worst_score: float
    worst_ratio: float
    worst_step: int
    own_ratio: float

    @property
    def has_left(self) -> bool:
        """Whether its own past tells that it left its peers, and not they it."""
        away = np.log2(self.worst_ratio)
        return bool(away and LEFT[0] <= np.log2(self.own_ratio) / away <= LEFT[1])

    @property
    def is_known(self) -> bool:
        """Whether this rank is the odd one, and not its only peer."""
        return self.peers > 2 or self.has_left


def load_outliers(
    run: Run, statistic: str, *, steps: tuple[float, float] | None
) -> tuple[list[Outlier], str]:
    """The ranks that differ most, and a sentence where there are none to tell of.

    First those that usually do, then those that did in some step, at last those that usually do
    hardly. They are told of the statistics of which the distribution over ranks is kept: else of
    `rms`.
    """
    ranked = statistic if statistic in RANKED else RANKED[0]
    span = span_of(between(recorded_steps(run.records(), ranked), steps))
    kinds = [kind for kind in dict.fromkeys(run.sites()["kind"]) if kind in OF_SAMPLES]
    if not kinds:
        return [], "Nothing that ranks make of their own samples was recorded."
    try:
        usual, once = (
            run.rank_outliers(ranked, kind=kinds, steps=span, worst=worst, most=3 * MOST)
            for worst in (False, True)
        )
    except SettingError as error:
        return [], str(error)
    far = pd.concat([
        usual.loc[_is_far(usual, "score", "ratio", WORTH, APART)],
        once.loc[_is_far(once, "worst_score", "worst_ratio", NEAR_ONCE, APART_ONCE)],
        usual.loc[_is_far(usual, "score", "ratio", NEAR, APART)],
    ])  # fmt: skip
    if not len(far):
        return [], _none_stands_out(usual, once)
    # Of a few the first row of a site speaks for all: where it is known, it is the odd one.
    few = np.isnan(far["score"].to_numpy(float)) & far.duplicated("site").to_numpy(bool)
    again = few | far.duplicated(["site", "rank"]).to_numpy(bool)
    names = [one.name for one in fields(Outlier)]
    rows = far.loc[~again].head(MOST).to_dict("records")
    return [Outlier(**{name: row[name] for name in names}) for row in rows], ""


def _is_far(
    found: pd.DataFrame, score: str, ratio: str, least: float, octaves: float
) -> NDArray[np.bool_]:
    """Which rows are worth telling: by score, where there is none by ratio."""
    scores, ratios = (found[name].to_numpy(float) for name in (score, ratio))
    return np.where(np.isnan(scores), np.abs(np.log2(ratios)) >= octaves, np.abs(scores) >= least)


def _none_stands_out(usual: pd.DataFrame, once: pd.DataFrame) -> str:
    """In a sentence how near the ranks are to each other."""
    scores = np.abs(usual["score"].to_numpy(float))
    if not np.isnan(scores).all():
        most = words.number(float(np.nanmax(scores)))
        return f"No rank stands out: the largest score is {most}, {WORTH:g} would be worth a look."
    first = once.to_dict("records")[0]
    apart = words.number(2.0 ** abs(float(np.log2(first["worst_ratio"]))))
    return (
        f"In their finite elements ranks are alike: at most {apart} times apart, at "
        f"{first['site']} in step {first['worst_step']}. Of fewer than four no score can tell "
        "which is odd."
    )


def load_divergences(run: Run) -> list[Alert]:
    """What rules found of copies that differ and of sums that do not add up; what goes on first.

    Of one step in the order of execution, as the first of them made the others.
    """
    sites = run.site_infos
    order = {sites[place].label: number for number, place in enumerate(execution_order(sites))}
    latest = dict[tuple[int, str, str, int], "Alert"]()
    for one in run.alert_log():
        if one.rule in DIVERGENCES:
            latest[one.attempt, one.rule, one.site, one.first_step] = one
    return sorted(
        latest.values(),
        key=lambda one: (one.last_step is not None, one.first_step, order.get(one.site, -1)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A parameter's own gradients on the ranks, beside the reduced one."""

    site: str
    """Of the own gradients."""
    agreement: float
    largest: float
    largest_rank: int


def load_agreement(run: Run, *, step: int | None) -> tuple[list[Agreement], int | None, int]:
    """Rank-local against reduced gradients at a step, or the last one that has some.

    Returns:
        The parameters whose ranks differ most, the step that they are of, and how many gradients
        were reduced: of each rank one a micro-batch.
    """
    recorded = recorded_steps(run.records(), "rms")[-LAST:]
    if step is None and not len(recorded):
        return [], None, 0
    try:
        frame = run.gradient_agreement(steps=span_of(recorded) if step is None else step)
    except SettingError:
        return [], None, 0
    frame = frame.dropna(subset=["largest", "agreement"])
    if not len(frame):
        return [], None, 0
    last = int(frame["step"].to_numpy().max())
    frame = frame.loc[frame["step"] == last].sort_values(by="largest", ascending=False)
    rows = [
        Agreement(
            site=row["site"],
            agreement=row["agreement"],
            largest=row["largest"],
            largest_rank=int(row["largest_rank"]),
        )
        for row in frame.head(MOST).to_dict("records")
    ]
    first = frame.iloc[0]
    return rows, last, int(first["ranks"] * first["micro_batches"])
