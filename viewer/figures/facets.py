"""All statistics of one site as small lines over the shared steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from bokeh.events import Tap
from bokeh.models import ColumnDataSource, DataRange1d, HoverTool, Line, Range1d, Scatter, Span

from ..series import Scalar, thin
from . import colours, look
from .lines import lonely, update

HEIGHT, BORDER = 120, 62
"""Pixels: of one, and of its left border, so that their steps line up."""


class FacetsFigure:
    """A figure for each statistic; streamed as long as new steps only follow the old."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        steps: Range1d,
        crosshair: Span,
        pinned: Span,
        theme: colours.Theme = colours.LIGHT,
    ) -> None:
        self.theme = theme
        self.sources = {name: ColumnDataSource({"step": [], "value": []}) for name in names}
        self.bad = {name: ColumnDataSource({"step": [], "value": []}) for name in names}
        self.alone = {name: ColumnDataSource({"step": [], "value": []}) for name in names}
        self.heights: dict[str, look.Heights] = {}
        self.figures = {name: self._build(name, steps, crosshair, pinned) for name in names}

    def _build(self, name: str, steps: Range1d, crosshair: Span, pinned: Span) -> look.Figure:
        values = DataRange1d(range_padding=0.15, only_visible=True)
        fig = look.plot(
            f"facet_{name}", theme=self.theme, x_range=steps, y_range=values, height=HEIGHT
        )
        fig.title.text = name
        fig.title.text_font, fig.title.text_font_size = look.FONT, look.SMALL
        fig.title.text_color = self.theme.ink
        fig.title.standoff = 0
        fig.xgrid.visible = False
        fig.yaxis.ticker.desired_num_ticks = 3
        fig.min_border_left = BORDER
        at: look.Properties = {"x": "step", "y": "value"}
        bad = self.theme.nonfinite
        line = look.draw(fig, self.sources[name], Line(**at, line_color=colours.NORMAL))
        dot = Scatter(**at, size=5, line_color=colours.NORMAL, fill_color=colours.NORMAL)
        dots = look.draw(fig, self.alone[name], dot)
        diamond = Scatter(**at, marker="diamond", size=7, line_color=bad, fill_color=bad)
        look.draw(fig, self.bad[name], diamond)
        hover = HoverTool(renderers=[line, dots], tooltips="step @step: @value{value}")
        fig.add_tools(hover)
        self.heights[name] = look.Heights(fig, hover, "@value")
        look.step_axis(fig, crosshair=crosshair, pinned=pinned)
        return fig

    def show(self, scalars: Sequence[Scalar]) -> None:
        """Draw the statistics."""
        for one in scalars:
            fig = self.figures[one.name]
            self.heights[one.name].show(logarithmic=one.logarithmic)
            look.fit_axis(fig, one.values, logarithmic=one.logarithmic)
            keep = thin(one.steps, [one.values], 4 * look.frame(fig)[0])
            steps, values = one.steps[keep], one.values[keep]
            update(self.sources[one.name], {"step": steps, "value": values})
            at = lonely(values)
            update(self.alone[one.name], {"step": steps[at], "value": values[at]})
            height = one.values[np.isfinite(one.values)]
            level = float(height[-1]) if height.size else 0.0
            update(self.bad[one.name], {"step": one.bad, "value": np.full(len(one.bad), level)})

    # `Any`: what bokeh's figures take.
    def on_step(self, chosen: Callable[[float], Any]) -> None:
        """Call `chosen(x)` for each click."""

        def tapped(event: Tap) -> None:
            if event.x is not None:
                chosen(event.x)

        for figure in self.figures.values():
            figure.on_event(Tap, tapped)
