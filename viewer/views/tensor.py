"""Where everything stands on the page of one tensor."""

from __future__ import annotations

import panel as pn

from ..pages.tensor import Tensor
from .selection import exponents_view, ranks_view, training_view
from .widgets import WIDGET_CSS, button, card, cards, select, text


def _steps(page: Tensor) -> pn.Row:
    """A slider over the recorded steps, and a button to the one before and after."""
    told, session = page.told, page.session
    slider = pn.widgets.IntSlider(
        label="",
        start=0,
        # A slider needs two ends that differ.
        end=told.param.last.rx.pipe(lambda last: max(last, 1)),
        value=told.param.at,
        disabled=told.param.last.rx() == 0,
        show_value=False,
        sizing_mode="stretch_width",
        margin=(2, 8, 0, 8),
        stylesheets=[WIDGET_CSS],
    )
    slider.param.watch(lambda event: page.go_to(int(event.new)), ["value"])
    return pn.Row(
        text(told.param.place, sizing_mode=None, width=170, margin=(6, 0, 0, 0)),
        button("◀", lambda: session.move(-1), margin=0, width=38, description="step before"),
        slider,
        button("▶", lambda: session.move(1), margin=0, width=38, description="step after"),
        sizing_mode="stretch_width",
        margin=(0, 0, 8, 0),
    )


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
            _steps(page),
            training_view(page.training),
            ranks_view(page.selection),
            flex="4 1 640px",
        ),
        card(exponents_view(page.selection), flex="1 1 420px", min_width=400),
    )
