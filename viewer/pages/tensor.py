"""Tensor: one site in depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import param

from .. import markup, words
from ..figures import LinesFigure
from ..session import Session
from .selection import Selection
from .training import Training


class Told(param.Parameterized):
    """Where in the run one is."""

    last = param.Integer(0, doc="How many steps come after the first.")
    at = param.Integer(0, doc="How many of them come before the selected one.")
    place = param.String(doc="HTML: the step, and which of how many it is.")


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
    )

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, Told()
        self.training = Training(session, "tensor_training", height=130, labelled=False)
        ranks = LinesFigure("tensor_ranks", **session.axis(), height=260)
        ranks.figure.xaxis.axis_label = "step"
        self.selection = Selection(session, ranks, name="tensor_exponents")
        session.on_axis(ranks.figure)
        ranks.on_step(lambda x: session.select_at(x, session.drawn()))

    def show(self) -> None:
        """Bring everything up to date."""
        self._tell_place()
        self.training.show()
        self.session.follow()
        self.selection.show()

    def go_to(self, place: int) -> None:
        """Select the step that has so many before it, as a slider is dragged."""
        steps = self.session.drawn()
        if place != self.told.at and place < len(steps):
            self.session.scrub(int(steps[place]))

    def _tell_place(self) -> None:
        steps, step = self.session.drawn(), self.session.choice.step
        at = int(np.abs(steps - step).argmin()) if step is not None and len(steps) else 0
        place = "no step" if step is None else f"step {step}"
        if len(steps):
            place += f" · {words.thousands(at + 1)} of {words.thousands(len(steps))}"
        self.told.param.update(last=max(len(steps) - 1, 0), at=at, place=markup.title(place))
