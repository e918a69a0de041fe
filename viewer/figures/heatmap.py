"""The heatmap: sites in their order of execution over steps, the worst of each pixel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from bokeh.events import Tap
from bokeh.models import (
    BoxAnnotation,
    ColumnDataSource,
    CrosshairTool,
    CustomJSHover,
    DataRenderer,
    FixedTicker,
    HoverTool,
    Image,
    LinearColorMapper,
    Quad,
    Range1d,
    Span,
)

from .. import words
from ..columns import EMPTY, MISSING, NONFINITE, NUMBER, UNDEFINED, ZERO
from ..grid import Grid
from . import colours, look

CLEAR = "#00000000"

LABEL_WIDTH = 190
"""Left border in pixels; the plots above and below have the same, so that their steps line up."""
LABEL_LENGTH = 30
"""Characters of a site's name that fit there."""
LABEL_HEIGHT = 13
"""Pixels that a row's name needs."""
BORDER_TOP, BORDER_BOTTOM = 5, 46
"""Pixels above and below the frame, more than its axis takes: what stands beside it is in line with
its rows."""
PATCH_COLUMNS = 8
"""More changed columns than this are sent as a whole new image."""
SPARE = 64
"""Columns allocated beyond the last one, so that new steps are patches."""

SITE = """
const row = Math.floor(special_vars.y), sites = rows.data.sites[row];
return sites === undefined ? "" : sites;
"""
STEPS = """
const column = Math.floor((special_vars.x - layout.data.left[0]) / layout.data.stride[0]);
const first = columns.data.first[column], last = columns.data.last[column];
if (first === undefined || first < 0) return "not recorded";
return first === last ? String(first) : `${first} – ${last}, the worst of them`;
"""
VALUE = """
const column = Math.floor((special_vars.x - layout.data.left[0]) / layout.data.stride[0]);
const row = Math.floor(special_vars.y), width = layout.data.width[0];
const state = cells.data.state[0][row * width + column];
const shade = cells.data.shade[0][row * width + column];
const logarithmic = layout.data.logarithmic[0], statistic = layout.data.statistic[0];
const far = (v) => v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5);
const show = (v) => far(v) ? v.toExponential(3) : v.toPrecision(4);
const number = logarithmic ? `${show(2 ** shade)} = 2^${shade.toFixed(1)}` : show(shade);
const value = isNaN(shade) ? "" : number;
const words = {1: "0", 2: layout.data.undefined[0], 4: "not observed", 5: "no element",
    3: "NON-FINITE" + (value ? `; ${statistic} of the finite elements ${value}` : "")};
return words[state] ?? `${statistic} ${value}`;
"""
TOOLTIPS = """<div style="font: 12px {font}; color: {ink}; max-width: 460px; padding: 2px 4px">
<div style="font-weight: 600">@shade{{site}}</div><div>@shade{{value}}</div>
<div style="color: {muted}">step $x{{steps}}</div></div>"""


def state_palette(theme: colours.Theme) -> list[str]:
    """The colour of each state of a cell; clear where what is below is to be seen."""
    special = {
        ZERO: theme.zero, UNDEFINED: theme.undefined, NONFINITE: theme.nonfinite,
        EMPTY: theme.surface,
    }  # fmt: skip
    states = (NUMBER, ZERO, UNDEFINED, NONFINITE, MISSING, EMPTY)
    return [special.get(state, CLEAR) for state in states]


