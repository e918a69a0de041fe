"""Where everything stands on the page of one tensor."""

from __future__ import annotations

import panel as pn

from ..pages.tensor import Tensor
from .selection import exponents_view, ranks_view, training_view
from .widgets import button, card, cards, select, text


def tensor_view(page: Tensor) -> pn.FlexBox:
    """Everything over steps, one axis below the other; beside it the selected step."""
    session = page.session
    return cards(
        card(
            text(page.selection.told.param.cell),
            pn.FlexBox(
                select(session, "statistic", session.statistics, label="Statistic", width=125),
                button("Back to the map", lambda: session.visit("map")),
                gap="10px",
                margin=(8, 0, 8, 0),
            ),
            training_view(page.training),
            ranks_view(page.selection),
            flex="4 1 640px",
        ),
        card(exponents_view(page.selection), flex="1 1 420px", min_width=400),
    )
