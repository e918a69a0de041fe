"""How the plots look, in Bokeh and in Matplotlib, and how several stand side by side.

HoloViews keeps options apart by backend; each plot here carries those of both, so that the same
object is shown in a notebook and saved as PNG or SVG.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import holoviews as hv
import numpy as np
from bokeh.models import CustomJSHover, HoverTool

from ..figures import colours
from ..figures.look import literal

if TYPE_CHECKING:
    from ..grid import Grid

import_module("holoviews.plotting.bokeh")  # which registers its backend
with suppress(ImportError):  # an extra; without it there is no PNG and no SVG
    import_module("holoviews.plotting.mpl")

WIDTH, HEIGHT = 560, 320
"""Pixels of one plot of several."""
WIDE = 900
"""Pixels of a plot that stands alone."""
CYCLE = ("#2f7fb5", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6a9b", "#17212b")
"""Okabe and Ito's colours, one a line."""
LEGEND = {"background_fill_alpha": 0.75, "label_text_font_size": "10px", "spacing": 0,
          "padding": 4, "margin": 4, "click_policy": "hide", "orientation": "vertical"}  # fmt: skip
"""Of Bokeh's legends."""
KEY = {"loc": "lower left", "bbox_to_anchor": (0, 1), "frameon": False, "handlelength": 1.6,
       "labelspacing": 0.2, "borderaxespad": 0}  # fmt: skip
"""Of Matplotlib's: above the axes, so that nothing lies on what is drawn."""
KEY_WIDTH = 280
"""Pixels of a column of it."""
SMALL = {"title": 9, "labels": 8, "ticks": 7, "minor_ticks": 5.5, "legend": 6.5}
"""Points of Matplotlib's letters."""
DASHES = {"max": "solid", "smallest normal": "dashed", "smallest subnormal": "dotted"}
"""How the ends of a format are drawn."""

Plot = Any
"""A HoloViews object. `Any`: HoloViews has no types."""


def styled(
    plot: Plot,
    *,
    bokeh: dict[str, Any] | None = None,
    mpl: dict[str, Any] | None = None,
    **both: Any,
) -> Plot:
    """The plot with options for each backend that there is."""
    if "title" in both:  # which HoloViews formats
        both["title"] = both["title"].replace("{", "{{").replace("}", "}}")
    for backend, options in (("bokeh", bokeh), ("matplotlib", mpl)):
        chosen = both | (options or {})
        chosen = {name: _literal(one, backend) for name, one in chosen.items()}
        if backend in hv.Store.loaded_backends() and chosen:
            plot = plot.opts(**chosen, backend=backend)
    return plot


# `Any`: the value of an option, of many types.
def _literal(value: Any, backend: str) -> Any:
    """As it is; but of texts, also those of ticks, no formula is set of what is between $."""
    match value:
        case str():
            return value.replace("$", r"\$") if backend == "matplotlib" else literal(value)
        case [(_, str()), *_]:
            return [(at, _literal(text, backend)) for at, text in value]
        case _:
            return value


