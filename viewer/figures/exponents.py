"""The histogram of exponents of one tensor, against where a number format begins and ends."""

from __future__ import annotations

from math import ceil, floor, log2, log10, pi
from typing import Literal

import numpy as np
from bokeh.core.properties import value
from bokeh.layouts import row
from bokeh.models import (
    BoxAnnotation,
    ColumnDataSource,
    CustomJSTickFormatter,
    FactorRange,
    HoverTool,
    Label,
    LabelSet,
    Line,
    PanTool,
    Quad,
    Range1d,
    ResetTool,
    Row,
    Scatter,
    Span,
    VBar,
)

from ...sketch.formats import NumberFormat
from .. import words
from ..spectrum import ASIDE, ASIDE_NAMES, NOT_FINITE, Spectrum, outline, zones
from . import colours, look

ZONE_COLOURS = {
    "normal": colours.NORMAL,
    "overflow": colours.OVERFLOW,
    "subnormal": colours.SUBNORMAL,
    "flushed": colours.FLUSHED,
}
Drawing = Literal["bars", "line", "smooth"]
NOTHING = 1e-30
"""A share that is below any axis."""
HEIGHT = 290
"""Pixels."""
NEAR = 16
"""Edges of a format this many powers of two from the data are drawn; others told at the border."""
AWAY: tuple[tuple[Literal["left", "right"], float], ...] = (("left", 1.7), ("right", 0.85))
"""Where is told which edges are away: at a side and a height, one below the other."""
ALWAYS = ("zero", "neg_inf", "pos_inf", "nan")
"""Bars that keep their place when they are empty."""

COUNTS = """
return (tick * total).toLocaleString("en", {maximumFractionDigits: 0});
"""
SHARES = """
const part = (value, unit) => `${Number(value.toPrecision(3))} ${unit}`;
if (tick >= 0.9e-4) return part(tick * 100, "%");
return tick >= 0.9e-7 ? part(tick * 1e6, "ppm") : part(tick * 1e9, "ppb");
"""


