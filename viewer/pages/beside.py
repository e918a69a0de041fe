"""Other sites beside the selected one: in its histogram, and over steps."""

from __future__ import annotations

import param

from ...sketch.errors import SettingError
from .. import beside, grid, markup, site_lists, words
from ..curves import Curves, load_curves
from ..figures import ComparedExponents, CurvesFigure
from ..session import Session
from ..spectrum import Spectrum
from .page import Drawn


class Told(param.Parameterized):
    """The texts, each as HTML unless said otherwise."""

    legend = param.String(doc="Which line is which.")
    problem = param.String(doc="Plain text: what does not stand beside, and why.")
    summary = param.String(doc="The exponents of the others in words.")
    curves = param.String(doc="The heading of the lines over steps.")
    curves_summary = param.String()


class Beside:
    """Draws the sites that are chosen to stand beside."""

    def __init__(
        self, session: Session, exponents: ComparedExponents, curves: CurvesFigure
    ) -> None:
        self.session, self.told = session, Told()
        self.exponents, self.lines = exponents, curves
        self.spectra: dict[str, Spectrum | None] = {}
        """Of the others, at the selected step."""
        self.curves: Curves | None = None
        """What is shown over steps; None for nothing."""
        self._drawn = Drawn()

    def show(self, own: Spectrum | None) -> None:
        """Draw them over the histogram `own`, which is shown already."""
        session, choice = self.session, self.session.choice
        sites = session.follower.sites().index
        wanted = beside.wanted(choice.beside, site=choice.site, known=sites)
        there = wanted.drawn if choice.site in sites else []
        if self._drawn.due("legend", choice.site, *there, wanted.problem):
            self.told.problem = wanted.problem
            self.told.legend = site_lists.legend(choice.site, there, theme=session.theme)
        self._show_exponents(own, there)
        self._show_curves(there)

    def _show_exponents(self, own: Spectrum | None, there: list[str]) -> None:
        choice = self.session.choice
        record = self.session.record_of(choice.step)
        # The bars under them may have been drawn anew for another format.
        facts = (choice.site, choice.view, choice.drawing, choice.amount, choice.format)
        is_due = self._drawn.due("exponents", *there, *facts, *record, own is None)
        if not is_due or not (there or self.spectra):
            return
        self.spectra = beside.load_beside(
            self.session.run, there, step=choice.step, view=grid.run_view(choice.view)
        )
        self.exponents.compare(
            own, self.spectra, drawing=choice.drawing, counts=choice.amount == "count"
        )
        said = beside.describe(self.spectra, step=choice.step)
        self.told.summary = markup.summary(said) if said else ""

    def _show_curves(self, there: list[str]) -> None:
        session, choice = self.session, self.session.choice
        facts = (choice.site, choice.statistic, choice.view, choice.scale)
        if not self._drawn.due("curves", session.follower.version, *there, *facts):
            return
        self.curves = None
        if not there:
            self.told.param.update(curves="", curves_summary="")
            return
        try:
            found = load_curves(
                session.run,
                choice.statistic,
                sites=[choice.site, *there],
                view=grid.run_view(choice.view),
            )
        except SettingError:
            self._drawn.forget("curves")
            raise
        self.curves = found
        logarithmic = grid.is_logarithmic(choice.statistic, choice.view, choice.scale)
        self.lines.show(found, logarithmic=logarithmic)
        self.told.param.update(
            curves=markup.title(f"{choice.statistic} of all of them", words.view_name(choice.view)),
            curves_summary=markup.summary(beside.describe_curves(found)),
        )
