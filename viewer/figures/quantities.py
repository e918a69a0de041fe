"""Derived quantities: a line for each module over steps, and a vector by its index."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from bokeh.models import ColumnDataSource, DataRange1d, HoverTool, Line, Range1d, Scatter, Span
from numpy.typing import NDArray

from ..series import Mark, powers
from . import colours, look
from .compared import CurvesFigure, Looks
from .heatmap import LABEL_WIDTH
from .lines import FootMarks


def looks_of(theme: colours.Theme) -> list[Looks]:
    """Colour, dash and width of each line: twelve that can be told apart."""
    inks = (colours.NORMAL, theme.ink, *colours.BESIDE[:2])
    return [(ink, dash, 1.8) for dash, ink in product(colours.DASHES[:3], inks)]


class QuantityFigure(CurvesFigure):
    """Lines of a quantity, with marks where a bound on it was passed."""

    def __init__(
        self,
        name: str,
        *,
        steps: Range1d,
        crosshair: Span,
        pinned: Span,
        theme: colours.Theme = colours.LIGHT,
    ) -> None:
        super().__init__(
            name, steps=steps, crosshair=crosshair, pinned=pinned, theme=theme, height=320,
            looks=looks_of(theme),
        )  # fmt: skip
        self.figure.y_range.renderers = [*self.drawn]
        self.foot = FootMarks(self.figure, theme)

    def mark(self, marks: Sequence[Mark]) -> None:
        """Show where bounds were passed."""
        self.foot.show(marks)


class VectorFigure:
    """The numbers of a vector at one step, by their index."""

    def __init__(self, name: str, *, theme: colours.Theme = colours.LIGHT) -> None:
        heights = DataRange1d(range_padding=0.15)
        fig = look.plot(name, theme=theme, y_range=heights, height=200)
        fig.xgrid.visible = False
        fig.xaxis.axis_label = "index"
        fig.xaxis.ticker.min_interval = 1
        fig.yaxis.ticker.desired_num_ticks = 4
        fig.min_border_left = LABEL_WIDTH
        self.figure = fig
        self.plain, self.powers = look.numbers(), look.powers()
        self.source = ColumnDataSource({"index": [], "height": [], "value": []})
        at: look.Properties = {"x": "index", "y": "height"}
        colour = colours.NORMAL
        look.draw(fig, self.source, Line(**at, line_color=colour, line_width=1.8))
        dot = Scatter(**at, size=4, line_color=colour, fill_color=colour)
        dots = look.draw(fig, self.source, dot)
        fig.add_tools(HoverTool(renderers=[dots], tooltips="number @index: @value"))

    def show(self, values: NDArray[np.float64], *, logarithmic: bool) -> None:
        """Draw the numbers; those that are not finite leave a gap.

        Args:
            values: float64 [numbers].
            logarithmic: whether heights are powers of two.
        """
        self.figure.yaxis[0].formatter = self.powers if logarithmic else self.plain
        finite = np.where(np.isfinite(values), values, np.nan)
        heights = powers(finite) if logarithmic else finite
        self.source.data = {
            "index": np.arange(len(values)), "height": heights, "value": finite,
        }  # fmt: skip
