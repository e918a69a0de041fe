"""The selected cell: its exponents against a format, its fit, and its site on each rank."""

from __future__ import annotations

from collections.abc import Mapping

import param

from ...sketch.distribution import SPREAD
from ...sketch.errors import SettingError
from ...sketch.formats import NumberFormat, number_format
from .. import grid, markup, series, spectrum, words
from ..figures import ExponentsFigure, LinesFigure
from ..session import Session
from .page import Drawn


class Told(param.Parameterized):
    """Texts about the selected cell, each as HTML."""

    there = param.Boolean(False, doc="Whether a site is selected that the run has. No HTML.")
    cell = param.String(doc="Which it is, or how to select one.")
    exponents_summary = param.String()
    fit = param.String()
    ranks = param.String(doc="Empty where there is nothing to draw.")
    ranks_summary = param.String()


class Selection:
    """Shows the site and step that are chosen."""

    def __init__(
        self,
        session: Session,
        ranks: LinesFigure,
        exponents: ExponentsFigure | None = None,
        *,
        on_map: bool = False,
    ) -> None:
        """Show the cell in these figures; one of exponents is made where none is given.

        Args:
            on_map: whether the heatmap of all sites is on the same page.
        """
        self.session, self.told = session, Told()
        self._how_to = markup.how_to_select(on_map=on_map)
        self.exponents = exponents or ExponentsFigure(theme=session.theme)
        self.ranks = ranks
        self.held: spectrum.Spectrum | None = None
        """The exponents that are shown."""
        self.lines: series.Lines | None = None
        """The ranks that are shown."""
        self._drawn = Drawn()

    def show(self) -> None:
        """Draw what is selected, or tell how to select.

        Raises:
            SettingError: the statistic or the format cannot be shown.
        """
        site, step = self.session.choice.site, self.session.choice.step
        sites = self.session.follower.sites()
        facts = sites.loc[site].to_dict() if site and site in sites.index else None
        if facts is None:
            self._clear()
            return
        self.told.param.update(there=True, cell=markup.selection(site, step, facts))
        self._show_exponents(facts)
        self._show_ranks()

    def _clear(self) -> None:
        cell, self._drawn = self._how_to, Drawn()
        self.held = self.lines = None
        if self.session.choice.site:
            gone = f"This run has no site {words.shorten(self.session.choice.site, 80)}."
            cell += markup.problem(gone)
        quiet = dict.fromkeys(("exponents_summary", "fit", "ranks", "ranks_summary"), "")
        self.told.param.update(there=False, cell=cell, **quiet)

    def _show_exponents(self, facts: Mapping[str, object]) -> None:
        choice, run = self.session.choice, self.session.run
        site, step, own = choice.site, choice.step, str(facts["dtype"])
        target = self.target(own)
        record = self.session.record_of(step)
        looks = (choice.drawing, choice.amount)
        if not self._drawn.due("exponents", site, target.name, choice.view, *looks, *record):
            return
        held, asked = None, grid.run_view(choice.view)
        if step is not None:
            held = spectrum.load_seen(run, site=site, step=step, view=asked)
        self.held = held
        self.exponents.show(held, target, drawing=choice.drawing, counts=choice.amount == "count")
        if held is None or step is None:
            why = series.why_no_sketch(run, site=site, step=step)
            self.told.param.update(exponents_summary=markup.summary(why), fit="")
            return
        tables = [markup.summary("No element is finite and not zero: nothing can be lost.")]
        if held.casts:
            fit = spectrum.load_fit(run, site=site, step=step, view=held.view)
            blocks = spectrum.load_block_fit(run, site=site, step=step)
            tables = [
                markup.summary(spectrum.infinite(held, own=own)),
                markup.fit_table(fit, target=target, own=own),
                *markup.block_tables(blocks),
            ]
        said = spectrum.describe(held, target)
        if held.view != asked and asked not in SPREAD:
            said += f" That is of all ranks: {words.view_name(choice.view)} was not kept here."
        self.told.param.update(exponents_summary=markup.summary(said), fit="".join(tables))

    def target(self, own: str) -> NumberFormat:
        """The format to compare with, for a site whose own one has this name."""
        chosen = self.session.choice.format
        return number_format(chosen) if chosen else spectrum.site_format(own)

    def _show_ranks(self) -> None:
        session, choice = self.session, self.session.choice
        drawn = (session.follower.version, choice.site, choice.statistic)
        if not self._drawn.due("ranks", *drawn, choice.step, choice.scale):
            return
        try:
            if self._drawn.due("lines", *drawn) or self.lines is None:
                self.lines = series.load_ranks(session.run, choice.statistic, site=choice.site)
        except SettingError:
            self._drawn, self.lines = Drawn(), None
            self.told.param.update(ranks="", ranks_summary="")
            raise
        self.lines = lines = series.at_step(
            session.run, self.lines, site=choice.site, step=choice.step
        )
        logarithmic = grid.is_logarithmic(choice.statistic, "merged", choice.scale)
        if self._drawn.due("ranks_drawn", *drawn, lines.worst, logarithmic):
            self.ranks.show(lines, logarithmic=logarithmic)
        self.told.param.update(
            ranks=markup.title(f"{choice.statistic} on each rank", lines.why),
            ranks_summary=markup.summary(series.describe(lines)),
        )
