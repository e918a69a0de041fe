"""One site and up to four others: their exponents at a step as lines, and lines over steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.events import Tap
from bokeh.models import ColumnDataSource, DataRange1d, HoverTool, Line, Range1d, Scatter, Span

from .. import words
from ..curves import Curves
from ..series import powers, thin
from ..spectrum import ASIDE, ASIDE_NAMES, Spectrum, outline
from . import colours, look
from .exponents import NOTHING, Drawing, ExponentsFigure
from .heatmap import LABEL_WIDTH
from .lines import update

Looks = tuple[str, str, float]
"""Of a line: colour, dash and width in pixels."""
PLACES = range(4)
"""Of those that stand beside: each has its colour, dash and marker."""


def colour_of(place: int, theme: colours.Theme) -> str:
    """The colour of what stands beside, by its place."""
    return (theme.ink, *colours.BESIDE)[place]


class ComparedExponents(ExponentsFigure):
    """A histogram with the outlines of others before it."""

    def __init__(self, name: str, *, theme: colours.Theme = colours.LIGHT) -> None:
        super().__init__(name, theme=theme)
        self.others = [ColumnDataSource({"x": [], "y": [], "site": []}) for _ in PLACES]
        self.others_aside = [ColumnDataSource({"x": [], "y": [], "site": []}) for _ in PLACES]
        for place in PLACES:
            colour = colour_of(place, theme)
            shape = Line(
                x="x", y="y", line_color=colour, line_dash=colours.DASHES[place], line_width=2
            )
            point = Scatter(
                x="x", y="y", marker=colours.MARKERS[place], size=8, fill_color=colour,
                line_color=theme.surface,
            )  # fmt: skip
            line = look.draw(self.figure, self.others[place], shape)
            mark = look.draw(self.beside, self.others_aside[place], point)
            for figure, drawn in ((self.figure, line), (self.beside, mark)):
                figure.add_tools(HoverTool(renderers=[drawn], tooltips="@site"))

    def compare(
        self,
        spectrum: Spectrum | None,
        others: Mapping[str, Spectrum | None],
        *,
        drawing: Drawing,
        counts: bool,
    ) -> None:
        """Draw others over a histogram that is shown; nothing where there is none.

        Args:
            spectrum: that of the bars.
            others: by their sites, in the order of their colours; None: not observed.
            drawing, counts: as `show` takes them.
        """
        shown = {} if spectrum is None else dict(others)
        ends = [
            int(end)
            for one in shown.values()
            if one is not None and one.exponents.size
            for end in (one.exponents[0] - 3, one.exponents[-1] + 4)
        ]
        start, end = min([self.span[0], *ends]), max([self.span[1], *ends])
        self.figure.x_range.update(start=start, end=end, reset_start=start, reset_end=end)
        drawn = dict(zip(PLACES, shown.items(), strict=False))
        for place in PLACES:
            site, one = drawn.get(place, ("", None))
            # An axis that counts elements counts those of the bars.
            total = spectrum if counts else one
            self._outline(place, site, one, total=max(total.total, 1) if total else 1,
                          smooth=drawing == "smooth")  # fmt: skip

    def _outline(
        self, place: int, site: str, one: Spectrum | None, *, total: int, smooth: bool
    ) -> None:
        nothing: look.Data = {"x": [], "y": [], "site": []}
        if one is None:
            self.others[place].data = nothing
            self.others_aside[place].data = dict(nothing)
            return
        x, heights = outline(one, smooth=smooth)
        name = words.site_name(site)
        self.others[place].data = {
            "x": x, "y": np.maximum(heights / total, NOTHING), "site": [name] * len(x),
        }  # fmt: skip
        names = dict(zip(ASIDE, ASIDE_NAMES, strict=True))
        aside = {names[key]: number for key, number in one.aside.items() if number}
        factors = self.beside.x_range.factors
        more = [key for key in aside if key not in factors]
        if more:
            self.beside.x_range.factors = [*factors, *more]
        self.others_aside[place].data = {
            "x": list(aside), "y": [number / total for number in aside.values()],
            "site": [name] * len(aside),
        }  # fmt: skip


class CurvesFigure:
    """A statistic of several sites, or of one in several runs, over the shared steps."""

    def __init__(
        self,
        name: str,
        *,
        steps: Range1d,
        crosshair: Span,
        pinned: Span,
        theme: colours.Theme = colours.LIGHT,
        height: int = 180,
        looks: Sequence[Looks] = (),
    ) -> None:
        """Make the figure.

        Args:
            name: what to call it.
            steps, crosshair, pinned, theme: as all figures of a session have them.
            height: in pixels.
            looks: of each line there may be; none: of a site and those beside it.
        """
        values = DataRange1d(range_padding=0.15, only_visible=True)
        fig = look.plot(name, theme=theme, x_range=steps, y_range=values, height=height)
        fig.xgrid.visible = False
        fig.yaxis.ticker.desired_num_ticks = 4
        fig.xaxis.axis_label = "step"
        fig.min_border_left = LABEL_WIDTH
        self.figure = fig
        empty: look.Data = {"step": [], "value": []}
        # First the site itself, in the colour and manner of its bars.
        looks = looks or [(colours.NORMAL, "solid", 2.6), *(
            (colour_of(place, theme), colours.DASHES[place], 1.8) for place in PLACES
        )]  # fmt: skip
        self.lines, self.bad = ([ColumnDataSource(empty) for _ in looks] for _ in range(2))
        self.drawn: list[Any] = []
        for (colour, dash, width), line, bad in zip(looks, self.lines, self.bad, strict=True):
            shape = Line(x="step", y="value", line_color=colour, line_dash=dash, line_width=width)
            self.drawn.append(look.draw(fig, line, shape))
            diamond = Scatter(
                x="step", y="value", marker="diamond", size=8, fill_color=theme.nonfinite,
                line_color=colour,
            )  # fmt: skip
            look.draw(fig, bad, diamond)
        hover = HoverTool(renderers=self.drawn, tooltips="$name · step @step · @value{value}")
        fig.add_tools(hover)
        self.heights = look.Heights(fig, hover, "@value")
        look.step_axis(fig, crosshair=crosshair, pinned=pinned)

    def show(self, curves: Curves, *, logarithmic: bool) -> None:
        """Draw the lines."""
        axis = self.figure.yaxis[0]
        self.heights.show(logarithmic=logarithmic)
        axis.axis_label = look.literal(curves.statistic)
        look.fit_axis(self.figure, curves.values, logarithmic=logarithmic)
        width = look.frame(self.figure)[0]
        for place, (line, bad) in enumerate(zip(self.lines, self.bad, strict=True)):
            steps, values = np.empty(0, np.int64), np.empty(0)
            wrong = np.empty(0, np.int64)
            if place < len(curves.names):
                values = curves.values[:, place]
                values = powers(values) if logarithmic else values
                there = np.isfinite(values)
                steps, values, wrong = curves.steps[there], values[there], curves.bad[place]
                self.drawn[place].name = curves.names[place]
            keep = thin(steps, [values], 4 * width)
            update(line, {"step": steps[keep], "value": values[keep]})
            heights = _nearest(steps, values, wrong)
            update(bad, {"step": wrong, "value": heights})

    def on_step(self, chosen: Callable[[float], None]) -> None:
        """Call `chosen(x)` for each click."""

        def tapped(event: Tap) -> None:
            if event.x is not None:
                chosen(event.x)

        self.figure.on_event(Tap, tapped)


# NumPy arrays of steps, of values, and of the steps that have no value of their own.
def _nearest(steps: Any, values: Any, at: Any) -> Any:
    """The value at the last step before each, or the first after."""
    if not len(steps):
        return np.zeros(len(at))
    return values[np.maximum(np.searchsorted(steps, at, "right") - 1, 0)]
