"""Training statistics beside what is plotted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import holoviews as hv
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...sketch.errors import SettingError
from .. import series
from ..figures import colours
from ..figures.lines import lonely
from . import look

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .source import Source, Training, TrainingStats

STEP = hv.Dimension("step")
HEIGHT = 190
"""Pixels."""


def around(steps: Sequence[NDArray[np.int64]]) -> tuple[float, float] | None:
    """Where an axis of these steps ends: each in the middle of its place, the only one, too."""
    known = np.concatenate(steps)
    return (float(known.min()) - 0.5, float(known.max()) + 0.5) if known.size else None


def alongside(
    plot: look.Plot,
    source: Source,
    training: Training,
    *,
    step: int | None = None,
    steps: tuple[int, int] | None = None,
    width: int = look.WIDTH,
    ends: tuple[float, float] | None = None,
) -> look.Plot:
    """The plot, and training statistics after it, over the same steps.

    Args:
        plot: an overlay or a layout.
        source: whose statistic it is, where `training` is a name.
        training: a name, or numbers by step; empty: none.
        step: where a line marks the step.
        steps: the first and last that are drawn.
        width: pixels.
        ends: between which steps the plot is drawn; where it has the steps on its axis at all.

    Raises:
        SettingError: there is none of that name.
    """
    found = training_lines(source, training)
    if not found:
        return plot
    curves = [_training(one, step=step, steps=steps, width=width, ends=ends) for one in found]
    return beneath(plot, curves, width=width)


def beneath(plot: look.Plot, others: Sequence[look.Plot], *, width: int = look.WIDTH) -> look.Plot:
    """The plot, an overlay or a layout, and others in rows of their own, over the same steps."""
    parts = [*plot] if isinstance(plot, hv.Layout) else [plot]
    columns: int = plot._max_cols if isinstance(plot, hv.Layout) else 1  # pyright: ignore[reportPrivateUsage]
    filled = [hv.Empty()] * (-len(parts) % columns)
    return look.facets([*parts, *filled, *others], columns=columns, shared=True, width=width)


def of_runs(
    sources: Mapping[str, Source], training: str, steps: tuple[int, int] | None
) -> look.Plot:
    """A training statistic of several runs in one plot: each in its colour, a line for each rank.

    Args:
        sources: the runs, by name.
        training: its name.
        steps: the first and last that are drawn.

    Raises:
        SettingError: there is none of that name.
    """
    value, parts, low, high = hv.Dimension(training), list[look.Plot](), [np.nan], [np.nan]
    for number, (run, source) in enumerate(sources.items()):
        [lines] = training_lines(source, training)
        kept = np.ones(len(lines.steps), bool)
        if steps is not None:
            kept = (lines.steps >= steps[0]) & (lines.steps <= steps[1])
        colour = look.CYCLE[number % len(look.CYCLE)]
        drawn = ranks_drawn(lines, kept, value, quiet=(colour,))
        parts += [one if one.label == "non-finite" else one.relabel(run) for one in drawn]
        low, high = [*low, *lines.low[kept]], [*high, *lines.high[kept]]
    return look.sized(
        hv.Overlay(parts), height=HEIGHT, ylabel=training, title=training, xlabel="step",
        ylim=spanning(np.array(low), np.array(high)), entries=len(sources),
    )  # fmt: skip


def training_lines(source: Source, training: Training) -> Sequence[series.Lines]:
    """The lines of what was asked for; none for an empty name.

    Raises:
        SettingError: there is none of that name.
    """
    if isinstance(training, str) and not training:
        return []
    if isinstance(training, str):
        return [source.training(training)]
    frame = training.to_frame() if isinstance(training, pd.Series) else training
    if not isinstance(frame, pd.DataFrame):
        frame = _frame_of(frame)
    return [_given(numbers.dropna(), str(name)) for name, numbers in frame.items()]


def _frame_of(given: TrainingStats) -> pd.DataFrame:
    """The columns that are there, by step.

    Raises:
        SettingError: it is nothing of that kind, or its columns are not as long as its steps.
    """
    steps = getattr(given, "steps", None)
    columns = {
        name: values
        for name in ("train_loss", "val_loss")
        if (values := getattr(given, name, None)) is not None
    }
    if steps is None or not columns:
        raise SettingError(
            "`training` takes the name of a statistic, a Series or a DataFrame whose index are "
            f"steps, or a TrainingStats of tandv, got {type(given).__name__}."
        )
    for name, values in columns.items():
        if len(values) != len(steps):
            raise SettingError(f"{name} has {len(values)} numbers for {len(steps)} steps.")
    return pd.DataFrame(columns, index=pd.Index(steps), dtype=np.float64)


def _given(numbers: pd.Series, name: str) -> series.Lines:
    """Numbers by step as the line of one rank."""
    steps = numbers.index.to_numpy(np.int64)
    values = numbers.to_numpy(np.float64)
    bad = [(int(at), 0) for at in steps[~np.isfinite(values)]]
    values = np.where(np.isfinite(values), values, np.nan)
    return series.Lines(
        name=name, steps=steps, values={0: values}, low=values, high=values, bad=bad
    )


def _training(
    lines: series.Lines,
    *,
    step: int | None,
    steps: tuple[int, int] | None,
    width: int,
    ends: tuple[float, float] | None,
) -> look.Plot:
    kept = np.ones(len(lines.steps), bool)
    if steps is not None:
        kept = (lines.steps >= steps[0]) & (lines.steps <= steps[1])
    value = hv.Dimension(lines.name)
    turns = [one for one in lines.turns if one[0] in lines.steps[kept]]
    parts = [*ranks_drawn(lines, kept, value), *look.turns(turns)]
    if step is not None:
        parts.append(look.upright(step))
    return look.sized(
        hv.Overlay(parts), width=width, height=HEIGHT, ylabel=lines.name,
        title=lines.name,
        xlabel=look.steps_label(turns), xlim=ends or around([lines.steps[kept]]) or (None, None),
        ylim=spanning(lines.low[kept], lines.high[kept]),
    )  # fmt: skip


def spanning(
    low: series.Floats, high: series.Floats, *, logarithmic: bool = False
) -> tuple[float | None, float | None]:
    """Where an axis ends on which all is one number: it spans as much; HoloViews' would span 2.

    On a logarithmic axis without a number it spans the 1 at which marks stand then.
    """
    known = np.concatenate([low, high])
    known = known[np.isfinite(known)]
    if logarithmic:
        known = known[known > 0] if (known > 0).any() else np.ones(1)
    if not known.size or known.min() < known.max() or known[0] == 0:
        return None, None
    half = abs(float(known[0])) / 2
    return float(known[0]) - half, float(known[0]) + half


def ranks_drawn(
    lines: series.Lines,
    kept: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    value: hv.Dimension,
    *,
    quiet: Sequence[str] = (colours.RANK,),
    logarithmic: bool = False,
) -> Sequence[look.Plot]:
    """A quiet line for each rank, a loud one for that to look at; of many ranks what they span.

    Args:
        lines: of the ranks.
        kept: bool [steps]: which to draw.
        value: what they are of.
        quiet: colours of the ranks that are not to be looked at, one after the other.
        logarithmic: whether the axis has no zero: it is marked.
    """
    steps, dims = lines.steps[kept], (STEP, value)
    shown = {rank: line[kept] for rank, line in lines.values.items()}
    zero = [(int(at), rank) for rank in lines.drawn for at in steps[shown[rank] == 0]]
    if logarithmic:
        shown = {rank: np.where(line > 0, line, np.nan) for rank, line in shown.items()}
    parts: list[look.Plot] = []
    if len(lines.drawn) < len(lines.values):
        band = hv.Area(
            (steps, lines.low[kept], lines.high[kept]), kdims=[STEP],
            vdims=[value, hv.Dimension(f"{value.name}, greatest")], label="all ranks",
        )  # fmt: skip
        parts.append(look.styled(band, color=colours.RANK, alpha=0.3))
    for place, rank in enumerate(lines.drawn):
        worst = rank == lines.worst
        colour = colours.WORST if worst else quiet[place % len(quiet)]
        heights, label = shown[rank], f"rank {rank}"
        parts.append(look.line(steps, heights, label, colour=colour, dims=dims, heavy=worst))
        if len(alone := lonely(heights)):  # of which no line is drawn
            parts.append(look.dots(steps[alone], heights[alone], label, colour=colour, dims=dims))

    def mark(cells: Sequence[tuple[int, int]], label: str, colour: str) -> None:
        heights = [
            series.level(steps, shown.get(rank, lines.high[kept]), at, otherwise=1.0)
            for at, rank in cells
        ]
        hollow, at = label == "zero", [at for at, _ in cells]
        parts.append(look.marks(at, heights, label, colour=colour, dims=dims, hollow=hollow))

    if logarithmic and zero:
        mark(zero, "zero", colours.LIGHT.muted)
    if bad := [(at, rank) for at, rank in lines.bad if len(steps) and steps[0] <= at <= steps[-1]]:
        mark(bad, "non-finite", colours.LIGHT.nonfinite)
    return parts
