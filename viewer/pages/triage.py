"""Triage: is the run healthy? What is wrong, what happened to the pipeline, how training goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import param

from .. import findings, markup, words
from ..findings import Card
from ..mesh import load_mesh, mesh
from ..pipeline import attempts as attempts_table
from ..pipeline import load_pipeline, pipeline
from ..session import Session
from ..twins import lines_table
from .page import Drawn
from .training import Training
from .twins import Twin, Twins


class Told(param.Parameterized):
    """The texts of the page, each as HTML unless said otherwise."""

    state = param.String(doc="In one line whether anything is wrong.")
    cards = param.List(item_type=Card, doc="One for each finding.")
    now = param.String(doc="Heading of the findings that go on, or did so lately.")
    earlier = param.String(doc="Heading of the others.")
    grounds = param.String(doc="What was checked, and what was not observed.")
    events = param.String()
    pipeline = param.String()
    mesh = param.String()
    attempts = param.String()


class Triage:
    """Where one lands."""

    name: ClassVar[str] = "triage"
    title: ClassVar[str] = "Triage"
    watched: ClassVar[Sequence[str]] = ("training", "step", "zoom")

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, Told()
        self.training = Training(session, "triage_training", height=200, labelled=True)
        self.twins = Twins({
            "triage_training": Twin("Training", lambda: lines_table(self.training.shown)),
        })  # fmt: skip
        self._drawn = Drawn()

    def show(self) -> None:
        """Bring everything up to date."""
        session, version = self.session, self.session.follower.version
        if self._drawn.due("findings", version):
            self._tell_findings()
            self._tell_pipeline()
            self._tell_ranks()
        self.training.show()
        session.follow()
        self.twins.show()

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
            cards=(cards := session.cards()),
            now=findings.now_title(cards, recent=self._recent()),
            earlier=findings.earlier_title(cards),
            grounds=findings.grounds(why),
            events=markup.events(session.run.events(), now_s=session.now()),
        )

    def _tell_pipeline(self) -> None:
        session = self.session
        found = load_pipeline(session.run, records=session.follower.records())
        self.told.pipeline = pipeline(found)

    def _tell_ranks(self) -> None:
        session = self.session
        attempts, records = session.follower.attempts(), session.follower.records()
        self.told.attempts = attempts_table(attempts)
        if not len(attempts):
            return
        last = records.loc[records.index.max()] if len(records) else None
        found = load_mesh(
            session.run,
            attempt=len(attempts) - 1,
            missing=() if last is None else last["missing"],
            blamed={rank for card in session.cards() if card.now for rank in card.ranks},
        )
        self.told.mesh = mesh(found)

    def _recent(self) -> str:
        """The recent steps in words; empty if there are none."""
        steps = self.session.recent()
        if not len(steps):
            return ""
        span = words.steps(int(steps.min()), int(steps.max()))
        return f"the last {words.count(len(steps), 'record')} ({span})"

    def _looked(self) -> str:
        """At how much of the run, in words; empty if nothing has been recorded."""
        steps = self.session.recorded()
        if not len(steps):
            return ""
        sites = words.count(len(self.session.follower.sites()), "site")
        ranks = words.count(self.session.world_size, "rank")
        return f"{sites} × {ranks} over {words.steps(int(steps[0]), int(steps[-1]))}"