def sized(
    plot: Plot,
    *,
    width: int = WIDTH,
    height: int = HEIGHT,
    entries: int = 0,
    bokeh: dict[str, Any] | None = None,
    mpl: dict[str, Any] | None = None,
    **both: Any,
) -> Plot:
    """An overlay of that many pixels, with a legend of so many entries above it, and options."""
    inches = {
        "aspect": width / height,
        "fig_inches": (width / 100, height / 100),
        "fontsize": SMALL,
        "legend_opts": KEY | {"ncol": 1 if entries <= 3 else width // KEY_WIDTH},
        "legend_position": "inner",  # whose place is that of the options
        "hooks": [_titled_above, partial(_shaped, width / height)],
    }
    pixels = {
        "width": width,
        "height": height + 20 * entries,
        "legend_position": "top",
        "legend_cols": 1,
        "legend_opts": LEGEND,
        # WebGL without a GPU takes seconds a frame.
        "backend_opts": {"plot.output_backend": "canvas"},
    }
    both |= {"show_legend": entries > 0}
    return styled(plot, bokeh=pixels | (bokeh or {}), mpl=inches | (mpl or {}), **both)


# `Any`: HoloViews' own plot.
def _titled_above(plot: Any, _: object) -> None:
    """Move the title above Matplotlib's legend, where there is one; ticks: small, whole steps."""
    axis, legend = plot.handles["axis"], plot.handles.get("legend")
    axis.tick_params(which="both", labelsize=SMALL["ticks"])
    if axis.get_xlabel().startswith("step") and axis.get_xscale() == "linear":
        axis.xaxis.get_major_locator().set_params(integer=True)
    if legend is not None:
        size, names = SMALL["legend"], legend.get_texts()
        for name in names:
            name.set_parse_math(False)
        rows = -(-len(names) // legend._ncols)
        axis.set_title(axis.get_title(), fontsize=SMALL["title"], pad=(1.4 * rows + 1) * size)


# `Any`: HoloViews' own plot.
def bar_beside(plot: Any, _: object) -> None:
    """Keep Matplotlib's colour bar beside its axes.

    HoloViews places it before these have shrunk to their aspect, or moved to their place in a
    Layout: over the last steps of a plot that stands alone.
    """
    axis, bar = plot.handles["axis"], plot.handles["cax"]

    def place(_: object, __: object) -> Any:
        box = axis.get_position()
        shape = type(box)  # of Matplotlib, which need not be installed
        return shape.from_bounds(box.x1 + 0.015, box.y0, 0.025, box.height)

    bar.set_axes_locator(place)


# `Any`: HoloViews' own plot.
def _shaped(ratio: float, plot: Any, _: object) -> None:
    """Keep the frame's shape; HoloViews takes it for one of units, flat on a logarithmic axis."""
    axis = plot.handles["axis"]
    axis.set_aspect("auto")
    axis.set_box_aspect(1 / ratio)


# `Any`: HoloViews' own plot.
def _filling(plot: Any, _: object) -> None:
    """Fill the place in a Layout, so that the steps of one column stand above each other."""
    plot.handles["axis"].set_aspect("auto")


def facets(plots: Sequence[Plot], *, columns: int, shared: bool, width: int = WIDTH) -> Plot:
    """One plot as it is; several side by side, as a Layout.

    Args:
        plots: at least one.
        columns: how many stand in a row.
        shared: whether zooming one zooms all.
        width: pixels of each.
    """
    if len(plots) == 1:
        return plots[0]
    filling = {"hooks": [_titled_above, _filling]}
    parts = [one if isinstance(one, hv.Empty) else styled(one, mpl=filling) for one in plots]
    room = {
        "sublabel_format": "", "vspace": _between(parts), "hspace": 0.2, "aspect_weight": 1,
        "fig_inches": (columns * width / 100, None),
    }  # fmt: skip
    empty = hv.Layout().cols(columns)
    layout = styled(empty, bokeh={"shared_axes": shared}, mpl=room | {"shared_axes": shared})
    # Of one that is filled HoloViews compares all that is in it: 5 s where 24 plots have 8 lines.
    layout.update(hv.Layout(parts))
    return layout


def arranged(plot: Plot) -> Plot:
    """A Layout of our plots that was put together with `+`, with the room that ours have."""
    if not isinstance(plot, hv.Layout) or "vspace" in _mpl_options(plot):
        return plot
    parts = [*plot]
    options = [_mpl_options(one) for one in parts if isinstance(one, hv.Overlay)]
    sizes = [one["fig_inches"] for one in options if "fig_inches" in one]
    if len(sizes) < len(parts):
        return plot
    columns: int = plot._max_cols  # pyright: ignore[reportPrivateUsage]
    return facets(parts, columns=columns, shared=False, width=round(100 * max(w for w, _ in sizes)))


# `Any`: options, of many types.
def _mpl_options(plot: Plot) -> dict[str, Any]:
    if "matplotlib" not in hv.Store.loaded_backends():
        return {}
    return hv.Store.lookup_options("matplotlib", plot, "plot").kwargs


def _between(parts: Sequence[Plot]) -> float:
    """What Matplotlib writes between frames, as a share of their mean height.

    That is the axis of the upper one, and title and legend of the lower.
    """
    rows, heights = [0], list[float]()
    for one in parts:
        options = _mpl_options(one)
        if "legend_opts" in options:
            heights.append(options["fig_inches"][1])
            names = {part.label for part in one if part.label} if options["show_legend"] else ()
            rows.append(-(-len(names) // options["legend_opts"]["ncol"]))
    if not heights:
        return 0.4
    # A row twice: where names stand beside them, frames are lower than was asked for.
    inches = 0.77 + max(rows) * 3 * SMALL["legend"] / 72
    return max(0.4, inches * len(heights) / sum(heights))


def line(
    x: object,
    y: object,
    label: str,
    *,
    colour: str,
    dims: Sequence[Any],
    dash: str = "solid",
    heavy: bool = False,
) -> Plot:
    """A line that the legend names."""
    curve = hv.Curve((x, y), kdims=[dims[0]], vdims=[dims[1]], label=label)
    width = 2.4 if heavy else 1.5
    return styled(
        curve,
        bokeh={"line_dash": dash, "line_width": width, "tools": ["hover"]},
        mpl={"linestyle": dash, "linewidth": width * 0.8},
        color=colour,
    )


def upright(at: float) -> Plot:
    """A line at a step."""
    return styled(
        hv.VLine(at),
        bokeh={"line_dash": "dashed", "line_width": 1.5},
        mpl={"linestyle": "dashed", "linewidth": 1.2},
        color=colours.LIGHT.ink,
    )


def turns(found: Sequence[tuple[int, int]]) -> list[Plot]:
    """Dotted lines where the records of another attempt begin, which `steps_label` names.

    Args:
        found: (step, attempt).
    """
    return [
        styled(
            hv.VLine(at),
            bokeh={"line_dash": "dotted", "line_width": 1.5},
            mpl={"linestyle": "dotted", "linewidth": 1.2},
            color=colours.LIGHT.muted,
        )
        for at, _ in found
    ]


def steps_label(found: Sequence[tuple[int, int]]) -> str:
    """What to write at the axis of steps: where other attempts begin, too."""
    told = [f"attempt {attempt} from {at}" for at, attempt in found]
    return f"step ({', '.join(told)})" if told else "step"


def marks(
    x: object,
    y: object,
    label: str,
    *,
    colour: str,
    dims: Sequence[Any],
    hollow: bool = False,
    edge: str = "",
) -> Plot:
    """Diamonds that the legend names; with an `edge` of another colour they are of that line."""
    points = hv.Scatter((x, y), kdims=[dims[0]], vdims=[dims[1]], label=label)
    rim = {"line_color": edge or colour, "line_width": 2 if edge else 1}
    return styled(
        points,
        bokeh={"marker": "diamond", "size": 9, "fill_color": colour,
               "fill_alpha": 0.0 if hollow else 1.0} | rim,
        mpl={"marker": "D", "s": 26, "edgecolors": edge or colour, "linewidth": rim["line_width"],
             "facecolors": "none" if hollow else colour},
    )  # fmt: skip


def hatch(left: float, bottom: float, right: float, top: float, dims: Sequence[Any]) -> Plot:
    """What was not observed: seen where nothing is painted above it."""

    def hatched(plot: Any, _: object) -> None:
        plot.handles["glyph"].update(
            hatch_pattern="/", hatch_color=colours.LIGHT.hatch, hatch_weight=0.8, hatch_scale=7
        )

    area = hv.Rectangles([(left, bottom, right, top)], kdims=[*dims, *(f"{d} end" for d in dims)])
    return styled(
        area,
        bokeh={"color": colours.LIGHT.missing, "line_color": None, "hooks": [hatched]},
        mpl={
            "facecolor": colours.LIGHT.missing,
            "edgecolor": colours.LIGHT.hatch,
            "hatch": "///",
            "linewidth": 0,
        },
    )


def dots(x: object, y: object, label: str, *, colour: str, dims: Sequence[Any]) -> Plot:
    """Small points that the legend names."""
    points = hv.Scatter((x, y), kdims=[dims[0]], vdims=[dims[1]], label=label)
    return styled(points, bokeh={"size": 5, "tools": ["hover"]}, mpl={"s": 10}, color=colour)


def key(label: str, colour: str, dims: Sequence[Any]) -> Plot:
    """An entry of the legend without anything drawn."""
    points = hv.Points(([np.nan], [np.nan]), kdims=list(dims), label=label)
    return styled(
        points,
        bokeh={"marker": "square", "size": 9, "color": colour, "line_color": colours.LIGHT.muted},
        mpl={"marker": "s", "s": 36, "facecolors": colour, "edgecolors": colours.LIGHT.muted},
    )


def cell_tips(cells: Grid, unit: str) -> HoverTool:
    """Site, steps and value under the mouse."""
    rows = cells.said or [
        f"{sites[0]}{f' and {len(sites) - 1} more' if len(sites) > 1 else ''}"
        for sites in cells.row_sites
    ]
    steps = ["" if a < 0 else str(a) if a == b else f"{a} – {b}, the worst of them"
             for a, b in zip(cells.first.tolist(), cells.last.tolist(), strict=True)]  # fmt: skip
    return hover(
        [("site", "$y{site}"), ("step", "$x{steps}"), (unit, "@image")],
        at_y=looked_up(rows[::-1], start=0.0, stride=1.0, axis="y"),
        at_x=looked_up(steps, start=cells.left, stride=cells.stride, axis="x"),
    )


def hover(tips: Sequence[tuple[str, str]], **formats: CustomJSHover) -> HoverTool:
    """What is told under the mouse.

    Args:
        tips: name and value, in Bokeh's words.
        formats: by field of these how it is written.
    """
    written: dict[str, Any] = {name.replace("at_", "$"): code for name, code in formats.items()}
    return HoverTool(tooltips=list(tips), formatters=written)


def looked_up(names: Sequence[str], *, start: float, stride: float, axis: str) -> CustomJSHover:
    """Writes a place on an axis as the name of the cell there."""
    code = f"return names[Math.floor((special_vars.{axis} - start) / stride)] ?? '';"
    return CustomJSHover(args={"names": list(names), "start": start, "stride": stride}, code=code)


def sparse(ticks: Sequence[tuple[float, str]], most: int) -> list[tuple[float, str]]:
    """At most so many of the ticks, evenly."""
    every = -(-len(ticks) // most) if ticks else 1
    return list(ticks[::every])
