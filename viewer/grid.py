"""The heatmap as data: what a statistic looks like over steps and sites, ready to be painted.

The store pools to the pixels and keeps the worst of each; here columns are laid on a regular step
axis, again keeping the worst, and each cell gets a state. Nothing is computed from tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..store.pooling import Heatmap
from ..store.query import Run
from . import words

NUMBER, ZERO, UNDEFINED, NONFINITE, MISSING = range(5)
"""States of a cell. A number is painted by its shade; missing is left open to the hatch below."""

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
    """Where the first column begins, in steps; a record's own step lies in the middle of its cell."""
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

    @property
    def right(self) -> float:
        """Where the last column ends, in steps."""
        return self.left + self.stride * self.shade.shape[1]

    def usual(self) -> NDArray[np.float32]:
        """The shades that the colours are fitted to: those of cells that are all finite."""
        return self.shade[self.state == NUMBER]

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
    """Which value of several in one pixel is the worst: the smallest of what should not be small."""
    return "min" if view == "min" or statistic in ("abs_min", "min") else "max"


def run_view(view: str) -> str | int:
    """A view as the query API takes it: a rank is an int."""
    return int(view) if view.isdecimal() else view


def load_grid(
    run: Run,
    *,
    statistic: str,
    kind: str,
    pattern: str = "",
    view: str = "merged",
    scale: str = "",
    steps: tuple[float, float] | None = None,
    width: int,
    height: int,
) -> Grid:
    """Ask the store for at most `width` × `height` cells and lay them out."""
    pool = pool_of(statistic, view)
    ask = partial(rank_heatmap if view in RANK_VIEWS else Run.heatmap, run, statistic)
    question = {"kind": kind, "name": pattern or None, "view": run_view(view), "pool": pool}
    found = [
        ask(**question, steps=span, width=columns, height=height)
        for span, columns in spans(recorded_steps(run, steps), width)
    ]
    values, nonfinite, observed = (
        np.concatenate([np.asarray(getattr(part, name)) for part in found], axis=1)
        for name in ("values", "nonfinite", "observed")
    )
    first = np.concatenate([part.column_first for part in found]).astype(np.int64)
    last = np.concatenate([part.column_last for part in found]).astype(np.int64)
    logarithmic = is_logarithmic(statistic, view, scale)
    state = states(values, observed, nonfinite, logarithmic)
    shade = shades(values, state, logarithmic)
    left, stride, held = lay_out(first, last, width)
    if held is not None:
        shade, state = pool_columns(shade, state, held, pool)
        first = np.array([first[span[0]] if len(span) else -1 for span in held], np.int64)
        last = np.array([last[span[-1]] if len(span) else -1 for span in held], np.int64)
    row_sites = [list(sites) for sites in found[0].row_sites]
    return Grid(
        shade=shade,
        state=state,
        left=left,
        stride=stride,
        first=first,
        last=last,
        row_sites=row_sites,
        names=[row_name(sites) for sites in row_sites],
        logarithmic=logarithmic,
        signed=not logarithmic and statistic in SIGNED and view not in RANK_VIEWS,
    )


def rank_heatmap(
    run: Run,
    statistic: str,
    *,
    kind: str,
    name: str | None,
    view: str,
    pool: str,
    steps: slice,
    width: int,
    height: int,
) -> Heatmap:
    """Which rank is the extreme one: of several steps and sites in a cell, that of the worst."""
    extreme = view.removeprefix("arg")
    chosen = {"kind": kind, "name": name, "steps": steps}
    worst = run.heatmap(statistic, **chosen, view=extreme, width=width, height=height, pool=extreme)
    sign = -1.0 if extreme == "min" else 1.0
    values = sign * np.asarray(run.scalar(statistic, **chosen, view=extreme).values, float)
    ranks = np.asarray(run.scalar(statistic, **chosen, view=view).values, np.float32)
    values = np.where(np.isnan(values), -np.inf, values)
    lengths = [len(sites) for sites in worst.row_sites]
    row_starts = np.cumsum([0, *lengths[:-1]])
    column_starts = np.searchsorted(recorded_steps(run), worst.column_first)
    column_starts -= column_starts[0] if len(column_starts) else 0
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


def recorded_steps(run: Run, limits: tuple[float, float] | None = None) -> NDArray[np.int64]:
    """int64 [steps]: the steps that have a record, ascending, of all or between two limits."""
    steps = np.unique(np.asarray(run.records()["step"], np.int64))
    if limits is None:
        return steps
    return steps[(steps >= np.floor(limits[0])) & (steps <= np.ceil(limits[1]))]


