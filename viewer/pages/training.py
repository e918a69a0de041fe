"""The chosen training statistic over steps, as several pages show it."""

from __future__ import annotations

import param

from .. import markup, series
from ..figures import LinesFigure
from ..session import Session
from .page import Drawn


class Told(param.Parameterized):
    """What is said of it."""

    summary = param.String(doc="HTML.")


class Training:
    """A line for each rank, loudly the one that the first finding blames; a click sets the step."""

    def __init__(self, session: Session, name: str, *, height: int, labelled: bool) -> None:
        """Make the figure.

        Args:
            session: whose choice is shown.
            name: what to call the figure.
            height: of the figure, in pixels.
            labelled: whether steps are written below it.
        """
        self.session, self.told = session, Told()
        self.lines = LinesFigure(name, **session.axis(), height=height)
        if labelled:
            self.lines.figure.xaxis.axis_label = "step"
        else:
            self.lines.figure.xaxis.major_label_text_font_size = "0px"
        session.on_axis(self.lines.figure)
        self.lines.on_step(lambda x: session.select_at(x, session.recorded()))
        self.shown: series.Lines | None = None
        self._drawn = Drawn()

    def show(self) -> None:
        """Bring it up to date."""
        session = self.session
        if not self._drawn.due("lines", session.follower.version, session.choice.training):
            return
        self.shown = lines = session.training()
        self.lines.show(lines)
        marks = [
            series.Mark(step=step, text=card.text, severe=card.severity == "error")
            for card in session.cards()
            for step in (card.step, card.worse)
            if step is not None
        ]
        self.lines.mark(marks)
        told = series.describe(lines)
        if marks:
            steps = ", ".join(str(step) for step in sorted({one.step for one in marks}))
            told += f" ▲: findings began at {steps}."
        self.told.summary = markup.summary(told)
