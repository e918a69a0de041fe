"""Tensor: one site in depth."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import ClassVar

import numpy as np
import param

from ...sketch.derive import MAIN
from ...sketch.errors import RankscopeError
from .. import life, markup, series, words
from ..beside import curves_table, exponents_table
from ..figures import ComparedExponents, CurvesFigure, FacetsFigure, LifeFigure, LinesFigure
from ..session import Session
from ..twins import grid_table, lines_table
from .beside import Beside
from .page import Drawn
from .selection import Selection
from .site_choice import SiteChoice
from .training import Training
from .twins import Twin, Twins


class Told(param.Parameterized):
    """Where in the run one is, and what its figures say."""

    last = param.Integer(0, doc="How many steps come after the first.")
    at = param.Integer(0, doc="How many of them come before the selected one.")
    place = param.String(doc="HTML: the step, and which of how many it is.")
    alerts = param.String(doc="HTML: how many steps there are to go to by alerts.")
    has_alerts = param.Boolean(False)
    life = param.String(doc="HTML: the heading of the exponents over steps.")
    life_summary = param.String(doc="HTML.")


class Tensor:
    """The selected site: at the selected step, and over all."""

    name: ClassVar[str] = "tensor"
    title: ClassVar[str] = "Tensor"
    watched: ClassVar[Sequence[str]] = (
        "site",
        "step",
        "format",
        "statistic",
        "view",
        "scale",
        "training",
        "zoom",
        "drawing",
        "amount",
        "beside",
        "more",
    )

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, Told()
        self.training = Training(session, "tensor_training", height=110, labelled=False)
        self.life = LifeFigure("life", **session.axis())
        self.shown: life.Life | None = None
        """What the exponents over steps show."""
        ranks = LinesFigure("tensor_ranks", **session.axis(), height=200)
        ranks.figure.xaxis.axis_label = "step"
        exponents = ComparedExponents("tensor_exponents", theme=session.theme)
        self.selection = Selection(session, ranks, exponents)
        curves = CurvesFigure("tensor_beside", **session.axis())
        self.beside = Beside(session, exponents, curves)
        self.sites = SiteChoice(session)
        session.on_axis(self.life.figure, ranks.figure, curves.figure)
        self.life.on_cell(self._select)
        ranks.on_step(lambda x: session.select_at(x, session.drawn()))
        curves.on_step(lambda x: session.select_at(x, session.drawn()))
        self.life.figure.on_change("inner_width", self._resized)
        held = self.selection
        self.twins = Twins({
            "tensor_training": Twin("Training", lambda: lines_table(self.training.shown)),
            "life": Twin(
                "Exponents over steps, shares",
                lambda: grid_table(None if self.shown is None else self.shown.grid),
            ),
            "tensor_ranks": Twin("Each rank", lambda: lines_table(held.lines)),
            "tensor_exponents": Twin(
                "Exponents", lambda: exponents_table(held.held, self.beside.spectra)
            ),
            "tensor_beside": Twin("Beside it", lambda: curves_table(self.beside.curves)),
        })  # fmt: skip
        self._drawn = Drawn()

    @cached_property
    def facets(self) -> FacetsFigure:
        """All statistics: as many models as the rest of the page, so made once they are wanted."""
        session = self.session
        made = FacetsFigure(MAIN, **session.axis())
        session.on_axis(*made.figures.values())
        made.on_step(lambda x: session.select_at(x, session.recorded()))
        return made

    def _resized(self, attr: str, old: object, new: object) -> None:
        self.session.later(self._measured)

    def _measured(self) -> None:
        """Fit the cells to the frame once it has another size, which it also has while hidden."""
        if self.session.choice.page == self.name:
            # What cannot be shown was told when it was asked for.
            with self.session.follower.lock, suppress(RankscopeError):
                self.show()

    def show(self) -> None:
        """Bring everything up to date."""
        self._tell_place()
        self.training.show()
        if self.session.choice.site in self.session.follower.sites().index:
            self._show_life()
            if self.session.choice.more == "scalars":
                self._show_scalars()
        self.session.follow()
        self.sites.show()
        self.selection.show()
        self.beside.show(self.selection.held)
        self.twins.show()

    def go_to(self, place: int) -> None:
        """Select the step that has so many before it, as a slider is dragged."""
        steps = self.session.drawn()
        if place != self.told.at and place < len(steps):
            self.session.scrub(int(steps[place]))

    def _select(self, row: int, column: int) -> None:
        """Select the step of a column; of several the first."""
        if self.shown is not None and self.shown.grid.first[column] >= 0:
            self.session.choice.step = int(self.shown.grid.first[column])

    def _tell_place(self) -> None:
        steps, step = self.session.drawn(), self.session.choice.step
        at = int(np.abs(steps - step).argmin()) if step is not None and len(steps) else 0
        place = "no step" if step is None else f"step {step}"
        if len(steps) and step is not None:
            place += f" · {words.thousands(at + 1)} of {words.thousands(len(steps))}"
        alerts = self.session.alert_steps()
        told = "no alert at this tensor"
        if len(alerts):
            named = ", ".join(str(one) for one in alerts[:6].tolist())
            told = f"alerts began or ended at {named}{', …' if len(alerts) > 6 else ''}"
        self.told.param.update(
            last=max(len(steps) - 1, 0),
            at=at,
            place=markup.title(place),
            alerts=markup.summary(told),
            has_alerts=len(alerts) > 0,
        )

    def _show_life(self) -> None:
        session, choice = self.session, self.session.choice
        target = self.selection.target(str(session.follower.sites().loc[choice.site, "dtype"]))
        width = self.life.size()[0]
        facts = (session.follower.version, choice.site, choice.zoom, width, target.name)
        if not self._drawn.due("life", *facts):
            return
        found = life.load_life(
            session.run, site=choice.site, recorded=session.drawn(), steps=session.zoom, width=width
        )
        self.shown = found
        self.life.figure.visible = found is not None
        if found is not None:
            self.life.figure.height = int(np.clip(len(found.grid.names) * 13, 130, 330)) + 46
            self.life.show_life(found, target)
        self.told.param.update(
            life=markup.title("Exponents over steps", f"share of elements; edges of {target.name}"),
            life_summary=markup.summary(life.describe(found)),
        )

    def _show_scalars(self) -> None:
        session, site = self.session, self.session.choice.site
        if not self._drawn.due("scalars", session.follower.version, site):
            return
        self.facets.show(series.load_scalars(session.run, site=site))
