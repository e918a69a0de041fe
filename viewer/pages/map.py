"""Map: a statistic of all sites over all steps, training above it, the selected cell beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import param

from ...sketch.errors import RankscopeError
from .. import grid, markup, modules, words
from ..figures import HeatmapFigure, LinesFigure, colours
from ..figures.heatmap import BORDER_BOTTOM, BORDER_TOP
from ..session import Session
from ..twins import grid_table, lines_table, spectrum_table
from .fitted import Fitted
from .folds import Folds
from .page import Drawn
from .selection import Selection
from .training import Training
from .twins import Twin, Twins

MODULES_WIDTH = 48
"""Pixels left of the heatmap, in which modules stand beside their rows."""


class Told(param.Parameterized):
    """The texts of the page, each as HTML unless said otherwise."""

    problem = param.String(doc="Plain text: what cannot be shown, and why.")
    drawn = param.Boolean(False, doc="Whether the heatmap has anything to show. No HTML.")
    heatmap = param.String()
    legend = param.String()
    heatmap_summary = param.String()


class Map:
    """Sites in their order of execution over steps."""

    name: ClassVar[str] = "map"
    title: ClassVar[str] = "Map"
    watched: ClassVar[Sequence[str]] = (
        "kind", "statistic", "view", "pattern", "fold", "scale", "zoom", "site", "step", "format",
        "drawing", "amount", "training",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, Told()
        self.training = Training(session, "training", height=130, labelled=False)
        self.heatmap = HeatmapFigure(**session.axis(), beside=MODULES_WIDTH)
        self.folds = Folds(session)
        ranks = LinesFigure("ranks", **session.axis(), height=150)
        self.selection = Selection(session, ranks, on_map=True)
        self._listen()
        held = self.selection
        self.twins = Twins({
            "training": Twin("Training", lambda: lines_table(self.training.shown)),
            "heatmap": Twin("The heatmap", lambda: grid_table(self.heatmap.grid)),
            "ranks": Twin("Each rank", lambda: lines_table(held.lines)),
            "exponents": Twin("Exponents", lambda: spectrum_table(held.held)),
        })  # fmt: skip
        self._drawn = Drawn()
        self._limits: dict[object, colours.Limits] = {}
        self._frame = Fitted(session, self, self.heatmap)
        self._problem = ""

    def _listen(self) -> None:
        session = self.session
        ranks = self.selection.ranks
        session.on_axis(self.heatmap.figure, ranks.figure)
        self.heatmap.on_cell(self.select)
        ranks.on_step(lambda x: session.select_at(x, session.drawn()))

    # What the user does.

    def select(self, row: int, column: int) -> None:
        """Select a cell; of several sites and steps in it, the worst."""
        session = self.session
        session.select_cell(
            self.heatmap.grid, row, column, run=session.run, view=session.choice.view
        )

    # What is shown.

    def show(self) -> None:
        """Bring everything up to date."""
        choice, version = self.session.choice, self.session.follower.version
        self.training.show()
        asked = (choice.kind, choice.statistic, choice.view, choice.pattern, choice.fold)
        where = (choice.scale, choice.zoom, self._frame.size)
        if self._drawn.due("grid", version, *asked, *where):
            self._show_grid()
        self._follow()
        self._outline()
        problem = self._problem
        try:
            self.selection.show()
        except RankscopeError as error:
            problem = problem or str(error)
        self.told.problem = problem
        self.twins.show()

    def _show_grid(self) -> None:
        choice = self.session.choice
        shown = None
        try:
            shown = self._load_grid()
            self._problem = "" if shown else "No site has been recorded yet."
        except re.error as error:
            self._problem = f"The name filter is no regular expression: {error}."
        except RankscopeError as error:
            self._problem = str(error)
        self.told.drawn = shown is not None
        if shown is None:
            return
        states = self._states(shown)
        what = f"{choice.statistic} of {markup.kind_name(choice.kind)}s"
        if len(states) == 1:  # once, and not beside each row, where there is no room for it
            [state] = states
            what += f" {state}"
            shown = replace(shown, names=[name.removesuffix(f"[{state}]") for name in shown.names])
        limits = self._stick(shown, states)
        height = int(np.clip(len(shown.names) * 16, 160, 400))
        self.heatmap.figure.height = height + BORDER_TOP + BORDER_BOTTOM
        self.heatmap.show(shown, limits, statistic=choice.statistic)
        self.folds.tell(shown, height=height)
        told = {
            "heatmap": markup.title(what, words.view_name(choice.view)),
            "legend": markup.legend(limits, logarithmic=shown.logarithmic, view=choice.view),
            "heatmap_summary": markup.summary(
                grid.describe(shown, statistic=choice.statistic, kind=choice.kind, view=choice.view)
                + _shared(states)
            ),
        }
        self.told.param.update(**told)

    def _load_grid(self) -> grid.Grid | None:
        choice = self.session.choice
        re.compile(choice.pattern)
        if not choice.kind:
            return None
        width, height = self._frame.size
        before, known = self.heatmap.grid, self.folds.rows
        rows = self.folds.load()
        shown = grid.load_grid(
            self.session.run,
            statistic=choice.statistic,
            rows=[row.sites for row in rows],
            view=choice.view,
            scale=choice.scale,
            steps=self.session.zoom,
            recorded=self.session.drawn(),
            width=width,
            height=height,
        )
        return modules.named(shown, rows, before if rows is known else None)

    def _stick(self, shown: grid.Grid, states: frozenset[str]) -> colours.Limits:
        """Limits that stay for each kind and statistic, whatever is looked at in between."""
        choice = self.session.choice
        what = choice.kind, states, choice.statistic
        key = (*what, choice.view in grid.RANK_VIEWS, shown.logarithmic)
        new = colours.limits(shown.usual(), diverging=shown.signed, theme=self.session.theme)
        if choice.view in grid.RANK_VIEWS:
            highest = max(1, self.session.world_size - 1)
            new = colours.Limits(low=0, high=highest, ranks=True, theme=self.session.theme)
        self._limits[key] = colours.stick(self._limits.get(key), new)
        return self._limits[key]

    def _states(self, shown: grid.Grid) -> frozenset[str]:
        """Which states of the optimizer are shown: some are squares of others."""
        if self.session.choice.kind != "optimizer_state":
            return frozenset()
        labels = [label for row in shown.row_sites for label in row]
        return frozenset(self.session.follower.sites().loc[labels, "slot"].tolist())

    def _follow(self) -> None:
        """Show all steps, be they in the heatmap or left to the sentinel, and whole columns."""
        shown = self.heatmap.grid
        if self.session.zoom is None and shown is not None:
            self.session.follow(shown.left, shown.right)
        else:
            self.session.follow()

    def _outline(self) -> None:
        self.heatmap.outline_site(self.session.choice.site, self.session.choice.step)


def _shared(states: frozenset[str]) -> str:
    """That these have one scale, and what the smaller of them needs; empty for one state."""
    if len(states) < 2:
        return ""
    names = " and ".join(sorted(states))
    return (
        f" {names} share one scale of colours, whatever their sizes, and a folded module: one of "
        f"the names under “Name matches”, as {max(states)}, shows it alone, on a scale of its own."
    )
