"""Runs as data: where two part, how far they are apart, and lines of several."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from math import log
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..sketch.errors import SettingError
from . import words
from .columns import MISSING, NONFINITE, NUMBER, UNDEFINED, between, lay_out, span_of
from .curves import Curves
from .grid import Grid, recorded_steps, row_name
from .rank_map import pool_furthest
from .series import load_training as load_lines

if TYPE_CHECKING:
    from ..store import Comparison, Heatmap, Run

SMALL = 1 << 20
"""Up to so many numbers of a run it is compared again with each snapshot …"""
GROWTH = 1.05
"""… and above when it has grown by this factor."""
FAR = 0.02
"""In log2: 1.4 %; the ramp has at least this reach, so that noise is not magnified."""


def size_class(steps: int, sites: int) -> int:
    """A number that changes when a run that grows is to be compared again."""
    return steps if steps * sites <= SMALL else -int(log(steps, GROWTH))


def common_sites(runs: Sequence[Run], *, kind: str, pattern: str) -> list[str]:
    """The labels of the sites that all runs have, in the order of execution in the first.

    Raises:
        SettingError: there is none.
    """
    sites = runs[0].sites(kind=kind or None, name=pattern or None)
    others = [run.sites().index for run in runs[1:]]
    common = [str(site) for site in sites.index if all(site in one for one in others)]
    if not common:
        raise SettingError(
            "The runs have none of these sites in common; choose another kind or name."
        )
    return common


def load_ratios(
    run: Run,
    other: Run,
    statistic: str,
    *,
    kind: str,
    pattern: str,
    steps: tuple[float, float] | None,
    width: int,
    height: int,
) -> Grid:
    """log2 of the other run over this one, in at most `width` columns and `height` rows."""
    recorded = between(recorded_steps(run.records(), statistic), steps)
    found = run.ratios(
        other,
        statistic,
        kind=kind,
        name=pattern or None,
        steps=span_of(recorded),
        width=width,
        height=height,
    )
    first, last, shade, state = found.column_first, found.column_last, found.values, _states(found)
    left, stride, held = lay_out(first, last, width)
    if held is not None:
        shade, state = pool_furthest(shade, state, held)
        first = np.array([first[span[0]] if len(span) else -1 for span in held], np.int64)
        last = np.array([last[span[-1]] if len(span) else -1 for span in held], np.int64)
    return Grid(
        shade=shade,
        state=state,
        left=left,
        stride=stride,
        first=first,
        last=last,
        row_sites=found.row_sites,
        names=[row_name(sites) for sites in found.row_sites],
        logarithmic=True,
        signed=True,
    )


def _states(found: Heatmap) -> NDArray[np.uint8]:
    """uint8 [rows, columns]: one state a cell; what is not finite goes above everything."""
    state = np.where(np.isnan(found.values), UNDEFINED, NUMBER).astype(np.uint8)
    state[~found.observed] = MISSING
    state[found.nonfinite] = NONFINITE
    return state


Told = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]
"""Of one run: the steps, a number at each, and the steps in which something is not finite."""


def names_of(runs: Sequence[Run]) -> list[str]:
    """What runs are called beside one another: by their folders where names are the same."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [run.path.name for run in runs]


def not_found(asked: str, *, own: str, others: Sequence[str], in_folder: bool) -> str:
    """Why the run that is asked for, or any at all, cannot stand beside; empty where it can.

    Args:
        asked: the name of its folder; empty: any.
        own: that of the run that is looked at.
        others: those of the other runs.
        in_folder: whether a folder of runs is open.
    """
    if not in_folder:
        return (
            "This run alone is open. Open the folder that holds it and others, as "
            "rankscope view rankscope-runs, and this page compares any of them."
        )
    if not others:
        return "This folder holds this run alone; this page compares it with others beside it."
    if asked == own:
        return f"“{words.shorten(own, 60)}” is this run itself; choose another to compare it with."
    if not asked or asked in others:
        return ""
    near = get_close_matches(asked, others, n=3, cutoff=0.4)
    hint = f"near are {', '.join(near)}" if near else f"there are {words.listed(others, 3)}"
    return f"There is no run “{words.shorten(asked, 60)}” in this folder; {hint}."


def load_training(runs: Sequence[Run], name: str) -> Curves:
    """A training statistic of several runs, each on the first rank that told it."""
    return _curves(name, runs, [_told(one, name) for one in runs])


def load_site(runs: Sequence[Run], statistic: str, *, site: str) -> Curves:
    """A statistic of a site in several runs, over all ranks; nothing where one has no such site."""
    return _curves(statistic, runs, [_seen(one, statistic, site) for one in runs])


def _told(run: Run, name: str) -> Told:
    """On the first rank; not finite is what is so on any."""
    lines = load_lines(run, name)
    if not lines.values:
        return _nothing()
    bad = np.array(sorted({step for step, _ in lines.bad}), np.int64)
    return lines.steps, lines.values[min(lines.values)], bad


def _seen(run: Run, statistic: str, site: str) -> Told:
    if site not in run.sites().index:
        return _nothing()
    values, counts = (
        run.scalar(name, sites=[site]).isel(site=0) for name in (statistic, "nonfinite")
    )
    bad = counts["step"].values[np.nan_to_num(counts.values) > 0]
    return values["step"].values, values.values.astype(np.float64), bad


def _nothing() -> Told:
    return np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64)


def _curves(statistic: str, runs: Sequence[Run], found: Sequence[Told]) -> Curves:
    steps = np.unique(np.concatenate([steps for steps, _, _ in found]))
    values = np.full((len(steps), len(runs)), np.nan)
    for line, (at, numbers, _) in zip(values.T, found, strict=True):
        line[np.searchsorted(steps, at)] = numbers
    return Curves(
        statistic=statistic,
        names=[words.shorten(name, 24) for name in names_of(runs)],
        steps=steps,
        values=np.where(np.isfinite(values), values, np.nan),
        bad=[bad for _, _, bad in found],
    )


def describe(found: Comparison, grid: Grid, *, statistic: str) -> str:
    """The picture in one sentence, for those who do not see it."""
    far = np.where(np.isfinite(grid.shade), np.abs(grid.shade), 0)
    sites = sum(len(sites) for sites in grid.row_sites)
    text = f"{words.count(sites, 'site')} over {words.count(found.steps, 'common step')}"
    bad = grid.state == NONFINITE
    if not far.size or (far.max() == 0 and not bad.any()):
        return f"{text}; {statistic} is the same everywhere."
    if bad.any():
        rows = words.count(int(bad.any(axis=1).sum()), "row")
        text += f"; non-finite values in {rows}, {grid.span(bad)}"
    if far.max() < FAR:
        return f"{text}; where {statistic} is finite it is within {2**FAR - 1:.1%} everywhere."
    row, column = np.unravel_index(far.argmax(), far.shape)
    ratio = words.ratio(2.0 ** float(grid.shade[row, column]))
    return (
        f"{text}; furthest apart is {grid.names[row]} from step {int(grid.first[column])}, "
        f"where {statistic} is that of this run {ratio}."
    )
