"""Ranks over steps, with crosses where a rule found that copies differ or a sum does not add up."""

from __future__ import annotations

from collections.abc import Sequence

from bokeh.models import ColumnDataSource, HoverTool, Range1d, Scatter, Segment, Span

from ..standing import Standing
from . import colours, look
from .heatmap import HeatmapFigure


class RankMapFigure(HeatmapFigure):
    """A heatmap of ranks: a cross where an alert begins, and a line as long as it stands."""

    def __init__(
        self,
        name: str,
        *,
        steps: Range1d,
        crosshair: Span,
        pinned: Span,
        theme: colours.Theme = colours.LIGHT,
        undefined: str,
    ) -> None:
        super().__init__(
            name=name,
            steps=steps,
            crosshair=crosshair,
            pinned=pinned,
            theme=theme,
            undefined=undefined,
        )
        self.marks = ColumnDataSource({"first": [], "last": [], "row": [], "text": []})
        # Ink on a rim of the ground, so that they are seen on any shade.
        for width, colour in ((5, theme.surface), (2, theme.ink)):
            rim: look.Properties = {"line_color": colour, "line_width": width}
            span = Segment(x0="first", y0="row", x1="last", y1="row", **rim)
            cross = Scatter(x="first", y="row", marker="x", size=9, fill_color=colour, **rim)
            look.draw(self.figure, self.marks, span)
            crosses = look.draw(self.figure, self.marks, cross)
        told = HoverTool(renderers=[crosses], tooltips="steps @first to @last: @text")
        self.figure.add_tools(told)

    def mark(self, marks: Sequence[Standing]) -> None:
        """Show where alerts stand."""
        self._set(self.marks, {
            "first": [one.first for one in marks],
            "last": [one.last for one in marks],
            "row": [one.row + 0.5 for one in marks],
            "text": [one.text for one in marks],
        })  # fmt: skip
