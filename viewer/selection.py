"""The selected cell: its exponents against a format, its fit, and its site on each rank."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..sketch.distribution import SPREAD
from ..sketch.formats import NumberFormat, number_format
from . import grid, markup, series, spectrum, words
from .figures import ExponentsFigure, LinesFigure
from .follow import Follower
from .state import Choice, Told


class Selection:
    """Shows the site and step that are chosen."""

    def __init__(self, follower: Follower, choice: Choice, told: Told, ranks: LinesFigure) -> None:
        self.follower, self.run, self.choice, self.told = follower, follower.run, choice, told
        self.exponents = ExponentsFigure()
        self.ranks = ranks
        self._shown: tuple[object, ...] | None = None

    def show(self) -> None:
        """Draw what is selected, or tell how to select.

        Raises:
            SettingError: the statistic or the format cannot be shown.
        """
        site, step = self.choice.site, self.choice.step
        sites = self.follower.sites()
        facts = sites.loc[site].to_dict() if site and site in sites.index else None
        self.told.selection = markup.selection(site if facts else "", step, facts)
        if facts is None:
            self._clear()
            return
        self._show_exponents(facts)
        self._show_ranks()

    def _clear(self) -> None:
        self._shown = None
        quiet = dict.fromkeys(("exponents_summary", "fit", "ranks", "ranks_summary"), "")
        self.told.param.update(**quiet)
        if self.choice.site:
            gone = f"This run has no site {words.shorten(self.choice.site, 80)}."
            self.told.selection += markup.problem(gone)

    def _show_exponents(self, facts: Mapping[str, object]) -> None:
        site, step, own = self.choice.site, self.choice.step, str(facts["dtype"])
        target = self._target(own)
        shown = (site, target.name, self.choice.view, *self._record(step))
        if shown == self._shown:
            return
        self._shown = shown
        held, asked = None, grid.run_view(self.choice.view)
        if step is not None:
            held = spectrum.load_seen(self.run, site=site, step=step, view=asked)
        self.exponents.show(held, target)
        if held is None or step is None:
            why = series.why_no_sketch(self.run, site=site, step=step)
            self.told.param.update(exponents_summary=markup.summary(why), fit="")
            return
        fit = spectrum.load_fit(self.run, site=site, step=step, view=held.view)
        blocks = spectrum.load_block_fit(self.run, site=site, step=step)
        tables = [markup.fit_table(fit, target=target, own=own), *markup.block_tables(blocks)]
        said = spectrum.describe(held, target)
        if held.view != asked and asked not in SPREAD:
            said += f" That is of all ranks: {words.view_name(self.choice.view)} was not kept here."
        self.told.param.update(exponents_summary=markup.summary(said), fit="".join(tables))

    def _target(self, own: str) -> NumberFormat:
        chosen = self.choice.format
        return number_format(chosen) if chosen else spectrum.site_format(own)

    def _record(self, step: int | None) -> tuple[int | None, ...]:
        """What changes when the record of a step is patched or superseded."""
        records = self.follower.records()
        found = np.flatnonzero(records["step"] == step)
        if not len(found):
            return (step,)
        facts = ("attempt", "ranks", "sites")
        return (step, *(int(records[fact].iloc[found[0]]) for fact in facts))

    def _show_ranks(self) -> None:
        choice = self.choice
        lines = series.load_ranks(self.run, choice.statistic, site=choice.site, step=choice.step)
        logarithmic = grid.is_logarithmic(choice.statistic, "merged", choice.scale)
        self.ranks.show(lines, logarithmic=logarithmic)
        self.told.param.update(
            ranks=markup.title(f"{choice.statistic} on each rank", lines.why),
            ranks_summary=markup.summary(series.describe(lines)),
        )
