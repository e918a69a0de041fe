"""Formats: which sites would break in which number formats, with which scale."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import ClassVar

import param

from ...sketch.errors import RankscopeError
from ...store import recipe
from .. import fitting, markup, tables
from ..session import Session
from ..twins import lines_table
from .page import Drawn
from .training import Training
from .twins import Twin, Twins

ROWS = 30
"""Sites that are shown at a time."""


class Told(param.Parameterized):
    """The texts of the page, each as HTML unless said otherwise."""

    problem = param.String(doc="Plain text: what cannot be shown, and why.")
    answer = param.String(doc="By format how many sites would break.")
    reasons = param.String(doc="Why this step, and why sites are not known.")
    table = param.String()
    summary = param.String()
    first = param.Integer(0, doc="How many sites come before those that are shown.")
    total = param.Integer(0, doc="How many sites there are.")


class Formats:
    """A table of sites and formats, what breaks first."""

    name: ClassVar[str] = "formats"
    title: ClassVar[str] = "Formats"
    watched: ClassVar[Sequence[str]] = (
        "site", "step", "zoom", "pattern", "of", "over", "formats", "times", "most",
        "training",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, Told()
        self.training = Training(session, "formats_training", height=110, labelled=True)
        table = Twin("Training", lambda: lines_table(self.training.shown))
        self.twins = Twins({"formats_training": table})
        self.found: fitting.Fitting | None = None
        self._drawn = Drawn()

    # What the user does.

    def turn(self, by: int) -> None:
        """Show the next sites, or those before."""
        first = self.told.first + by * ROWS
        if 0 <= first < self.told.total:
            self.told.first = first
            self._tell_table()

    def csv(self) -> str:
        """The whole table, a row for each site and format."""
        return "" if self.found is None else self.found.table.to_dataframe().to_csv()

    def recipe(self) -> str:
        """For each site the first of the formats that fits it, as JSON."""
        if self.found is None:
            return ""
        return json.dumps(recipe(self.found.table, run=self.session.run.name), indent=2) + "\n"

    # What is shown.

    def show(self) -> None:
        """Bring everything up to date."""
        choice, version = self.session.choice, self.session.follower.version
        self.training.show()
        self.twins.show()
        self.session.follow()
        # Of the worst of several steps the selected one says nothing, nor the zoom of a single one.
        when = choice.zoom if choice.over == "steps" else choice.step
        # A step that was asked for does not change with each new record.
        is_chosen = choice.step is not None and choice.over != "steps" and not self._is_open()
        of = self.session.record_of(choice.step) if is_chosen else version
        asked = (choice.of, choice.pattern, choice.over, choice.formats, choice.times, choice.most)
        if self._drawn.due("table", of, when, *asked):
            self.told.first = 0
            self._load()
        if self._drawn.due("rows", of, when, choice.site, *asked):
            self._tell_table()

    def _is_open(self) -> bool:
        """Whether the reader left the step open, or at what the first finding proposed."""
        choice = self.session.choice
        return not choice.over and (
            choice.step is None or (choice.site, choice.step) == self.session.proposed()
        )

    def _step(self) -> tuple[int | None, str]:
        """At which step to look, and why in a sentence; None: in that of the store's choice."""
        session, selected = self.session, self.session.choice.step
        if not self._is_open():
            return selected, ""
        findings = session.follower.why().findings
        step = fitting.healthy_step(session.follower.records(), findings)
        if step is None:
            return None, "In all steps with histograms an error stood: this is the newest."
        why = f"Step {step} is the newest in which nearly all sites have histograms"
        why += " and no error stood" if any(one.severity == "error" for one in findings) else ""
        if selected not in (None, step):
            why += f"; “the selected step” shows {selected}, where the first finding began"
        return step, f"{why}."

    def _load(self) -> None:
        choice, self.found = self.session.choice, None
        quiet = {"answer": "", "table": "", "summary": "", "reasons": "", "total": 0}
        step, why = self._step()
        try:
            most = fitting.read_most(choice.most)
            re.compile(choice.pattern)
            self.found = fitting.load_fitting(
                self.session.run,
                step=step,
                steps=self.session.zoom,
                over_steps=choice.over == "steps",
                kind=choice.of,
                pattern=choice.pattern,
                formats=fitting.read_formats(choice.formats),
                scale=fitting.read_scale(choice.times),
                most=most,
            )
        except re.error as error:
            self.told.param.update(
                problem=f"The name filter is no regular expression: {error}.", **quiet
            )
            return
        except RankscopeError as error:
            self.told.param.update(problem=str(error), **quiet)
            return
        if self.found is None:
            self.told.param.update(problem="No histogram has been recorded yet.", **quiet)
            return
        self.told.param.update(
            problem="",
            answer=tables.answer(self.found, most=most),
            reasons=markup.summary(f"{why} {fitting.why_not_known(self.found)}".strip()),
            summary=markup.summary(fitting.describe(self.found)),
            total=len(self.found.order),
        )

    def _tell_table(self) -> None:
        if self.found is not None:
            self.told.table = tables.fitting(
                self.found, first=self.told.first, rows=ROWS, chosen=self.session.choice.site
            )
