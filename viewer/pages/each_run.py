"""The same heatmap of several runs, one above the other: the same sites, steps and colours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import param

from ...store import Run
from .. import comparing, grid, markup, words
from ..figures import HeatmapFigure, colours
from ..session import Session
from .fitted import Fitted
from .page import Page

NAMES = ("compare_this", "compare_other", "compare_third", "compare_fourth")
TALLEST = 260
"""Pixels of one, so that two are seen at once."""


class Told(param.Parameterized):
    """The texts around the maps, each as HTML."""

    titles = param.List([""] * len(NAMES), item_type=str, doc="Which run each is of, or nothing.")
    legend = param.String()
    summary = param.String()


class EachRun:
    """A heatmap of each run."""

    def __init__(self, session: Session, page: Page) -> None:
        self.session, self.told = session, Told()
        self.maps = [HeatmapFigure(name, **session.axis()) for name in NAMES]
        session.on_axis(*(one.figure for one in self.maps))
        for number, one in enumerate(self.maps):
            one.on_cell(partial(self.select, number))
        self._frame = Fitted(session, page, self.maps[0])
        self._runs: Sequence[Run] = ()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of cells that there is room for."""
        return self._frame.size

    def select(self, number: int, row: int, column: int) -> None:
        """Select a cell of one of them; of several sites and steps in it, the worst."""
        shown, run = self.maps[number].grid, self._runs[number]
        self.session.select_cell(shown, row, column, run=run, view="merged")

    def show(self, runs: Sequence[Run]) -> None:
        """Draw them all.

        Raises:
            SettingError: they have no such site in common.
        """
        session, choice = self.session, self.session.choice
        self._runs = runs
        width, height = self.size
        sites = comparing.common_sites(runs, kind=choice.kind, pattern=choice.pattern)
        grids = [
            grid.load_grid(
                run,
                statistic=choice.statistic,
                rows=[[site] for site in sites],
                scale=choice.scale,
                steps=session.zoom,
                width=width,
                height=height,
            )
            for run in runs
        ]
        usual = np.concatenate([one.usual() for one in grids])
        limits = colours.limits(usual, diverging=grids[0].signed, theme=session.theme)
        for drawn, one in zip(self.maps, grids, strict=False):
            drawn.figure.height = int(np.clip(len(one.names) * 13, 120, TALLEST)) + 46
            drawn.show(one, limits, statistic=choice.statistic)
        names = comparing.names_of(runs)
        what = f"{choice.statistic} of {markup.kind_name(choice.kind)}s"
        told = [
            f"{name}: {grid.describe(one, statistic=what, kind=choice.kind, view='merged')}"
            for name, one in zip(names, grids, strict=True)
        ]
        titles = [markup.title(what, words.shorten(name, 40)) for name in names]
        self.told.param.update(
            titles=[*titles, *[""] * (len(NAMES) - len(titles))],
            legend=markup.legend(limits, logarithmic=grids[0].logarithmic, view="merged"),
            summary=markup.summary(" ".join(told)),
        )

    def outline(self) -> None:
        """Draw a box around the selected cell in all of them."""
        for drawn in self.maps:
            drawn.outline_site(self.session.choice.site, self.session.choice.step)