class ExponentsFigure:
    """Bars by exponent, coloured by their zone of the format; what has no exponent stands aside."""

    def __init__(self, name: str = "exponents", *, theme: colours.Theme = colours.LIGHT) -> None:
        self.name, self.theme = name, theme
        self.bars = ColumnDataSource(
            {
                name: []
                for name in (
                    "left",
                    "right",
                    "middle",
                    "share",
                    "colour",
                    "count",
                    "low",
                    "high",
                    "zone",
                )
            }
        )
        self.aside = ColumnDataSource(
            {name: [] for name in ("name", "share", "colour", "count", "text")}
        )
        self.smooth = ColumnDataSource({"x": [], "y": []})
        self.counted: int | None = None
        """How many elements the axis counts; None where it tells shares."""
        self.shares = Range1d(start=1e-4, end=2.0)
        self.span = -10, 10
        """The exponents between which the bars and the edges lie."""
        self.figure = self._build()
        self.beside = self._build_aside()
        self.layout: Row = row(self.figure, self.beside, sizing_mode="stretch_width", spacing=0)

    def _build(self) -> look.Figure:
        fig = look.plot(
            self.name,
            theme=self.theme,
            x_range=Range1d(start=-10, end=10),
            y_range=self.shares,
            height=HEIGHT,
            y_axis_type="log",
        )
        fig.yaxis.axis_label = "share of elements"
        fig.yaxis.formatter = CustomJSTickFormatter(code=SHARES)
        fig.xaxis.formatter = look.powers()
        fig.xaxis.axis_label = "|x|"
        fig.xaxis.ticker.min_interval = 1
        fig.xgrid.visible = False
        self._annotate(fig)
        ink: look.Properties = {"line_color": self.theme.ink, "line_width": 2}
        bars = Quad(
            left="left", right="right", top="share", bottom=NOTHING, fill_color="colour",
            line_color=self.theme.surface, line_width=0.6,
        )  # fmt: skip
        line = Line(x="middle", y="share", **ink)
        dots = Scatter(x="middle", y="share", line_color="colour", fill_color="colour", size=8)
        self.drawn = {
            "bars": [look.draw(fig, self.bars, bars)],
            "line": [look.draw(fig, self.bars, line), look.draw(fig, self.bars, dots)],
            "smooth": [look.draw(fig, self.smooth, Line(x="x", y="y", **ink))],
        }
        tip = "2^@low ≤ |x| < 2^@high: @count{0,0} elements, @zone"
        fig.add_tools(
            HoverTool(renderers=[self.drawn["bars"][0], self.drawn["line"][1]], tooltips=tip),
            PanTool(dimensions="width"),
            ResetTool(),
        )
        return fig

    def _annotate(self, fig: look.Figure) -> None:
        """Zones, edges and their names, to be placed when a format is shown."""
        self.zones = [
            BoxAnnotation(
                fill_color=ZONE_COLOURS[zone], fill_alpha=0.10, line_color=None, level="underlay",
                hatch_pattern=hatch, hatch_color=ZONE_COLOURS[zone], hatch_alpha=0.25,
                hatch_scale=9,
            )
            for zone, hatch in (("overflow", "/"), ("subnormal", None), ("flushed", "\\"))
        ]  # fmt: skip
        self.edges = [
            Span(location=0, dimension="height", line_color=colour, line_width=1.5, line_dash=dash)
            for colour, dash in (
                (colours.OVERFLOW, []),
                (colours.SUBNORMAL, []),
                (colours.FLUSHED, [5, 3]),
            )
        ]
        self.names = [
            Label(
                x=0, y=0, text="", angle=pi / 2, x_offset=-2, y_offset=-4, text_font=look.FONT,
                text_font_size="10.5px", text_color=self.theme.ink, text_align="right",
                text_baseline="bottom", background_fill_color=self.theme.surface,
                background_fill_alpha=0.8,
            )
            for _ in self.edges
        ]  # fmt: skip
        self.away = [
            Label(
                x=0, y=y, text="", text_align=align, text_baseline="top", text_font=look.FONT,
                text_font_size="10.5px", text_color=self.theme.muted,
            )
            for align, y in AWAY
        ]  # fmt: skip
        for annotation in (*self.zones, *self.edges, *self.names, *self.away):
            fig.add_layout(annotation)

    def _build_aside(self) -> look.Figure:
        fig = look.plot(
            f"{self.name}_aside",
            theme=self.theme,
            # Room at both ends for what is written above a bar, which is wider than it.
            x_range=FactorRange(range_padding=0.35, range_padding_units="absolute"),
            y_range=self.shares,
            height=HEIGHT,
            y_axis_type="log",
        )
        fig.sizing_mode = "fixed"
        fig.width = 140
        fig.yaxis.visible = False
        fig.xgrid.visible = False
        fig.min_border_left = 10
        bar = VBar(
            x="name", width=0.62, top="share", bottom=NOTHING, fill_color="colour", line_color=None
        )
        bars = look.draw(fig, self.aside, bar)
        fig.add_layout(
            LabelSet(
                x="name", y="share", text="text", source=self.aside, y_offset=2,
                text_align="center", text_baseline="bottom", text_color=self.theme.ink,
                text_font=value(look.FONT), text_font_size="10px",
            )
        )  # fmt: skip
        fig.add_tools(HoverTool(renderers=[bars], tooltips="@name: @count{0,0} elements"))
        fig.toolbar_location = None
        return fig

    def show(
        self,
        spectrum: Spectrum | None,
        target: NumberFormat,
        *,
        drawing: Drawing = "bars",
        counts: bool = False,
    ) -> None:
        """Draw a histogram and the edges of a format.

        Args:
            spectrum: the histogram; None for none.
            target: the format.
            drawing: how.
            counts: whether the axis tells elements, instead of shares of them.
        """
        for name, renderers in self.drawn.items():
            for renderer in renderers:
                renderer.visible = name == drawing
        if spectrum is None:
            for source in (self.bars, self.aside, self.smooth):
                empty: look.Data = {str(name): [] for name in source.data}
                source.data = empty
            for annotation in (*self.zones, *self.edges, *self.names, *self.away):
                annotation.visible = False
            return
        self._count(spectrum.total if counts else None)
        floor_share = 10.0 ** floor(log10(0.5 / max(spectrum.total, 2)))
        self.shares.update(start=floor_share, end=2.0)  # first: an empty bar ends at the floor
        self._bars(spectrum, target)
        x, heights = outline(spectrum, smooth=drawing == "smooth")
        self.smooth.data = {"x": x, "y": np.maximum(heights / max(spectrum.total, 1), NOTHING)}
        self._aside(spectrum)
        self._place(spectrum, target)

    def _count(self, total: int | None) -> None:
        if total == self.counted:
            return
        self.counted, axis = total, self.figure.yaxis[0]
        counts = CustomJSTickFormatter(args={"total": total}, code=COUNTS)
        axis.formatter = CustomJSTickFormatter(code=SHARES) if total is None else counts
        axis.axis_label = "share of elements" if total is None else "elements"

    def _bars(self, spectrum: Spectrum, target: NumberFormat) -> None:
        zone = zones(spectrum, target)
        low = spectrum.exponents.tolist()
        self.bars.data = {
            "left": low,
            "right": [e + 1 for e in low],
            "middle": [e + 0.5 for e in low],
            "share": spectrum.shares.tolist(),
            "colour": [ZONE_COLOURS[name] for name in zone],
            "count": spectrum.counts.tolist(),
            "low": low,
            "high": [e + 1 for e in low],
            "zone": zone,
        }

    def _aside(self, spectrum: Spectrum) -> None:
        names = dict(zip(ASIDE, ASIDE_NAMES, strict=True))
        known = [name for name in ASIDE if name in spectrum.aside]
        shown = [name for name in known if name in ALWAYS or spectrum.aside[name]]
        shares = [spectrum.aside[name] / spectrum.total for name in shown]
        self.beside.x_range.factors = [names[name] for name in shown]
        self.aside.data = {
            "name": [names[name] for name in shown],
            "share": [part or self.shares.start for part in shares],
            "colour": [
                self.theme.nonfinite if name in NOT_FINITE else colours.ASIDE for name in shown
            ],
            "count": [spectrum.aside[name] for name in shown],
            "text": [words.share(part).replace(" ", "") if part else "" for part in shares],
        }

    def _place(self, spectrum: Spectrum, target: NumberFormat) -> None:
        """Choose the visible exponents and put the format's edges, or tell where they are."""
        low, high = (-4, 4)
        if spectrum.exponents.size:
            low, high = int(spectrum.exponents[0]), int(spectrum.exponents[-1]) + 1
        top, normal = log2(target.max), log2(target.smallest_normal)
        tiny = log2(target.smallest_subnormal)
        start, end = low - 3, high + 3
        for edge in (top, normal, tiny):
            if low - NEAR <= edge <= high + NEAR:
                start, end = min(start, floor(edge) - 5), max(end, ceil(edge) + 3)
        self.span = start, end
        self.figure.x_range.update(start=start, end=end, reset_start=start, reset_end=end)
        bounds = ((top, None), (tiny, normal), (None, tiny))
        for zone, (left, right) in zip(self.zones, bounds, strict=True):
            zone.update(left=left, right=right, visible=True)
        texts = (f"max {words.as_power(target.max)}", f"smallest normal {words.power(normal)}",
                 f"smallest subnormal {words.power(tiny)}")  # fmt: skip
        for edge, label, at, text in zip(
            self.edges, self.names, (top, normal, tiny), texts, strict=True
        ):
            inside = start <= at <= end
            edge.update(location=at, visible=inside)
            label.update(x=at, y=2.0, text=text, visible=inside)
        below = f"← smallest normal {words.power(normal)}" if normal < start else ""
        above = f"max {words.as_power(target.max)} →" if top > end else ""
        self.away[0].update(text=below, x=start, visible=True)
        self.away[1].update(text=above, x=end, visible=True)
