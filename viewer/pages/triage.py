"""Triage: is the run healthy? What is wrong, what happened to the pipeline, how training goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import param

from .. import findings, markup, words
from ..findings import Card
from ..session import Session
from .page import Drawn
from .training import Training


class Told(param.Parameterized):
    """The texts of the page, each as HTML unless said otherwise."""

    state = param.String(doc="In one line whether anything is wrong.")
    cards = param.List(item_type=Card, doc="One for each finding.")
    grounds = param.String(doc="What was checked, and what was not observed.")
    events = param.String()


class Triage:
    """Where one lands."""

    name: ClassVar[str] = "triage"
    title: ClassVar[str] = "Triage"
    watched: ClassVar[Sequence[str]] = ("training", "step", "zoom")

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, Told()
        self.training = Training(session, "triage_training", height=200, labelled=True)
        self._drawn = Drawn()

    def show(self) -> None:
        """Bring everything up to date."""
        session, version = self.session, self.session.follower.version
        if self._drawn.due("findings", version):
            self._tell_findings()
        self.training.show()
        session.follow()

    def select_finding(self, number: int) -> None:
        """Go to the evidence: the tensor in which a finding began, or else the map at its step.

        Args:
            number: its place in `told.cards`.
        """
        if number >= len(self.told.cards):
            return
        found: Card = self.told.cards[number]
        choice = self.session.choice
        choice.param.update(pattern="", zoom=None)
        if found.site:
            self.session.open(found.site, found.step)
        else:
            choice.param.update(page="map", step=found.step)

    def _tell_findings(self) -> None:
        session = self.session
        why = session.follower.why()
        self.told.param.update(
            state=findings.state(why, looked=self._looked()),
            cards=session.cards(),
            grounds=findings.grounds(why),
            events=markup.events(session.run.events(), now_s=session.now()),
        )

    def _looked(self) -> str:
        """At how much of the run, in words; empty if nothing has been recorded."""
        steps = self.session.recorded()
        if not len(steps):
            return ""
        sites = words.count(len(self.session.follower.sites()), "site")
        ranks = words.count(self.session.world_size, "rank")
        return f"{sites} × {ranks} over steps {steps[0]}–{steps[-1]}"
