"""Ranks: how far each rank is from its peers at one site, and who stands out anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import param

from ...sketch.distribution import RANKED
from ...sketch.errors import RankscopeError
from .. import markup, rank_map, standing, tables
from ..figures import RankMapFigure, colours
from ..session import Session
from ..twins import grid_table, lines_table
from .fitted import Fitted
from .page import Drawn
from .training import Training
from .twins import Twin, Twins


class Told(param.Parameterized):
    """The texts of the page, each as HTML unless said otherwise."""

    problem = param.String(doc="Plain text: what cannot be shown, and why.")
    title = param.String()
    legend = param.String()
    summary = param.String()
    numbers = param.String(doc="The selected step as a table.")
    outliers = param.String()
    divergences = param.String()
    agreement = param.String()


class Ranks:
    """Ranks in the order of the mesh over steps."""

    name: ClassVar[str] = "ranks"
    title: ClassVar[str] = "Ranks"
    watched: ClassVar[Sequence[str]] = ("site", "step", "statistic", "zoom", "training")

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, Told()
        self.training = Training(session, "ranks_training", height=110, labelled=False)
        self.heatmap = RankMapFigure(
            "rank_map", **session.axis(), undefined="no peer to compare with, or no number"
        )
        session.on_axis(self.heatmap.figure)
        self.twins = Twins({
            "ranks_training": Twin("Training", lambda: lines_table(self.training.shown)),
            "rank_map": Twin("Over the median of its peers", lambda: grid_table(self.heatmap.grid)),
        })  # fmt: skip
        self.heatmap.on_cell(self.select)
        self._drawn = Drawn()
        self._limits: tuple[object, colours.Limits] | None = None
        self._frame = Fitted(session, self, self.heatmap)
        self._outliers: list[rank_map.Outlier] = []
        self._shown: rank_map.RankMap | None = None

    # What the user does.

    def select(self, row: int, column: int) -> None:
        """Select the step of a cell."""
        shown = self.heatmap.grid
        if shown is not None and shown.first[column] >= 0:
            self.session.choice.step = int(shown.first[column])

    # What is shown.

    @property
    def site(self) -> str:
        """The selected site; else where a rank stands out most, or the first."""
        if self.session.choice.site:
            return self.session.choice.site
        if self._outliers:
            return self._outliers[0].site
        known = self.session.follower.sites().index
        return str(known[0]) if len(known) else ""

    @property
    def _odd(self) -> rank_map.Outlier | None:
        """What is known of the ranks of the shown site, if any stands out."""
        return next((one for one in self._outliers if one.site == self.site), None)

    def show(self) -> None:
        """Bring everything up to date."""
        choice, version = self.session.choice, self.session.follower.version
        self.training.show()
        if self._drawn.due("outliers", version, choice.statistic, choice.zoom):
            self._tell_outliers()
        if self._drawn.due("divergences", version):
            self._tell_divergences()
        if self._drawn.due("agreement", version, choice.step):
            rows, step, addends = rank_map.load_agreement(self.session.run, step=choice.step)
            self.told.agreement = tables.agreements(rows, step=step, addends=addends)
        if self._drawn.due(
            "map", version, self.site, choice.statistic, choice.zoom, self._frame.size
        ):
            self._show_map()
        if self._drawn.due("numbers", version, self.site, choice.statistic, choice.step):
            self._tell_numbers()
        self._follow()
        self._outline()
        self.twins.show()

    def _tell_numbers(self) -> None:
        choice, site = self.session.choice, self.site
        self.told.numbers = ""
        if site and choice.step is not None and not self.told.problem:
            statistic, step = choice.statistic, choice.step
            rows = rank_map.load_at_step(self.session.run, statistic, site=site, step=step)
            self.told.numbers = tables.at_step(rows, statistic=statistic, step=step)

    def _tell_outliers(self) -> None:
        statistic = self.session.choice.statistic
        self._outliers, why_none = rank_map.load_outliers(
            self.session.run, statistic, steps=self.session.zoom
        )
        ranked = statistic if statistic in RANKED else RANKED[0]
        self.told.outliers = tables.outliers(self._outliers, ranked, why_none=why_none)

    def _tell_divergences(self) -> None:
        judged = self.session.run.judged()
        self.told.divergences = tables.divergences(
            rank_map.load_divergences(self.session.run),
            judged=max((judged.get(rule, 0) for rule in rank_map.DIVERGENCES), default=0),
            most=rank_map.MOST,
        )

    def _show_map(self) -> None:
        choice, site = self.session.choice, self.site
        if not site:
            self.told.problem = "No site has been recorded yet."
            return
        try:
            found = rank_map.load_rank_map(
                self.session.run,
                choice.statistic,
                site=site,
                steps=self.session.zoom,
                width=self._frame.size[0],
            )
        except RankscopeError as error:
            self.told.problem = str(error)
            return
        limits = self._stick(site, found)
        rows = len(found.grid.names)
        self.heatmap.figure.height = int(np.clip(rows * 18, 80, 520)) + 46
        what = f"{choice.statistic} over the median of its peers"
        self.heatmap.show(found.grid, limits, statistic=what)
        marks = standing.standing(
            rank_map.load_divergences(self.session.run),
            site=site,
            ranks=found.ranks,
            records=self.session.follower.records(),
        )
        self.heatmap.mark(marks)
        self._shown = found
        told = rank_map.describe(found, statistic=choice.statistic, odd=self._odd)
        told += standing.describe(marks, ranks=found.ranks)
        if not choice.site:
            told = f"No site is selected: this is where ranks differ most. {told}"
        kind, _, name = site.partition(":")
        self.told.param.update(
            problem="",
            title=markup.title(name, f"{markup.kind_name(kind)}, {what}"),
            legend=tables.ratio_legend(
                limits,
                middle="the other one" if found.peers == 2 else "the median",
                crosses=bool(marks),
                beyond=limits.high >= rank_map.FURTHEST,
            ),
            summary=markup.summary(told),
        )

    def _stick(self, site: str, found: rank_map.RankMap) -> colours.Limits:
        """Limits that stay while one thing is looked at."""
        new = colours.ratio_limits(
            found.grid.shade,
            least=rank_map.FAR,
            most=rank_map.FURTHEST,
            theme=self.session.theme,
        )
        key = (site, self.session.choice.statistic)
        old = self._limits[1] if self._limits is not None and self._limits[0] == key else None
        limits = colours.stick(old, new)
        self._limits = (key, limits)
        return limits

    def _follow(self) -> None:
        """Show all steps, and whole columns."""
        shown = self.heatmap.grid
        if self.session.zoom is None and shown is not None:
            self.session.follow(shown.left, shown.right)
        else:
            self.session.follow()

    def _outline(self) -> None:
        """Mark the rank that stands out most at the selected step; of two that which is odd."""
        choice, shown = self.session.choice, self.heatmap.grid
        column = None if shown is None or choice.step is None else shown.column(choice.step)
        if shown is None or column is None:
            self.heatmap.outline(None, None)
            return
        cells = np.where(np.isnan(shown.shade[:, column]), -1, np.abs(shown.shade[:, column]))
        row = int(cells.argmax()) if len(cells) and cells.max() >= rank_map.FAR else None
        if row is not None and self._shown is not None and self._shown.peers == 2:
            row = self._shown.row_of(self._odd, range(len(cells)))
        self.heatmap.outline(row, column)
