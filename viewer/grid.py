"""The heatmap as data: what a statistic looks like over steps and sites, ready to be painted.

The store pools to the pixels and keeps the worst of each; here columns are laid on a regular step
axis, again keeping the worst, and each cell gets a state. Nothing is computed from tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import SENTINEL
from ..store.pooling import Heatmap
from ..store.query import Run
from ..store.selection import may_hold_all
from . import words
from .columns import (
    MISSING,
    NONFINITE,
    NUMBER,
    UNDEFINED,
    ZERO,
    between,
    lay_out,
    pool_columns,
    span_of,
)

if TYPE_CHECKING:
    import pandas as pd

SIGNED = ("mean", "min", "max", "skewness", "kurtosis")
"""Statistics that may be negative: linear, with zero in the middle, unless asked otherwise."""
LINEAR = (*SIGNED, "zero_share", "subnormal_share")
RANK_VIEWS = ("argmax", "argmin")
"""Views whose values are ranks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Cells on a regular step axis, rows in the order of execution."""

    shade: NDArray[np.float32]
    """float32 [rows, columns]: log2 |value| or the value; NaN where there is no number to shade."""
    state: NDArray[np.uint8]
    """uint8 [rows, columns]: NUMBER, ZERO, UNDEFINED, NONFINITE or MISSING."""
    left: float
    """Where the first column begins, in steps; a recorded step lies in the middle of its cell."""
    stride: float
    """Width of a column, in steps."""
    first: NDArray[np.int64]
    """int64 [columns]: the first recorded step in the column, -1 where there is none."""
    last: NDArray[np.int64]
    """int64 [columns]: the last recorded step in the column, -1 where there is none."""
    row_sites: list[list[str]]
    """Labels of the sites in each row."""
    names: list[str]
    """What is written beside each row."""
    logarithmic: bool
    signed: bool
    said: list[str] = field(default_factory=list[str])
    """What is said of each row under the mouse, where it is not of sites."""

    @property
    def right(self) -> float:
        """Where the last column ends, in steps."""
        return self.left + self.stride * self.shade.shape[1]

    def usual(self) -> NDArray[np.float32]:
        """The shades that the colours are fitted to: those of cells that are all finite."""
        return self.shade[self.state == NUMBER]

    def span(self, cells: NDArray[np.bool_]) -> str:
        """In which steps some of these cells are, bool [rows, columns]; see `words.span`."""
        there, seen = cells.any(axis=0), (self.state != MISSING).any(axis=0)
        first, last = int(self.first[there].min()), int(self.last[there].max())
        return words.span(first, last, int(self.last[seen].max()))

    def column(self, step: int) -> int | None:
        """The column that holds a step."""
        held = np.flatnonzero((self.first >= 0) & (self.first <= step) & (self.last >= step))
        return int(held[0]) if held.size else None

    def row(self, site: str) -> int | None:
        """The row that holds a site."""
        return next((row for row, sites in enumerate(self.row_sites) if site in sites), None)


def is_logarithmic(statistic: str, view: str, scale: str) -> bool:
    """Whether values are shaded by their power of two."""
    if view in RANK_VIEWS:
        return False
    return scale == "log2" or (not scale and statistic not in LINEAR)


def pool_of(statistic: str, view: str) -> str:
    """Which value of several in one pixel is the worst: the smallest where small is bad."""
    return "min" if view == "min" or statistic in ("abs_min", "min") else "max"


def run_view(view: str) -> str | int:
    """A view as the query API takes it: a rank is an int."""
    return int(view) if view.isdecimal() else view


def load_grid(
    run: Run,
    *,
    statistic: str,
    kind: str = "",
    pattern: str = "",
    rows: Sequence[Sequence[str]] | None = None,
    view: str = "merged",
    scale: str = "",
    steps: tuple[float, float] | None = None,
    recorded: NDArray[np.int64] | None = None,
    width: int,
    height: int,
) -> Grid:
    """Ask the store for at most `width` × `height` cells and lay them out.

    Rows are the sites of a kind that match a pattern, or, if they are given, stand for the sites
    with these labels. `recorded` are the steps that have a record of the statistic, if they are
    known already.
    """
    pool = pool_of(statistic, view)
    recorded = recorded_steps(run.records(), statistic) if recorded is None else recorded
    ask = partial(rank_heatmap if view in RANK_VIEWS else Run.heatmap, run, statistic)
    sites = {"kind": kind, "name": pattern or None} if rows is None else {"rows": rows}
    question = {**sites, "view": run_view(view), "pool": pool}
    span = span_of(between(recorded, steps))
    found = ask(**question, steps=span, width=width, height=height)
    logarithmic = is_logarithmic(statistic, view, scale)
    signed = not logarithmic and statistic in SIGNED and view not in RANK_VIEWS
    return assemble(found, pool=pool, width=width, logarithmic=logarithmic, signed=signed)


def assemble(found: Heatmap, *, pool: str, width: int, logarithmic: bool, signed: bool) -> Grid:
    """The grid of the store's answer."""
    first, last = found.column_first, found.column_last
    state = states(found.values, found.observed, found.nonfinite, logarithmic)
    shade = shades(found.values, state, logarithmic)
    left, stride, held = lay_out(first, last, width)
    if held is not None:
        shade, state = pool_columns(shade, state, held, pool)
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
        logarithmic=logarithmic,
        signed=signed,
    )


