"""Compare: this run and another one: where they part, and how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import param

from ...sketch.errors import RankscopeError
from ...store import Comparison, Run
from .. import comparing, markup, tables
from ..figures import HeatmapFigure, LinesFigure, colours
from ..series import Lines
from ..session import Session
from ..twins import grid_table, lines_table
from .both import Both
from .fitted import Fitted
from .page import Drawn
from .twins import Twin, Twins

ALONE = (
    "There is no other run here. Open a folder of runs, as `rankscope view rankscope-runs`, "
    "and this page compares any two of them."
)


class Told(param.Parameterized):
    """The texts of the page, each as HTML unless said otherwise."""

    problem = param.String(doc="Plain text: what cannot be shown, and why.")
    answer = param.String()
    title = param.String()
    legend = param.String()
    summary = param.String()
    sites = param.String()


class Compare:
    """Two runs on one step axis."""

    name: ClassVar[str] = "compare"
    title: ClassVar[str] = "Compare"
    watched: ClassVar[Sequence[str]] = (
        "other", "kind", "statistic", "pattern", "scale", "maps",
        "zoom", "site", "step", "training",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, Told()
        self.training = LinesFigure("compare_training", **session.axis(), height=130)
        self.site = LinesFigure("compare_site", **session.axis(), height=150)
        self.heatmap = HeatmapFigure(
            "compare_map", **session.axis(), undefined="not a number in one of them"
        )
        self.both = Both(session, self)
        session.on_axis(self.training.figure, self.heatmap.figure, self.site.figure)
        self.heatmap.on_cell(self.select)
        for lines in (self.training, self.site):
            lines.on_step(lambda x: session.select_at(x, session.recorded()))
        self._lines: dict[str, Lines] = {}
        """What the two figures show, by their names."""
        self.twins = Twins({
            "compare_training": self._lines_twin("compare_training", "Training of both"),
            "compare_map": Twin("The other over this", lambda: grid_table(self.heatmap.grid)),
            "compare_this": Twin("This run", lambda: grid_table(self.both.maps[0].grid)),
            "compare_other": Twin("The other", lambda: grid_table(self.both.maps[1].grid)),
            "compare_site": self._lines_twin("compare_site", "The site in both"),
        })  # fmt: skip
        self._drawn = Drawn()
        self._found: Comparison | None = None
        self._frame = Fitted(session, self, self.heatmap)

    def _lines_twin(self, name: str, caption: str) -> Twin:
        return Twin(caption, lambda: lines_table(self._lines.get(name)))

    # What the user does.

    def select(self, row: int, column: int) -> None:
        """Select the site and step of a cell, the first of several."""
        shown = self.heatmap.grid
        if shown is not None and shown.first[column] >= 0:
            site, step = shown.row_sites[row][0], int(shown.first[column])
            self.session.choice.param.update(site=site, step=step)

    # What is shown.

    def show(self) -> None:
        """Bring everything up to date."""
        self.session.tell_others()
        self.session.follow()
        other = self.session.other()
        if other is None:
            self.told.param.update(problem=ALONE, answer="", title="", sites="", summary="")
            return
        with other.lock:
            other.look()
            try:
                self._show(other.run, other.version)
                self.told.problem = ""
            except RankscopeError as error:
                self._drawn.forget("answer")
                self._drawn.forget("map")
                self._drawn.forget("both")
                self.told.problem = str(error)

    def _show(self, other: Run, version: int) -> None:
        session, choice = self.session, self.session.choice
        mine = session.follower.version
        if self._drawn.due("training", mine, version, choice.other, choice.training):
            lines = comparing.load_training(session.run, other, choice.training)
            self._lines["compare_training"] = lines
            self.training.show(lines)
        size = comparing.size_class(len(session.recorded()), len(session.follower.sites()))
        asked = (size, version, choice.other, choice.statistic, choice.pattern, choice.zoom)
        if self._drawn.due("answer", *asked):
            self._answer(other)
        if choice.maps == "both":
            if self._drawn.due("both", *asked, choice.kind, choice.scale, self.both.size):
                self.both.show(other)
            self.both.outline()
        elif self._drawn.due("map", *asked, choice.kind, self._frame.size):
            self._show_map(other)
        if self._drawn.due("site", mine, version, choice.other, choice.statistic, choice.site):
            self._show_site(other)
        self._outline()
        self.twins.show()

    def _answer(self, other: Run) -> None:
        """Where they part, over all kinds."""
        zoom = self.session.zoom
        steps = None if zoom is None else (int(np.ceil(zoom[0])), int(np.floor(zoom[1])))
        choice = self.session.choice
        self._found = found = self.session.run.compare(
            other, choice.statistic, name=choice.pattern or None, steps=steps
        )
        self.told.answer = tables.parted(found)
        self.told.sites = tables.parted_sites(found)

    def _show_map(self, other: Run) -> None:
        choice, (width, height) = self.session.choice, self._frame.size
        shown = comparing.load_ratios(
            self.session.run,
            other,
            choice.statistic,
            kind=choice.kind,
            pattern=choice.pattern,
            steps=self.session.zoom,
            width=width,
            height=height,
        )
        finite = shown.shade[np.isfinite(shown.shade)]
        limits = colours.limits(finite, diverging=True, theme=self.session.theme)
        reach = max(limits.high, comparing.FAR)
        limits = replace(limits, low=-reach, high=reach)
        self.heatmap.figure.height = int(np.clip(len(shown.names) * 16, 160, 400)) + 46
        self.heatmap.show(shown, limits, statistic=f"{choice.statistic}, other over this,")
        told = (
            ""
            if self._found is None
            else comparing.describe(self._found, shown, statistic=choice.statistic)
        )
        self.told.param.update(
            title=markup.title(
                f"{choice.statistic} of {markup.kind_name(choice.kind)}s", "the other over this"
            ),
            legend=tables.ratio_legend(limits, middle="the same", alone="no number in one"),
            summary=markup.summary(told),
        )

    def _show_site(self, other: Run) -> None:
        choice = self.session.choice
        if choice.site:
            lines = comparing.load_site(self.session.run, other, choice.statistic, site=choice.site)
            self._lines["compare_site"] = lines
            self.site.show(lines)

    def _outline(self) -> None:
        self.heatmap.outline_site(self.session.choice.site, self.session.choice.step)
