"""The linked panel: a heatmap to click in, the exponents of what was clicked, the loss above.

Bokeh's figures are those of the pages, and Panel shows them in a notebook or a server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import panel as pn
from bokeh.events import RangesUpdate, Reset
from bokeh.models import Range1d

from ...sketch.errors import SettingError
from ...sketch.formats import FORMATS, number_format
from ...store.logframe import SCALARS
from ...store.query import Run
from .. import markup, series, spectrum
from ..figures import Crosshair, ExponentsFigure, HeatmapFigure, LinesFigure, colours, look
from ..grid import Grid, is_logarithmic
from ..reading import Readings, of_training
from ..views.themes import variables
from ..views.widgets import WIDGET_CSS
from .opening import source_of
from .source import Data, Source, Training, one_kind
from .training import training_lines

CSS = Path(__file__).parents[1].joinpath("style.css").read_text(encoding="utf-8")
LOSS = "loss"
Chosen = tuple[str, int | None]
"""A site, or none, and a step."""


def explore(
    data: Data,
    *,
    kind: str = "",
    statistic: str = "rms",
    training: Training = LOSS,
    theme: str = "",
) -> Explorer:
    """A panel to look around in: `pn.extension()` once, then `explore(run)` as a cell's last line.

    Click a cell of the heatmap to see the exponents of that tensor at that step, and of a run its
    line on each rank; click the loss to move to a step; *Back* undoes. Drag to zoom.

    Args:
        data: a run, or a LogFrame.
        kind: which kind of site comes first; activations by default, and the panel's menu has all.
        statistic: which statistic comes first.
        training: a training statistic, or numbers by step; of a run that has none, nothing.
        theme: light or dark; by default as Panel is, `pn.extension(theme="dark")`.

    Raises:
        SettingError: there is no such theme or kind, or `data` is neither a run nor a LogFrame.
    """
    return Explorer(data, kind=kind, statistic=statistic, training=training, theme=theme)


def _theme(name: str) -> colours.Theme:
    name = name or ("dark" if pn.config.theme == "dark" else "light")
    if name not in colours.THEMES:
        raise SettingError(f"`theme` must be one of {', '.join(colours.THEMES)}, got {name!r}.")
    return colours.THEMES[name]


class Explorer(pn.viewable.Viewer):
    """What `explore` returns; `site` and `step` say what is selected."""

    # `Any`: what a Viewer takes.
    def __init__(
        self,
        data: Data,
        *,
        kind: str,
        statistic: str,
        training: Training,
        theme: str,
        **settings: Any,
    ) -> None:
        """Build the figures and show the whole run."""
        super().__init__(**settings)
        self.theme = _theme(theme)
        self.source: Source = source_of(data)
        self.run = data if isinstance(data, Run) else None
        self.site = ""
        self.step: int | None = None
        self._before: list[Chosen] = []
        self._losses = self._training(training)
        self._build()
        self._controls(one_kind(self.source, kind), statistic)
        self._layout = self._lay_out()
        self._show_training()
        self.show_grid()
        self.show_selection()

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout

    def _training(self, training: Training) -> series.Lines | None:
        if isinstance(training, str) and training == LOSS:
            names = [] if self.run is None else series.training_names(self.run.training())
            training = next(iter(names), "")  # the loss comes first
        return next(iter(training_lines(self.source, training)), None)

    def _build(self) -> None:
        self.crosshair, self.pinned = Crosshair(self.theme), look.pinned(self.theme)
        self.steps = Range1d(start=0, end=1)
        shared: dict[str, Any] = {
            "steps": self.steps, "crosshair": self.crosshair.line, "pinned": self.pinned,
            "theme": self.theme,
        }  # fmt: skip
        self.training = LinesFigure("training", **shared, height=130)
        self.heatmap = HeatmapFigure(**shared)
        self.ranks = LinesFigure("ranks", **shared, height=150)
        self.exponents = ExponentsFigure(theme=self.theme)
        self.heatmap.on_cell(self.select_cell)
        for lines in (self.training, self.ranks):
            lines.on_step(self.select_step)
        for figure in (self.training.figure, self.heatmap.figure, self.ranks.figure):
            figure.on_event(RangesUpdate, self._zoomed)
            figure.on_event(Reset, lambda _: self._zoom(None))
            self.crosshair.follow(figure)
        self.zoom: tuple[int, int] | None = None

    def _controls(self, kind: str, statistic: str) -> None:
        formats = {"its own": ""} | {name: name for name in FORMATS}
        style = {"stylesheets": [f":host {{ {variables(self.theme)}}}{WIDGET_CSS}"]}
        self.kind = pn.widgets.Select(
            label="Kind", options=self.source.kinds, value=kind, width=170, **style
        )
        statistic = statistic if self.run else SCALARS.get(statistic, statistic)
        statistics = [*dict.fromkeys((statistic, *self.source.statistics))]
        self.statistic = pn.widgets.Select(
            label="Statistic", options=statistics, value=statistic, width=130, **style
        )
        self.format = pn.widgets.Select(label="Compare with", options=formats, width=150, **style)
        self.undo = pn.widgets.Button(label="← Back", width=80, align="end", disabled=True, **style)
        self.kind.param.watch(lambda _: self.show_grid(), "value")
        self.statistic.param.watch(lambda _: self.draw(), "value")
        self.format.param.watch(lambda _: self.show_selection(), "value")
        self.undo.on_click(lambda _: self.back())
        sheets = [f":host {{ {variables(self.theme)}}}{CSS}"]
        self.told = pn.pane.HTML("", stylesheets=sheets, sizing_mode="stretch_width")
        self.title = pn.pane.HTML("", stylesheets=sheets, sizing_mode="stretch_width")
        self.beside = pn.Column(sizing_mode="stretch_width", visible=False)

    def _lay_out(self) -> pn.viewable.Viewable:
        def place(figure: object) -> pn.pane.Bokeh:
            return pn.pane.Bokeh(figure, sizing_mode="stretch_width")

        self.beside.objects = [place(self.exponents.layout), self.told]
        # In a column: a pane takes its visibility back from its figure (panel 1.9.4).
        self.of_ranks = pn.Column(
            place(self.ranks.figure), sizing_mode="stretch_width", visible=False
        )
        left = [] if self._losses is None else [place(self.training.figure)]
        left += [place(self.heatmap.figure), self.of_ranks]
        return pn.Column(
            pn.Row(self.kind, self.statistic, self.format, self.undo),
            pn.Row(
                pn.Column(*left, sizing_mode="stretch_width"),
                pn.Column(self.title, self.beside, width=430),
                sizing_mode="stretch_width",
            ),
            sizing_mode="stretch_width",
            # A notebook may be dark where Panel does not know it.
            styles={"background": self.theme.surface},
        )

    # What the user does.

    def select_cell(self, row: int, column: int) -> None:
        """Select a cell of the heatmap; of several sites and steps in it, the worst."""
        cells = self.heatmap.grid
        if cells is not None and cells.first[column] >= 0:
            steps = int(cells.first[column]), int(cells.last[column])
            found = self.source.worst(cells.row_sites[row], steps, statistic=self.statistic.value)
            self.select(*found)

    def select_step(self, x: float) -> None:
        """Select the recorded step that is nearest."""
        known = self._losses.steps if self._losses is not None else np.empty(0, np.int64)
        if len(known):
            self.select(self.site, int(known[np.abs(known - x).argmin()]))

    def select(self, site: str, step: int | None) -> None:
        """Select a site, or none, and a step.

        Raises:
            SettingError: there is no such site.
        """
        if site:
            self.source.choose(kind=None, name=None, site=site)
        if (site, step) != (self.site, self.step):
            self._before.append((self.site, self.step))
            self._select(site, step)

    def back(self) -> None:
        """Select what was selected before."""
        if self._before:
            self._select(*self._before.pop())

    def _select(self, site: str, step: int | None) -> None:
        self.site, self.step = site, step
        self.undo.disabled = not self._before
        self.show_selection()

    def _zoomed(self, event: RangesUpdate) -> None:
        if event.x0 is not None and event.x1 is not None:
            self._zoom((int(np.floor(event.x0)), int(np.ceil(event.x1))))

    def _zoom(self, steps: tuple[int, int] | None) -> None:
        self.zoom = steps
        self.show_grid(follow=steps is None)

    # What is shown.

    def draw(self) -> None:
        """Bring the heatmap and the selection up to date."""
        self.show_grid()
        self.show_selection()

    def show_grid(self, *, follow: bool = True) -> None:
        """Paint the heatmap; `follow` shows all of its steps."""
        cells = self.source.grid(
            self.statistic.value,
            sites=self.source.choose(kind=self.kind.value or None, name=None, site=None),
            view="merged", scale="", steps=self.zoom, size=self.heatmap.size(),
        )  # fmt: skip
        limits = colours.limits(cells.usual(), diverging=cells.signed, theme=self.theme)
        self.heatmap.figure.height = int(np.clip(len(cells.names) * 16, 160, 400)) + 46
        self.heatmap.show(cells, limits, statistic=self.statistic.value)
        if self._losses is None:
            self.crosshair.show(Readings(steps=cells.first[cells.first >= 0], of=[]))
        if follow:
            self.steps.update(
                start=cells.left, end=cells.right, reset_start=cells.left, reset_end=cells.right
            )
        self._outline(cells)

    def show_selection(self) -> None:
        """Draw the selected site at the selected step."""
        self._outline(self.heatmap.grid)
        site, step = self.site, self.step
        there = bool(site) and step is not None
        self.beside.visible = there
        self.of_ranks.visible = there and self.run is not None
        self.title.object = (
            markup.selection(site, step, {"dtype": self.source.dtype(site)})
            if site
            else markup.how_to_select(on_map=True, keys=False)
        )
        if not there or step is None:
            return
        self._show_ranks(site, step)
        held = self.source.spectrum(site, step, view="merged")
        own = self.source.dtype(site)
        name = self.format.value
        target = number_format(name) if name else spectrum.site_format(own)
        self.exponents.show(held, target)
        if held is None:
            self.told.object = markup.summary(self._why(site, step))
            return
        fit = self.source.fit(site, step)
        self.told.object = markup.summary(spectrum.describe(held, target)) + markup.fit_table(
            fit, target=target, own=own
        )

    def _why(self, site: str, step: int) -> str:
        if self.run is not None:
            return series.why_no_sketch(self.run, site=site, step=step)
        return f"Not observed at step {step}."

    def _show_ranks(self, site: str, step: int) -> None:
        if self.run is None:
            return
        statistic = self.statistic.value
        lines = series.load_ranks(self.run, statistic, site=site)
        lines = series.at_step(self.run, lines, site=site, step=step)
        self.ranks.show(lines, logarithmic=is_logarithmic(statistic, "merged", ""))

    def _show_training(self) -> None:
        if self._losses is not None:
            self.training.show(self._losses)
            steps = self._losses.steps
            self.crosshair.show(Readings(steps=steps, of=of_training(self._losses, steps)))

    def _outline(self, cells: Grid | None) -> None:
        if self.step is not None:
            self.pinned.location = self.step
        self.pinned.visible = self.step is not None
        row = column = None
        if cells is not None and self.site and self.step is not None:
            row, column = cells.row(self.site), cells.column(self.step)
        self.heatmap.outline(row, column)
