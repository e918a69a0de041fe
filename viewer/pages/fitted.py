"""Cells that fit their frame, whatever its size."""

from __future__ import annotations

from contextlib import suppress

from ...sketch.errors import RankscopeError
from ..figures import HeatmapFigure
from ..session import Session
from .page import Page

RESIZED_PX = 8
"""A frame that changed by less keeps its cells."""


class Fitted:
    """The size of a heatmap's frame; its page is shown again once that is another."""

    def __init__(self, session: Session, page: Page, heatmap: HeatmapFigure) -> None:
        self._session, self._page, self._heatmap = session, page, heatmap
        self.size = heatmap.size()
        """Columns and rows of cells that there is room for."""
        for side in ("inner_width", "inner_height"):
            heatmap.figure.on_change(side, self._resized)

    def _resized(self, attr: str, old: object, new: object) -> None:
        self._session.later(self._measured)

    def _measured(self) -> None:
        """Look at the frame, which also has another size while it is hidden."""
        if self._session.choice.page != self._page.name:
            return
        size = self._heatmap.size()
        if max(abs(size[0] - self.size[0]), abs(size[1] - self.size[1])) > RESIZED_PX:
            self.size = size
            # What cannot be shown was told when it was asked for.
            with self._session.follower.lock, suppress(RankscopeError):
                self._page.show()
