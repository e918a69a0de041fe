"""What is read off where the mouse is, on whichever page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ...sketch.errors import SettingError
from ..columns import between
from ..reading import Reading, Readings, of_site, of_training
from ..session import Session
from .page import Drawn


class Readout:
    """The training statistic and the selected site that are chosen, at the visible steps."""

    watched: ClassVar[Sequence[str]] = ("training", "site", "statistic", "view", "zoom")
    """The parts of `Choice` that change what can be read."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._training: list[Reading] = []
        self._drawn = Drawn()

    def show(self) -> None:
        """Bring it up to date."""
        session, choice = self.session, self.session.choice
        steps = between(session.recorded(), session.zoom)
        seen = session.follower.version, choice.zoom
        if self._drawn.due("training", *seen, choice.training):
            self._training = of_training(session.training(), steps)
            self._drawn.forget("readings")
        if self._drawn.due("readings", *seen, choice.site, choice.statistic, choice.view):
            found = Readings(steps=steps, of=[*self._training, *self._of_site(steps)])
            session.crosshair.show(found)

    def _of_site(self, steps: NDArray[np.int64]) -> list[Reading]:
        """Of the selected site; nothing where the page itself tells that there is none."""
        session, choice = self.session, self.session.choice
        if choice.site not in session.follower.sites().index:
            return []
        try:
            return of_site(
                session.run, choice.statistic, site=choice.site, view=choice.view, steps=steps
            )
        except SettingError:
            return []