def rank_heatmap(
    run: Run,
    statistic: str,
    *,
    view: str,
    pool: str,
    steps: slice,
    width: int,
    height: int,
    **sites: Any,
) -> Heatmap:
    """Which rank is the extreme one: of several steps and sites in a cell, that of the worst."""
    extreme = view.removeprefix("arg")
    worst = run.heatmap(
        statistic, steps=steps, view=extreme, width=width, height=height,
        pool="min" if extreme == "min" else "max", **sites,
    )  # fmt: skip
    labels = [label for row in worst.row_sites for label in row]
    scalar = partial(run.scalar, statistic, sites=labels, steps=steps)
    sign = -1.0 if extreme == "min" else 1.0
    extremes = scalar(view=extreme)
    values = sign * np.asarray(extremes.values, float)
    ranks = np.asarray(scalar(view=view).values, np.float32)
    values = np.where(np.isnan(values), -np.inf, values)
    lengths = [len(sites) for sites in worst.row_sites]
    row_starts = np.cumsum([0, *lengths[:-1]])
    column_starts = np.searchsorted(extremes["step"].values, worst.column_first)
    for starts in (column_starts, row_starts):
        values, ranks = _rank_of_largest(values, ranks, starts)
        values, ranks = values.T, ranks.T
    return replace(worst, values=np.ascontiguousarray(ranks.T), view=view)


def _rank_of_largest(
    values: NDArray[np.float64], ranks: NDArray[np.float32], starts: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Of each group along the first axis the largest value, and the rank it is of."""
    if len(starts) == len(values):
        return values, ranks
    ends = [*starts[1:], len(values)]
    at = np.stack([a + values[a:b].argmax(axis=0) for a, b in zip(starts, ends, strict=True)])
    return np.take_along_axis(values, at, 0), np.take_along_axis(ranks, at, 0)


def recorded_steps(records: pd.DataFrame, statistic: str) -> NDArray[np.int64]:
    """int64 [steps]: the steps that may hold a statistic, ascending; see `Run.scalar`.

    Args:
        records: of `Run.records`: one of each step, in their order.
        statistic: its name.
    """
    steps = records["step"].to_numpy(np.int64)
    if statistic not in SENTINEL:
        counts = (records[name].to_numpy() for name in ("sketched", "glanced", "nonfinite"))
        steps = steps[may_hold_all(*counts)]
    return steps


def states(
    values: NDArray[np.float32],
    observed: NDArray[np.bool_],
    nonfinite: NDArray[np.bool_],
    logarithmic: bool,
) -> NDArray[np.uint8]:
    """uint8 [rows, columns]: one state a cell; non-finite goes above everything."""
    state = np.full(values.shape, NUMBER, np.uint8)
    if logarithmic:
        state[values == 0] = ZERO
    state[~np.isfinite(values)] = UNDEFINED
    state[~observed] = MISSING
    state[nonfinite] = NONFINITE
    return state


def shades(
    values: NDArray[np.float32], state: NDArray[np.uint8], logarithmic: bool
) -> NDArray[np.float32]:
    """float32 [rows, columns]: what the ramp is read at; NaN where the state paints the cell."""
    shade = np.where((state == NUMBER) | (state == NONFINITE), values, np.nan)
    if logarithmic:
        magnitude = np.abs(shade)
        shade = np.log2(magnitude, where=magnitude > 0, out=np.full_like(shade, np.nan))
    return shade.astype(np.float32)


def row_name(sites: Sequence[str]) -> str:
    """What to call a row: its site, or the first and how many more."""
    name = sites[0].partition(":")[2]
    return name if len(sites) == 1 else f"{name} +{len(sites) - 1}"


def describe(grid: Grid, *, statistic: str, kind: str, view: str) -> str:
    """The heatmap in one sentence, for those who do not see it."""
    sites = sum(len(sites) for sites in grid.row_sites)
    if not grid.shade.size or not (grid.first >= 0).any():
        return f"No {kind.replace('_', ' ')} site has been recorded here yet."
    first, last = int(grid.first[grid.first >= 0].min()), int(grid.last.max())
    shown = grid.shade[np.isfinite(grid.shade)]
    rows = f" in {words.count(len(grid.names), 'row')}" if len(grid.names) < sites else ""
    text = f"{words.count(sites, 'site')}{rows}, {words.steps(first, last)}"
    if view in RANK_VIEWS:
        text += f"; the rank whose {statistic} is {view.removeprefix('arg')}imal"
    elif shown.size:
        low, high = float(shown.min()), float(shown.max())
        write = words.power if grid.logarithmic else words.number
        text += f"; {statistic} from {write(low)} to {write(high)}"
    elif (grid.state == ZERO).any():
        text += f"; {statistic} is 0"
    bad = grid.state == NONFINITE
    if bad.any():
        rows = int(bad.any(axis=1).sum())
        text += f"; non-finite values in {words.count(rows, 'row')}, {grid.span(bad)}"
    else:
        text += "; all values finite"
    missing = int((grid.state == MISSING).sum())
    if missing:
        text += f"; {words.share(missing / grid.state.size)} of the cells not observed"
    return text + "."


def worst_of(
    run: Run, *, sites: Sequence[str], first: int, last: int, statistic: str, view: str
) -> tuple[str, int]:
    """The site and step to look at in one cell: the first non-finite, else the extreme."""
    if len(sites) == 1 and first == last:
        return sites[0], first
    scalar = partial(run.scalar, sites=list(sites), steps=slice(first, last))
    bad = scalar("nonfinite").transpose("step", "site")
    wrong = np.argwhere(np.asarray(bad.values, float) > 0)
    found = scalar(statistic, view=run_view(view)).transpose("step", "site")
    values = np.asarray(found.values, float)
    if len(wrong):
        found, (step, site) = bad, wrong[0]
    elif np.isfinite(values).any():
        pool = pool_of(statistic, view)
        flat = np.nanargmin(values) if pool == "min" else np.nanargmax(values)
        step, site = np.unravel_index(flat, values.shape)
    else:
        return sites[0], first
    return str(found["site"].values[site]), int(found["step"].values[step])