def spans(steps: NDArray[np.int64], width: int) -> list[tuple[slice, int]]:
    """First and last step of each question to the store, and how many columns it shall give.

    Every column but the last holds equally many steps, so that a new step changes only the last.
    """
    if not len(steps):
        # Between two records: there is nothing, and the store says so with the right rows.
        return [(slice(0, -1), 1)]
    each = -(-len(steps) // max(width, 1))
    head = len(steps) // each * each
    asked = [(slice(int(steps[0]), int(steps[head - 1])), head // each)] if head else []
    if head < len(steps):
        asked.append((slice(int(steps[head]), int(steps[-1])), 1))
    return asked


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
    shade = np.where(np.isin(state, (NUMBER, NONFINITE)), values, np.nan)
    if logarithmic:
        magnitude = np.abs(shade)
        shade = np.log2(magnitude, where=magnitude > 0, out=np.full_like(shade, np.nan))
    return shade.astype(np.float32)


def lay_out(
    first: NDArray[np.int64], last: NDArray[np.int64], width: int
) -> tuple[float, float, list[NDArray[np.intp]] | None]:
    """Left edge and width of regular columns, and which records' columns each one holds.

    None for the last where the columns are regular already. A step that was not recorded is bridged
    up to half the usual distance and left open beyond, so that a gap is seen as a gap.
    """
    if len(first) == 0:
        return -0.5, 1.0, None
    spacings = first[1:] - last[:-1]
    usual = float(np.median(spacings)) if len(spacings) else 1.0
    if len(set(np.diff(first))) <= 1 and len(set(spacings)) <= 1:
        stride = float(first[1] - first[0]) if len(spacings) else float(last[0] - first[0] + 1)
        return float(first[0]) - usual / 2, stride, None
    left, right = first - usual / 2, last + usual / 2
    columns = int(np.clip(np.ceil((right[-1] - left[0]) / usual), 1, width))
    edges = np.linspace(left[0], right[-1], columns + 1)
    begin = np.searchsorted(right, edges[:-1] + 1e-9, "right")
    end = np.searchsorted(left, edges[1:] - 1e-9, "left")
    held = [np.arange(a, max(b, a)) for a, b in zip(begin, end, strict=True)]
    return float(edges[0]), float(edges[1] - edges[0]), held


def pool_columns(
    shade: NDArray[np.float32],
    state: NDArray[np.uint8],
    held: Sequence[NDArray[np.intp]],
    pool: str,
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Several columns in one, keeping the worst: the extreme shade, non-finite before all states."""
    # A number beats zero and undefined; missing counts only where nothing was observed.
    order = np.array([3, 2, 1, 4, 0], np.uint8)
    back = np.argsort(order).astype(np.uint8)
    worst = np.fmin if pool == "min" else np.fmax
    shades_out = np.full((len(shade), len(held)), np.nan, np.float32)
    states_out = np.full((len(shade), len(held)), MISSING, np.uint8)
    for column, span in enumerate(held):
        if len(span):
            shades_out[:, column] = worst.reduce(shade[:, span], axis=1)
            states_out[:, column] = back[order[state[:, span]].max(axis=1)]
    return shades_out, states_out


def row_name(sites: Sequence[str]) -> str:
    """What to call a row: its site, or the first and how many more."""
    name = sites[0].partition(":")[2]
    return name if len(sites) == 1 else f"{name} +{len(sites) - 1}"


def describe(grid: Grid, *, statistic: str, kind: str) -> str:
    """The heatmap in one sentence, for those who do not see it."""
    sites = sum(len(sites) for sites in grid.row_sites)
    if not grid.shade.size or not (grid.first >= 0).any():
        return f"No {kind.replace('_', ' ')} site has been recorded here yet."
    first, last = int(grid.first[grid.first >= 0].min()), int(grid.last.max())
    shown = grid.shade[np.isfinite(grid.shade)]
    text = f"{words.count(sites, 'site')}, {words.steps(first, last)}"
    if shown.size:
        low, high = float(shown.min()), float(shown.max())
        write = words.power if grid.logarithmic else words.number
        text += f"; {statistic} from {write(low)} to {write(high)}"
    elif (grid.state == ZERO).any():
        text += f"; {statistic} is 0"
    bad = grid.state == NONFINITE
    if bad.any():
        rows = int(bad.any(axis=1).sum())
        text += f"; non-finite values in {words.count(rows, 'row')}"
        text += f", from step {int(grid.first[bad.any(axis=0)].min())}"
    else:
        text += "; all values finite"
    missing = int((grid.state == MISSING).sum())
    if missing:
        text += f"; {words.share(missing / grid.state.size)} of the cells not observed"
    return text + "."


def worst_of(
    run: Run, *, sites: Sequence[str], first: int, last: int, statistic: str, view: str
) -> tuple[str, int]:
    """The site and step to look at among those of one cell: first the non-finite, then the extreme."""
    if len(sites) == 1 and first == last:
        return sites[0], first
    chosen = {"sites": list(sites), "steps": slice(first, last)}
    bad = np.asarray(run.scalar("nonfinite", **chosen).transpose("step", "site").values, float)
    found = run.scalar(statistic, **chosen, view=run_view(view)).transpose("step", "site")
    values = np.asarray(found.values, float)
    if (bad > 0).any():
        step, site = np.argwhere(bad > 0)[0]
    elif np.isfinite(values).any():
        pool = pool_of(statistic, view)
        flat = np.nanargmin(values) if pool == "min" else np.nanargmax(values)
        step, site = np.unravel_index(flat, values.shape)
    else:
        return sites[0], first
    return str(found["site"].values[site]), int(found["step"].values[step])
