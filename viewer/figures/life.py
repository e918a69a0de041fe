"""The exponents of one site over its life, against where a number format begins and ends."""

from __future__ import annotations

from math import log2

from bokeh.models import Range1d, Span

from ...sketch.formats import NumberFormat
from ..life import Life
from . import colours
from .heatmap import HeatmapFigure

LEAST, MOST = -24.0, 0.0
"""log2 of the shares between which the ramp runs: always the same, so that lives compare."""


class LifeFigure(HeatmapFigure):
    """A heatmap whose rows are exponents, with a line at each edge of the format."""

    def __init__(
        self,
        name: str,
        *,
        steps: Range1d,
        crosshair: Span,
        pinned: Span,
        theme: colours.Theme = colours.LIGHT,
    ) -> None:
        super().__init__(name=name, steps=steps, crosshair=crosshair, pinned=pinned, theme=theme)
        self.edges = [
            Span(dimension="width", line_color=colour, line_width=1.5, line_dash=dash)
            for colour, dash in (
                (colours.OVERFLOW, []),
                (colours.SUBNORMAL, []),
                (colours.FLUSHED, [5, 3]),
            )
        ]
        for edge in self.edges:
            self.figure.add_layout(edge)

    @property
    def limits(self) -> colours.Limits:
        """From one element in 16 million to all of them; none of them looks like nothing."""
        return colours.Limits(low=LEAST, high=MOST, ranks=True, theme=self.theme)

    def show_life(self, life: Life, target: NumberFormat) -> None:
        """Paint a life and the edges of a format."""
        self.show(life.grid, self.limits, statistic="share of elements")
        powers = [log2(end) for end in (target.max, target.smallest_normal)]
        for edge, power in zip(self.edges, [*powers, log2(target.smallest_subnormal)], strict=True):
            inside = life.low <= power <= life.high + 1
            edge.update(location=life.row_of(power), visible=inside)
