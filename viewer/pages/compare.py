"""Compare: this run and others: where they part, and how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import ClassVar

import numpy as np
import param

from ...sketch.errors import RankscopeError
from ...store import Comparison, Run
from .. import beside, comparing, markup, site_lists, tables
from ..curves import Curves
from ..figures import CurvesFigure, HeatmapFigure, colours
from ..follow import Follower
from ..grid import is_logarithmic
from ..session import Session
from ..twins import grid_table
from .each_run import EachRun
from .fitted import Fitted
from .page import Drawn
from .twins import Twin, Twins


class Told(param.Parameterized):
    """The texts of the page, each as HTML unless said otherwise."""

    problem = param.String(doc="Plain text: what cannot be shown, and why.")
    answer = param.String()
    runs = param.String(doc="Which line is which.")
    title = param.String()
    legend = param.String()
    summary = param.String()
    site = param.String(doc="The heading of the selected site's lines.")
    sites = param.String()


class Compare:
    """Several runs on one step axis."""

    name: ClassVar[str] = "compare"
    title: ClassVar[str] = "Compare"
    watched: ClassVar[Sequence[str]] = (
        "other", "also", "kind", "statistic", "pattern", "scale", "maps",
        "zoom", "site", "step", "training",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, Told()
        self.training = CurvesFigure("compare_training", **session.axis(), height=130)
        self.site = CurvesFigure("compare_site", **session.axis(), height=150)
        self.heatmap = HeatmapFigure(
            "compare_map", **session.axis(), undefined="not a number in one of them"
        )
        self.each = EachRun(session, self)
        session.on_axis(self.training.figure, self.heatmap.figure, self.site.figure)
        self.heatmap.on_cell(self.select)
        for lines in (self.training, self.site):
            lines.on_step(lambda x: session.select_at(x, session.recorded()))
        self._curves: dict[str, Curves] = {}
        """What the two figures show, by their names."""
        maps = {one.name: one for one in self.each.maps}
        self.twins = Twins({
            "compare_training": self._curves_twin("compare_training", "Training of all"),
            "compare_map": Twin("The other over this", lambda: grid_table(self.heatmap.grid)),
            **{name: Twin("One run", lambda one=one: grid_table(one.grid))
               for name, one in maps.items()},
            "compare_site": self._curves_twin("compare_site", "The site in all"),
        })  # fmt: skip
        self._drawn = Drawn()
        self._looked = set[Follower]()
        """The others that were looked at."""
        self._found: Comparison | None = None
        """Of the first of the others."""
        self._frame = Fitted(session, self, self.heatmap)

    def _curves_twin(self, name: str, caption: str) -> Twin:
        return Twin(caption, lambda: beside.curves_table(self._curves.get(name)))

    # What the user does.

    def select(self, row: int, column: int) -> None:
        """Select the site and step of a cell, the first of several."""
        shown = self.heatmap.grid
        if shown is not None and shown.first[column] >= 0:
            site, step = shown.row_sites[row][0], int(shown.first[column])
            self.session.choice.param.update(site=site, step=step)

    # What is shown.

    def look(self) -> bool:
        """Look at the other runs; whether one of them has moved."""
        others = self.session.others()
        before = [other.version for other in others]
        for other in others:
            other.look()
        self._looked.update(others)
        return before != [other.version for other in others]

    def show(self) -> None:
        """Bring everything up to date."""
        self.session.tell_others()
        self.session.follow()
        others = self.session.others()
        if not self._looked.issuperset(others):
            self.look()
        if not others:
            quiet = dict.fromkeys(("answer", "runs", "title", "site", "sites", "summary"), "")
            self.told.param.update(problem=self._not_found(), **quiet)
            for part in ("training", "answer", "map", "each", "site"):
                self._drawn.forget(part)
            return
        with ExitStack() as locks:
            for other in others:
                locks.enter_context(other.lock)
            try:
                self._show(others)
                self.told.problem = self._not_found()
            except RankscopeError as error:
                for part in ("answer", "map", "each"):
                    self._drawn.forget(part)
                self.told.problem = str(error)

    def _not_found(self) -> str:
        """Why a run that was asked for is not shown, or none at all."""
        session = self.session
        return comparing.not_found(
            session.choice.other,
            own=session.run.path.name,
            others=session.options.others,
            in_folder=session.in_folder,
        )

    def _show(self, others: Sequence[Follower]) -> None:
        session, choice = self.session, self.session.choice
        runs = [session.run, *(other.run for other in others)]
        which = tuple((other.run.path.name, other.version) for other in others)
        mine = session.follower.version
        if self._drawn.due("training", mine, which, choice.training):
            self.told.runs = site_lists.runs(comparing.names_of(runs), theme=session.theme)
            found = comparing.load_training(runs, choice.training)
            self._curves["compare_training"] = found
            self.training.show(found, logarithmic=False)
        size = comparing.size_class(len(session.recorded()), len(session.follower.sites()))
        asked = (size, which, choice.statistic, choice.pattern, choice.zoom)
        if self._drawn.due("answer", *asked):
            self._answer(runs[1:])
        if choice.maps == "each":
            if self._drawn.due("each", *asked, choice.kind, choice.scale, self.each.size):
                self.each.show(runs)
            self.each.outline()
        elif self._drawn.due("map", *asked, choice.kind, self._frame.size):
            self._show_map(runs[1])
        if self._drawn.due("site", mine, which, choice.statistic, choice.site, choice.scale):
            self._show_site(runs)
        self._outline()
        self.twins.show()

    def _answer(self, others: Sequence[Run]) -> None:
        """Where they part from this run, over all kinds."""
        choice, steps = self.session.choice, self.session.steps_in_view
        every = [
            self.session.run.compare(
                other, choice.statistic, name=choice.pattern or None, steps=steps
            )
            for other in others
        ]
        self._found = every[0]
        names = comparing.names_of([self.session.run, *others])[1:]
        self.told.answer = "".join(
            tables.parted(found, name if len(others) > 1 else "")
            for name, found in zip(names, every, strict=True)
        )
        self.told.sites = tables.parted_sites(self._found)

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
        limits = colours.ratio_limits(shown.shade, least=comparing.FAR, theme=self.session.theme)
        self.heatmap.figure.height = int(np.clip(len(shown.names) * 16, 160, 400)) + 46
        self.heatmap.show(shown, limits, statistic=f"{choice.statistic}, other over this,")
        told = (
            ""
            if self._found is None
            else comparing.describe(self._found, shown, statistic=choice.statistic)
        )
        name = comparing.names_of([self.session.run, other])[1]
        self.told.param.update(
            title=markup.title(
                f"{choice.statistic} of {markup.kind_name(choice.kind)}s", f"{name} over this run"
            ),
            legend=tables.ratio_legend(limits, middle="the same", alone="no number in one"),
            summary=markup.summary(told),
        )

    def _show_site(self, runs: Sequence[Run]) -> None:
        choice = self.session.choice
        if choice.site:
            found = comparing.load_site(runs, choice.statistic, site=choice.site)
            self._curves["compare_site"] = found
            logarithmic = is_logarithmic(choice.statistic, "merged", choice.scale)
            self.site.show(found, logarithmic=logarithmic)
            kind, _, name = choice.site.partition(":")
            self.told.site = markup.title(
                name, f"{markup.kind_name(kind)}, {choice.statistic} in each run"
            )

    def _outline(self) -> None:
        self.heatmap.outline_site(self.session.choice.site, self.session.choice.step)
