"""How every figure looks: one frame, one font, quiet rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.core.property.descriptors import UnsetValueError
from bokeh.models import (
    BoxZoomTool,
    ColumnDataSource,
    CustomJSHover,
    CustomJSTickFormatter,
    GlyphRenderer,
    HoverTool,
    PanTool,
    Range,
    ResetTool,
    Span,
    WheelZoomTool,
)
from bokeh.models.glyph import Glyph
from bokeh.plotting import figure
from numpy.typing import NDArray

from .colours import LIGHT, Theme

FONT = "'Segoe UI', 'Helvetica Neue', 'Liberation Sans', Arial, system-ui, sans-serif"
SMALL = "11px"

Figure = Any
"""A bokeh figure. `Any`: bokeh's own types know neither its axes, which answer as one, nor the
kinds of its ranges and tickers, nor the events that its callbacks take."""
Data = dict[str, Any]
"""Columns of a ColumnDataSource. `Any`: a column is a list or an array of any dtype."""

Properties = dict[str, Any]
"""Of a glyph. `Any`: they are of many types."""

POWERS = """
const digits = {"-": "⁻", ".": "·", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷",
    8: "⁸", 9: "⁹"};
const apart = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 1;
const places = Math.min(Math.max(Math.ceil(-Math.log10(apart)), 2), 12);
return "2" + Array.from(String(Number(tick.toFixed(places))), (c) => digits[c]).join("");
"""
READ = """
const number = logarithmic ? 2 ** value : value;
const far = number !== 0 && (Math.abs(number) < 1e-3 || Math.abs(number) >= 1e5);
const text = far ? number.toExponential(3).replace("e+", "e") : number.toPrecision(4);
return (logarithmic ? `${text} = 2^${value.toFixed(2)}` : text).replaceAll("-", "−");
"""
NUMBERS = """
const largest = Math.max(...ticks.map(Math.abs));
const far = largest !== 0 && (largest < 1e-3 || largest >= 1e5);
const number = Number(tick.toPrecision(8));
const text = far && number !== 0 ? number.toExponential().replace("e+", "e") : String(number);
return text.replaceAll("-", "−");
"""


def plot(name: str, *, theme: Theme = LIGHT, **settings: Any) -> Figure:
    """An empty figure of the house's look."""
    fig: Figure = figure(
        name=name,
        tools=[],
        toolbar_location="right",
        sizing_mode="stretch_width",
        outline_line_color=None,
        background_fill_color=theme.surface,
        border_fill_color=theme.surface,
        # WebGL without a GPU takes seconds a frame.
        output_backend="canvas",
        min_border_right=8,
        **settings,
    )
    fig.toolbar.logo = None
    fig.toolbar.autohide = True
    for axis in fig.axis:
        axis.axis_line_color = None
        axis.major_tick_line_color = theme.rule
        axis.minor_tick_line_color = None
        axis.major_label_text_color = theme.muted
        axis.major_label_text_font = FONT
        axis.major_label_text_font_size = SMALL
        axis.axis_label_text_color = theme.muted
        axis.axis_label_text_font = FONT
        axis.axis_label_text_font_size = SMALL
        axis.axis_label_text_font_style = "normal"
    for grid in fig.grid:
        grid.grid_line_color = theme.rule
    return fig


def step_axis(fig: Figure, *, crosshair: Span, pinned: Span) -> None:
    """Make x the shared step axis: zoom and pan along it, the cross-hair, the pinned step."""
    zoom = BoxZoomTool(dimensions="width")
    fig.add_tools(
        zoom,
        PanTool(dimensions="width"),
        WheelZoomTool(dimensions="width"),
        ResetTool(),
    )
    fig.toolbar.active_drag = zoom
    fig.toolbar.active_scroll = None
    fig.xaxis.ticker.min_interval = 1
    fig.xaxis.formatter.use_scientific = False
    fig.add_layout(crosshair)
    fig.add_layout(pinned)


# `settings`: of bokeh's GlyphRenderer, of many types.
def draw(fig: Figure, source: ColumnDataSource, glyph: Glyph, **settings: Any) -> GlyphRenderer:
    """Draw a glyph of a source, and no more.

    Bokeh's own methods make two glyphs beside each, for what is not selected and what is muted.
    Here nothing is either, and each model is made and kept by the server, and made by the browser.
    """
    return fig.add_glyph(source, glyph, **settings)


class Heights:
    """How the axis and the mouse tell heights: numbers, or exponents as powers of two."""

    def __init__(self, fig: Figure, hover: HoverTool, told: str) -> None:
        """Of a figure and its hover tool, in whose text `told` is the height."""
        self.axis, self.hover, self.told = fig.yaxis[0], hover, told
        self.logarithmic: bool | None = None
        self.show(logarithmic=False)

    def show(self, *, logarithmic: bool) -> None:
        """Tell heights so from now on."""
        if logarithmic == self.logarithmic:
            return
        self.logarithmic = logarithmic
        self.axis.formatter = powers() if logarithmic else numbers()
        self.hover.formatters = {
            self.told: CustomJSHover(args={"logarithmic": logarithmic}, code=READ)
        }


def crosshair(theme: Theme = LIGHT) -> Span:
    """The vertical line of all figures that share it; a `Crosshair` moves it with the mouse."""
    return Span(dimension="height", line_color=theme.muted, line_width=1, line_alpha=0.6)


def pinned(theme: Theme = LIGHT) -> Span:
    """The line at the selected step."""
    return Span(
        dimension="height",
        location=0,
        line_color=theme.ink,
        line_width=1.5,
        line_dash=[4, 3],
        visible=False,
    )


def powers() -> CustomJSTickFormatter:
    """Ticks that are exponents, written as powers of two."""
    return CustomJSTickFormatter(code=POWERS)


def numbers() -> CustomJSTickFormatter:
    """Ticks that are numbers, with no more digits than tell them apart."""
    return CustomJSTickFormatter(code=NUMBERS)


def literal(name: str) -> str:
    """A name as Bokeh is to draw it: what stands between $$ or the like it would set as TeX."""
    for start in ("$$", "\\(", "\\["):
        name = name.replace(start, f"{start[0]}\N{ZERO WIDTH SPACE}{start[1]}")
    return name


def move(span: Range, start: float, end: float) -> None:
    """Set both ends of a range at once, for the reset tool too."""
    span.update(start=start, end=end)


def fit_axis(fig: Figure, *values: NDArray[np.float64], logarithmic: bool) -> None:
    """Let an axis on which all is one number span as much as that number; Bokeh's spans 2.

    Where it varies, Bokeh fits the axis to it. Without a finite number the axis has none either.

    Args:
        fig: whose y-axis is a DataRange1d.
        values: what it shows.
        logarithmic: whether these are exponents, for which 2 is right.
    """
    known = np.concatenate([one[np.isfinite(one)] for one in values])
    size = float(np.abs(known).max()) if known.size and not logarithmic else 0.0
    fig.y_range.default_span = size or 2.0
    fig.yaxis[0].major_label_text_alpha = float(known.size > 0)
    fig.ygrid.visible = known.size > 0


def frame(fig: Figure, width: int = 720, height: int = 380) -> tuple[int, int]:
    """Pixels of the frame; the given size until the browser has laid it out."""
    try:
        return fig.inner_width or width, fig.inner_height or height
    except UnsetValueError:
        return width, height
