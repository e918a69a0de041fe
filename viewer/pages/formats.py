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
from .page import Drawn
from .training import Training

ROWS = 30
"""Sites that are shown at a time."""


class Told(param.Parameterized):
    """The texts of the page, each as HTML unless said otherwise."""

    problem = param.String(doc="Plain text: what cannot be shown, and why.")
    answer = param.String(doc="By format how many sites would break.")
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
        self.session.follow()
        # Of the worst of several steps the selected one says nothing, nor the zoom of a single one.
        when = choice.zoom if choice.over else choice.step
        # A step that was asked for does not change with each new record.
        of = version if choice.over or choice.step is None else self.session.record_of(choice.step)
        asked = (choice.of, choice.pattern, choice.over, choice.formats, choice.times, choice.most)
        if self._drawn.due("table", of, when, *asked):
            self.told.first = 0
            self._load()
        if self._drawn.due("rows", of, when, choice.site, *asked):
            self._tell_table()

    def _load(self) -> None:
        choice, self.found = self.session.choice, None
        quiet = {"answer": "", "table": "", "summary": "", "total": 0}
        try:
            most = fitting.read_most(choice.most)
            re.compile(choice.pattern)
            self.found = fitting.load_fitting(
                self.session.run,
                step=choice.step,
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
            summary=markup.summary(fitting.describe(self.found)),
            total=len(self.found.order),
        )

    def _tell_table(self) -> None:
        if self.found is not None:
            self.told.table = tables.fitting(
                self.found, first=self.told.first, rows=ROWS, chosen=self.session.choice.site
            )
