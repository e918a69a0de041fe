"""Tensor: one site in depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..figures import LinesFigure
from ..session import Session
from .selection import Selection
from .training import Training


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
        self.session = session
        self.training = Training(session, "tensor_training", height=130, labelled=False)
        ranks = LinesFigure("tensor_ranks", **session.axis(), height=260)
        ranks.figure.xaxis.axis_label = "step"
        self.selection = Selection(session, ranks, name="tensor_exponents")
        session.on_axis(ranks.figure)
        ranks.on_step(lambda x: session.select_at(x, session.drawn()))

    def show(self) -> None:
        """Bring everything up to date."""
        self.training.show()
        self.session.follow()
        self.selection.show()
