"""The figures of a report: those of the pages, once, over one axis of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from bokeh.models import Range1d
from numpy.typing import NDArray

from ...sketch.errors import SettingError
from ...sketch.formats import number_format
from ...store.query import Run
from .. import grid, markup, series, spectrum
from ..figures import Crosshair, ExponentsFigure, HeatmapFigure, LinesFigure, colours, look
from ..reading import Readings, of_training
from .contents import Evidence

STATISTIC = "abs_max"
"""Of heatmaps and lines: what overflow and underflow show in first."""
MOST_TRAINING = 4
WIDTH, HEIGHT = 900, 400
"""Cells of a heatmap at most: the pixels that it has on a usual screen."""

# `Any`: Bokeh models, which have no common type.
Figures = dict[str, Any]


class Drawing:
    """Makes figures that share their steps, and keeps them by name."""

    def __init__(self, run: Run, *, theme: colours.Theme = colours.LIGHT) -> None:
        self.run, self.theme = run, theme
        self.figures: Figures = {}
        self.steps = Range1d(start=0, end=1)
        self.crosshair = Crosshair(theme)
        recorded = run.records()["step"].to_numpy(np.int64)
        if len(recorded):
            left, right = float(recorded.min()) - 0.5, float(recorded.max()) + 0.5
            self.steps.update(start=left, end=right, reset_start=left, reset_end=right)
        self._read(np.unique(recorded))

    def _read(self, recorded: NDArray[np.int64]) -> None:
        """Let the first training statistic be read off where the mouse is."""
        found = self.run.training()
        first = series.training_names(found)[:1]
        lines = [series.load_training(self.run, name, found) for name in first]
        readings = [reading for one in lines for reading in of_training(one, recorded)]
        self.crosshair.show(Readings(steps=recorded, of=readings))

    def training(self, blamed: int | None) -> list[tuple[str, str]]:
        """Name of each figure of training statistics, and its summary."""
        drawn: list[tuple[str, str]] = []
        found = self.run.training()
        for number, name in enumerate(series.training_names(found)[:MOST_TRAINING]):
            lines = replace(series.load_training(self.run, name, found), worst=blamed)
            figure = LinesFigure(f"training-{number}", **self._shared(None), height=130)
            figure.show(lines)
            self.crosshair.follow(figure.figure)
            drawn.append((self._keep(f"training-{number}", figure.figure), series.describe(lines)))
        return drawn

    def heatmap(self, kind: str, marked: Evidence | None) -> tuple[str, str, str]:
        """Name of the figure, its legend, and its summary."""
        found = grid.load_grid(self.run, statistic=STATISTIC, kind=kind, width=WIDTH, height=HEIGHT)
        step = None if marked is None else marked.step
        figure = HeatmapFigure(**self._shared(step))
        limits = colours.limits(found.usual(), diverging=found.signed, theme=self.theme)
        figure.figure.height = int(np.clip(len(found.names) * 16, 160, 400)) + 46
        figure.show(found, limits, statistic=STATISTIC)
        self.crosshair.follow(figure.figure)
        if marked is not None:
            figure.outline(found.row(marked.site), found.column(marked.step))
        told = grid.describe(found, statistic=STATISTIC, kind=kind, view="merged")
        legend = markup.legend(limits, logarithmic=found.logarithmic, view="merged")
        return self._keep(f"heatmap-{kind}", figure.figure), legend, told

    def exponents(self, one: Evidence, number: int) -> tuple[str, str, str]:
        """Name of the figure, or nothing; its summary, and the table of formats."""
        held = spectrum.load_spectrum(self.run, site=one.site, step=one.step)
        if held is None:
            return "", series.why_no_sketch(self.run, site=one.site, step=one.step), ""
        own = str(self.run.sites().loc[one.site, "dtype"])
        target = spectrum.site_format(own)
        figure = ExponentsFigure(theme=self.theme)
        figure.show(held, target)
        fit = spectrum.load_fit(self.run, site=one.site, step=one.step)
        blocks = spectrum.load_block_fit(self.run, site=one.site, step=one.step)
        tables = [markup.fit_table(fit, target=target, own=own), *markup.block_tables(blocks)]
        name = self._keep(f"exponents-{number}", figure.layout)
        return name, spectrum.describe(held, number_format(target.name)), "".join(tables)

    def ranks(self, one: Evidence, number: int) -> tuple[str, str, str]:
        """Name of the figure, or nothing; why a rank stands out; and its summary."""
        try:
            lines = series.load_ranks(self.run, STATISTIC, site=one.site)
            lines = series.at_step(self.run, lines, site=one.site, step=one.step)
        except SettingError as error:
            return "", "", str(error)
        if one.ranks and one.ranks[0] in lines.values:
            lines = replace(lines, worst=one.ranks[0])
        figure = LinesFigure(f"ranks-{number}", **self._shared(one.step), height=150)
        figure.show(lines, logarithmic=grid.is_logarithmic(STATISTIC, "merged", ""))
        self.crosshair.follow(figure.figure)
        name = self._keep(f"ranks-{number}", figure.figure)
        return name, lines.why, series.describe(lines)

    def _shared(self, step: int | None) -> dict[str, Any]:
        pinned = look.pinned(self.theme)
        if step is not None:
            pinned.update(location=step, visible=True)
        return {
            "steps": self.steps,
            "crosshair": self.crosshair.line,
            "pinned": pinned,
            "theme": self.theme,
        }

    def _keep(self, name: str, figure: Any) -> str:  # `Any`: a Bokeh model
        self.figures[name] = figure
        return name


def heatmaps(
    drawing: Drawing, kinds: Sequence[str], evidence: Sequence[Evidence]
) -> list[tuple[str, tuple[str, str, str]]]:
    """Of each kind its heatmap, with the first tensor in evidence outlined."""
    found: list[tuple[str, tuple[str, str, str]]] = []
    for kind in kinds:
        marked = next((one for one in evidence if one.site.startswith(f"{kind}:")), None)
        found.append((kind, drawing.heatmap(kind, marked)))
    return found