class HeatmapFigure:
    """Two images, one of shades and one of states, above a hatch that shows where neither is."""

    def __init__(
        self,
        name: str = "heatmap",
        *,
        beside: int = 0,
        steps: Range1d,
        crosshair: Span,
        pinned: Span,
        theme: colours.Theme = colours.LIGHT,
        undefined: str = "undefined (no finite elements, or no spread)",
    ) -> None:
        """Make the figure.

        Args:
            name: what to call it.
            beside: pixels left of it that something else takes of its left border.
            steps, crosshair, pinned, theme: as all figures of a session have them.
            undefined: what is said of a cell that was observed and has no number.
        """
        self.name, self.theme, self.undefined = name, theme, undefined
        self.label_width = LABEL_WIDTH - beside
        self.grid: Grid | None = None
        nothing: look.Data = {
            "shade": [np.full((1, 1), np.nan, np.float32)],
            "state": [np.full((1, 1), MISSING, np.uint8)],
        }
        nothing |= {"x": [0.0], "y": [0.0], "dw": [1.0], "dh": [1.0]}
        self.cells = ColumnDataSource(nothing)
        self.layout = ColumnDataSource({"left": [0.0], "stride": [1.0], "width": [1]})
        self.rows = ColumnDataSource({"sites": []})
        self.columns = ColumnDataSource({"first": [], "last": []})
        self.chosen = ColumnDataSource({"left": [], "right": [], "top": [], "bottom": []})
        self.mapper = LinearColorMapper(palette=theme.ramp, low=0, high=1, nan_color=CLEAR)
        self.figure = self._build(steps, crosshair, pinned)

    def _build(self, steps: Range1d, crosshair: Span, pinned: Span) -> look.Figure:
        rows = Range1d(start=1, end=0)
        fig = look.plot(self.name, theme=self.theme, x_range=steps, y_range=rows, height=420)
        fig.min_border_left = self.label_width
        fig.min_border_top, fig.min_border_bottom = BORDER_TOP, BORDER_BOTTOM
        fig.xaxis.axis_label = "step"
        fig.grid.visible = False
        fig.yaxis.major_tick_line_color = None
        self.hatch = BoxAnnotation(
            left=0, right=0, top=0, bottom=0, level="image", line_color=None, fill_alpha=1,
            fill_color=self.theme.missing, hatch_pattern="/", hatch_color=self.theme.hatch,
            hatch_weight=0.8, hatch_scale=7,
        )  # fmt: skip
        fig.add_layout(self.hatch)
        place: look.Properties = {"x": "x", "y": "y", "dw": "dw", "dh": "dh"}
        shades = Image(image="shade", color_mapper=self.mapper, **place)
        look.draw(fig, self.cells, shades)
        palette = state_palette(self.theme)
        states = LinearColorMapper(palette=palette, low=-0.5, high=len(palette) - 0.5)
        top = look.draw(fig, self.cells, Image(image="state", color_mapper=states, **place))
        for width, colour in ((4, self.theme.surface), (2, self.theme.ink)):
            box = Quad(
                left="left", right="right", top="top", bottom="bottom", fill_color=None,
                line_color=colour, line_width=width,
            )  # fmt: skip
            look.draw(fig, self.chosen, box)
        look.step_axis(fig, crosshair=crosshair, pinned=pinned)
        # A line of the tool's own, of which the server hears nothing.
        across = CrosshairTool(dimensions="width", visible=False)
        across.update(line_color=self.theme.muted, line_width=1, line_alpha=0.35)
        fig.add_tools(across, self._hover(top))
        return fig

    def _hover(self, renderer: DataRenderer) -> HoverTool:
        sources = {
            "rows": self.rows, "columns": self.columns, "layout": self.layout, "cells": self.cells,
        }  # fmt: skip
        code = f"if (format === 'site') {{ {SITE} }} else {{ {VALUE} }}"
        return HoverTool(
            renderers=[renderer],
            tooltips=TOOLTIPS.format(
                font=look.FONT.replace("'", ""), ink=colours.LIGHT.ink, muted=colours.LIGHT.muted
            ),
            formatters={
                "@shade": CustomJSHover(args=sources, code=code),
                "$x": CustomJSHover(args=sources, code=STEPS),
            },
        )

    def show(self, grid: Grid, limits: colours.Limits, *, statistic: str) -> None:
        """Paint a grid, sending no more than what changed."""
        if self.grid is None or not self._patch(self.grid, grid):
            self._replace(grid)
        rows, columns = grid.shade.shape
        shade, state = (self.cells.data[name][0][:rows, :columns] for name in ("shade", "state"))
        self.grid = replace(grid, shade=shade, state=state)  # so that they are kept only once
        self._set(self.layout, {
            "left": [grid.left], "stride": [grid.stride], "width": [self.capacity],
            "logarithmic": [grid.logarithmic], "statistic": [statistic],
            "undefined": [self.undefined],
        })  # fmt: skip
        said = grid.said or [_row_words(sites) for sites in grid.row_sites]
        self._set(self.rows, {"sites": said})
        self._set(self.columns, {"first": grid.first.tolist(), "last": grid.last.tolist()})
        if (self.mapper.low, self.mapper.high) != (limits.low, limits.high):
            self.mapper.update(low=limits.low, high=limits.high)
        if self.mapper.palette != limits.palette:
            self.mapper.palette = limits.palette
        self.hatch.update(left=grid.left, right=grid.right, bottom=len(grid.names), top=0)
        self._label(grid)

    @property
    def capacity(self) -> int:
        """Columns that the images have, spare ones included."""
        return self.cells.data["shade"][0].shape[1]

    def _patch(self, old: Grid, new: Grid) -> bool:
        """Send the columns that differ; False where a whole image is due."""
        columns = new.shade.shape[1]
        same_place = (old.left, old.stride, old.row_sites) == (new.left, new.stride, new.row_sites)
        kept = old.shade.shape[1]
        if not same_place or not kept <= columns <= self.capacity:
            return False
        differs = (old.state != new.state[:, :kept]).any(axis=0)
        differs |= ~((old.shade == new.shade[:, :kept]) | np.isnan(old.shade)).all(axis=0)
        changed = [*np.flatnonzero(differs).tolist(), *range(kept, columns)]
        if len(changed) > PATCH_COLUMNS:
            return False
        for name, cells in (("shade", new.shade), ("state", new.state)):
            patches = [((0, slice(None), slice(c, c + 1)), cells[:, c].tolist()) for c in changed]
            if patches:
                self.cells.patch({name: patches})
        return True

    def _replace(self, grid: Grid) -> None:
        rows, columns = grid.shade.shape
        capacity = max(columns + SPARE, 1)
        shade = np.full((max(rows, 1), capacity), np.nan, np.float32)
        state = np.full((max(rows, 1), capacity), MISSING, np.uint8)
        shade[:rows, :columns], state[:rows, :columns] = grid.shade, grid.state
        self.cells.data = {
            "shade": [shade], "state": [state], "x": [grid.left], "y": [0.0],
            "dw": [capacity * grid.stride], "dh": [float(max(rows, 1))],
        }  # fmt: skip

    def _label(self, grid: Grid) -> None:
        """Name as many rows as can be read, the last and the outlined one among them.

        A row keeps its name through zoom and refresh.
        """
        rows = max(len(grid.names), 1)
        every = max(round(LABEL_HEIGHT * rows / look.frame(self.figure)[1] + 0.49), 1)
        length = LABEL_LENGTH * self.label_width // LABEL_WIDTH
        named = [row for row in range(0, len(grid.names), every) if row <= rows - 1 - every]
        named += [rows - 1] if grid.names else []
        chosen = [int(row) for row in self.chosen.data["top"] if row < len(grid.names)]
        ticks = [row + 0.5 for row in named if all(abs(row - one) >= every for one in chosen)]
        ticks = sorted([*ticks, *(row + 0.5 for row in chosen)])
        labels = {
            tick: look.literal(words.shorten(grid.names[int(tick)], length)) for tick in ticks
        }
        axis = self.figure.yaxis[0]
        if not isinstance(axis.ticker, FixedTicker) or axis.ticker.ticks != ticks:
            axis.ticker = FixedTicker(ticks=ticks)
        if axis.major_label_overrides != labels:
            axis.major_label_overrides = labels
        if self.figure.y_range.start != rows:
            self.figure.y_range.update(start=rows, end=0)

    def outline(self, row: int | None, column: int | None) -> None:
        """Draw a box around a cell, or around a row where only the row is known."""
        grid = self.grid
        if grid is None or row is None or column is None:
            self._set(self.chosen, {"left": [], "right": [], "top": [], "bottom": []})
        else:
            left = grid.left + column * grid.stride
            self._set(self.chosen, {
                "left": [left], "right": [left + grid.stride], "top": [row], "bottom": [row + 1],
            })  # fmt: skip
        if grid is not None:
            self._label(grid)

    def outline_site(self, site: str, step: int | None) -> None:
        """Draw a box around the cell of a site at a step; around none where either is missing."""
        row = column = None
        if self.grid is not None and site and step is not None:
            row, column = self.grid.row(site), self.grid.column(step)
        self.outline(row, column)

    def cell(self, x: float, y: float) -> tuple[int, int] | None:
        """Row and column at a point in data coordinates."""
        if self.grid is None:
            return None
        row, column = int(np.floor(y)), int(np.floor((x - self.grid.left) / self.grid.stride))
        rows, columns = self.grid.shade.shape
        return (row, column) if 0 <= row < rows and 0 <= column < columns else None

    def on_cell(self, chosen: Callable[[int, int], None]) -> None:
        """Call `chosen(row, column)` for each click on a cell."""

        def tapped(event: Tap) -> None:
            if event.x is not None and event.y is not None and (at := self.cell(event.x, event.y)):
                chosen(*at)

        self.figure.on_event(Tap, tapped)

    def size(self) -> tuple[int, int]:
        """Columns and rows of pixels in the frame; a usual size before the browser has told."""
        return look.frame(self.figure)

    @staticmethod
    def _set(source: ColumnDataSource, data: look.Data) -> None:
        if dict(source.data) != data:
            source.data = data


def _row_words(sites: list[str]) -> str:
    kind, _, name = sites[0].partition(":")
    if not name:
        return kind  # a row that is of no site
    more = f" and {len(sites) - 1} more" if len(sites) > 1 else ""
    return f"{name}{more} ({kind.replace('_', ' ')})"
