"""The same heatmap of two runs, one above the other: the same sites, steps and colours."""

from __future__ import annotations

from functools import partial

import numpy as np
import param

from ...store import Run
from .. import comparing, grid, markup, words
from ..figures import HeatmapFigure, colours
from ..session import Session
from .fitted import Fitted
from .page import Page

NAMES = ("compare_this", "compare_other")
TALLEST = 260
"""Pixels of one, so that both are seen at once."""


class Told(param.Parameterized):
    """The texts around the two, each as HTML."""

    titles = param.List(["", ""], item_type=str, doc="Which run each is of.")
    legend = param.String()
    summary = param.String()


class Both:
    """Two heatmaps, of this run and of another one."""

    def __init__(self, session: Session, page: Page) -> None:
        self.session, self.told = session, Told()
        self.maps = [HeatmapFigure(name, **session.axis()) for name in NAMES]
        session.on_axis(*(one.figure for one in self.maps))
        for number, one in enumerate(self.maps):
            one.on_cell(partial(self.select, number))
        self._frame = Fitted(session, page, self.maps[0])
        self._runs: tuple[Run, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of cells that there is room for."""
        return self._frame.size

    def select(self, number: int, row: int, column: int) -> None:
        """Select a cell of one of them; of several sites and steps in it, the worst."""
        shown, run = self.maps[number].grid, self._runs[number]
        self.session.select_cell(shown, row, column, run=run, view="merged")

    def show(self, other: Run) -> None:
        """Draw both.

        Raises:
            SettingError: they have no such site in common.
        """
        session, choice = self.session, self.session.choice
        self._runs = session.run, other
        width, height = self.size
        sites = comparing.common_sites(*self._runs, kind=choice.kind, pattern=choice.pattern)
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
            for run in self._runs
        ]
        usual = np.concatenate([one.usual() for one in grids])
        limits = colours.limits(usual, diverging=grids[0].signed, theme=session.theme)
        for drawn, one in zip(self.maps, grids, strict=True):
            drawn.figure.height = int(np.clip(len(one.names) * 13, 120, TALLEST)) + 46
            drawn.show(one, limits, statistic=choice.statistic)
        what = f"{choice.statistic} of {markup.kind_name(choice.kind)}s"
        told = [
            f"{name}: {grid.describe(one, statistic=what, kind=choice.kind, view='merged')}"
            for name, one in zip(("This run", "The other"), grids, strict=True)
        ]
        self.told.param.update(
            titles=[
                markup.title(what, f"{place} {words.shorten(run.name, 40)}")
                for place, run in zip(("this run:", "the other:"), self._runs, strict=True)
            ],
            legend=markup.legend(limits, logarithmic=grids[0].logarithmic, view="merged"),
            summary=markup.summary(" ".join(told)),
        )

    def outline(self) -> None:
        """Draw a box around the selected cell in both."""
        for drawn in self.maps:
            drawn.outline_site(self.session.choice.site, self.session.choice.step)
