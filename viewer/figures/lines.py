"""Lines over the shared steps: ranks in a quiet colour, the rank to look at in a loud one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.core.properties import value
from bokeh.events import Tap
from bokeh.models import (
    ColumnDataSource,
    DataRange1d,
    HoverTool,
    Label,
    Line,
    Range1d,
    Scatter,
    Span,
    Text,
    VArea,
    VSpan,
)
from numpy.typing import NDArray

from ..series import Lines, Mark, level, powers, thin
from . import colours, look
from .heatmap import LABEL_WIDTH


class FootMarks:
    """Triangles at the foot of a figure, at steps in which something began."""

    def __init__(self, fig: look.Figure, theme: colours.Theme) -> None:
        # On an axis of their own, so that they stand at the frame's foot whatever the values are.
        fig.extra_y_ranges = {"foot": Range1d(start=0, end=1)}
        self.events = ColumnDataSource({"step": [], "y": [], "text": [], "fill": []})
        triangle = Scatter(
            x="step", y="y", marker="triangle", size=11, line_color=theme.ink,
            fill_color=theme.ink, fill_alpha="fill",
        )  # fmt: skip
        self.began = look.draw(fig, self.events, triangle, y_range_name="foot")
        told = HoverTool(renderers=[self.began], tooltips="step @step: @text", mode="mouse")
        fig.add_tools(told)

    def show(self, marks: Sequence[Mark]) -> None:
        """Show these: filled where they are severe."""
        data: look.Data = {
            "step": [one.step for one in marks],
            "y": [0.06] * len(marks),
            "text": [one.text for one in marks],
            "fill": [1.0 if one.severe else 0.0 for one in marks],
        }
        if dict(self.events.data) != data:
            self.events.data = data


class Turns:
    """Dotted lines where the records of another attempt begin, each with its number on top."""

    def __init__(self, fig: look.Figure, theme: colours.Theme) -> None:
        self.source = ColumnDataSource({name: [] for name in ("step", "y", "text", "side", "off")})
        dotted = VSpan(x="step", line_color=theme.muted, line_dash="dotted", line_width=1.5)
        number = Text(
            x="step", y="y", text="text", x_offset="off", text_align="side", text_baseline="top",
            text_color=theme.muted, text_font=value(look.FONT), text_font_size="11px",
        )  # fmt: skip
        self.lines = look.draw(fig, self.source, dotted)
        self.names = look.draw(fig, self.source, number, y_range_name="foot")

    def show(self, turns: Sequence[tuple[int, int]], steps: NDArray[np.int64]) -> None:
        """Show these, (step, attempt), of a figure over these steps; a name lies in its frame."""
        last = [bool(np.mean(steps < step) > 0.8) for step, _ in turns]
        data: look.Data = {
            "step": [step for step, _ in turns],
            "y": [1.0] * len(turns),
            "text": [f"attempt {attempt}" for _, attempt in turns],
            "side": ["right" if one else "left" for one in last],
            "off": [-3 if one else 3 for one in last],
        }
        if dict(self.source.data) != data:
            self.source.data = data


class LinesFigure:
    """One source with a column a rank, streamed as long as new steps only follow the old."""

    def __init__(
        self,
        name: str,
        *,
        steps: Range1d,
        crosshair: Span,
        pinned: Span,
        height: int,
        theme: colours.Theme = colours.LIGHT,
    ) -> None:
        values = DataRange1d(range_padding=0.2)
        fig = look.plot(name, theme=theme, x_range=steps, y_range=values, height=height)
        fig.y_range.only_visible = True
        fig.xgrid.visible = False
        fig.yaxis.major_tick_line_color = None
        fig.yaxis.ticker.desired_num_ticks = 4
        fig.min_border_left = LABEL_WIDTH
        self.figure = fig
        self.source = ColumnDataSource({"step": [], "low": [], "high": []})
        self.bad = ColumnDataSource({"step": [], "y": [], "rank": []})
        self.alone = ColumnDataSource({"step": [], "y": [], "colour": []})
        self.drawn: dict[int, Any] = {}
        """The renderer of each rank's line."""
        self._drawn_always(theme)
        self.foot = FootMarks(fig, theme)
        self.events, self.began = self.foot.events, self.foot.began
        self.turns = Turns(fig, theme)
        self.label = Label(
            x=0, y=0, text="", x_offset=-4, text_color=colours.WORST, text_font=look.FONT,
            text_font_size="12px", text_font_style="bold", text_align="right", visible=False,
        )  # fmt: skip
        fig.add_layout(self.label)
        self.hover: Any = HoverTool(
            renderers=[], tooltips="$name · step @step · $snap_y{value}", mode="mouse"
        )
        fig.add_tools(self.hover)
        look.step_axis(fig, crosshair=crosshair, pinned=pinned)
        self.heights = look.Heights(fig, self.hover, "$snap_y")

    def _drawn_always(self, theme: colours.Theme) -> None:
        """The band of all ranks, and what is drawn as points."""
        band = VArea(x="step", y1="low", y2="high", fill_color=colours.RANK, fill_alpha=0.25)
        diamond = Scatter(
            x="step", y="y", marker="diamond", size=8, line_color=theme.nonfinite,
            fill_color=theme.nonfinite,
        )  # fmt: skip
        dot = Scatter(x="step", y="y", size=5, line_color="colour", fill_color="colour")
        self.band = look.draw(self.figure, self.source, band)
        self.marks = look.draw(self.figure, self.bad, diamond)
        self.dots = look.draw(self.figure, self.alone, dot)

    def mark(self, marks: Sequence[Mark]) -> None:
        """Show where something began: filled where it is severe."""
        self.foot.show(marks)

    def show(self, lines: Lines, *, logarithmic: bool = False) -> None:
        """Draw the lines, sending no more than the new steps where that is enough."""
        self.heights.show(logarithmic=logarithmic)
        self.figure.yaxis[0].axis_label = look.literal(lines.name)
        data = self._data(lines, logarithmic)
        look.fit_axis(self.figure, data["low"], data["high"], logarithmic=logarithmic)
        self._draw(lines)
        update(self.source, data)
        # Without lines of its own each rank is inside the band.
        self.band.visible = len(lines.drawn) < len(lines.values) or not lines.values
        self._dot(lines, data)
        self._mark(lines, data)
        self.turns.show(lines.turns, lines.steps)
        self._name_worst(lines, data)

    def _data(self, lines: Lines, logarithmic: bool) -> dict[str, NDArray]:
        drawn = [lines.values[rank] for rank in lines.drawn]
        width = look.frame(self.figure)[0]
        keep = thin(lines.steps, [lines.low, lines.high, *drawn], 4 * width)
        shape = powers if logarithmic else np.asarray
        data = {
            "step": lines.steps[keep],
            "low": shape(lines.low[keep]),
            "high": shape(lines.high[keep]),
        }
        for rank in lines.drawn:
            data[lines.label(rank)] = shape(lines.values[rank][keep])
        return data

    def _draw(self, lines: Lines) -> None:
        """A glyph for each rank that is drawn."""
        for rank in [rank for rank in self.drawn if rank not in lines.drawn]:
            self.drawn.pop(rank)
        for rank in lines.drawn:
            if rank not in self.drawn:
                column = lines.label(rank)
                self.source.data.setdefault(column, [np.nan] * len(self.source.data["step"]))
                line = Line(x="step", y=column)
                self.drawn[rank] = look.draw(self.figure, self.source, line, name=column)
            worst = rank == lines.worst
            colour = colours.WORST if worst else colours.RANK
            style = {"line_color": colour, "line_width": 2.4 if worst else 1.3}
            self.drawn[rank].glyph.update(**style, line_alpha=1.0 if worst else 0.75)
        # The worst line comes last and so lies above the others, and the marks above all lines.
        order = [self.band, *(self.drawn[rank] for rank in lines.drawn), self.dots, self.marks]
        others = [self.turns.lines, self.turns.names, self.began]
        if self.figure.renderers != [*order, *others]:
            self.figure.renderers = [*order, *others]
            # Not what stands at the frame's foot and top, which has an axis of its own.
            self.figure.y_range.renderers = order
        self.hover.renderers = list(self.drawn.values())

    def _dot(self, lines: Lines, data: Mapping[str, NDArray]) -> None:
        """A dot for each number without neighbours, of which there is no line."""
        steps, heights, looks = list[int](), list[float](), list[str]()
        for rank in lines.drawn:
            line = data[lines.label(rank)]
            at = lonely(line)
            steps += data["step"][at].tolist()
            heights += line[at].tolist()
            looks += [colours.WORST if rank == lines.worst else colours.RANK] * len(at)
        dots: look.Data = {"step": steps, "y": heights, "colour": looks}
        if dict(self.alone.data) != dots:
            self.alone.data = dots

    def _mark(self, lines: Lines, data: Mapping[str, NDArray]) -> None:
        """A diamond where a rank is not finite, at the height of its last number until then."""
        heights = list[float]()
        for step, rank in lines.bad:
            line = data.get(lines.label(rank), data["high"])
            heights.append(level(data["step"], line, step, otherwise=0.0))
        bad = {
            "step": np.array([step for step, _ in lines.bad], np.int64),
            "y": np.array(heights),
            "rank": np.array([rank for _, rank in lines.bad], np.int64),
        }
        update(self.bad, bad)

    def _name_worst(self, lines: Lines, data: Mapping[str, NDArray]) -> None:
        name = "" if lines.worst is None else lines.label(lines.worst)
        line = data.get(name)
        finite = np.flatnonzero(np.isfinite(line)) if line is not None else np.empty(0, int)
        if line is None or not finite.size:
            self.label.visible = False
            return
        at = finite[-1]
        shown = np.concatenate([data["low"], data["high"], line])
        middle = (np.nanmin(shown) + np.nanmax(shown)) / 2
        # Towards the middle of the frame, where there is room.
        high = bool(line[at] > middle)
        self.label.update(
            x=float(data["step"][at]),
            y=float(line[at]),
            text=name,
            text_baseline="top" if high else "bottom",
            y_offset=-8 if high else 5,
            visible=True,
        )

    def on_step(self, chosen: Callable[[float], None]) -> None:
        """Call `chosen(x)` for each click."""

        def tapped(event: Tap) -> None:
            if event.x is not None:
                chosen(event.x)

        self.figure.on_event(Tap, tapped)


def lonely(line: NDArray) -> NDArray[np.intp]:
    """intp: where a line has a number without neighbours, of which nothing would be drawn."""
    there = np.pad(np.isfinite(line), 1)
    return np.flatnonzero(there[1:-1] & ~there[:-2] & ~there[2:])


def update(source: ColumnDataSource, data: Mapping[str, NDArray]) -> None:
    """Bring a source to `data`: nothing, a stream of what follows, or all of it."""
    old: Any = source.data
    known, length = (len(next(iter(columns.values()), ())) for columns in (old, data))
    same = set(old) == set(data) and known <= length and (known > 0 or length == 0)
    same = same and all(
        np.array_equal(np.asarray(old[name]), column[:known], equal_nan=column.dtype.kind == "f")
        for name, column in data.items()
    )
    if not same:
        source.data = {name: column.copy() for name, column in data.items()}
    elif length > known:
        source.stream({name: column[known:].copy() for name, column in data.items()})
