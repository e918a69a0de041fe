"""Where everything stands on the page of one tensor."""

from __future__ import annotations

import panel as pn

from .. import markup
from ..pages.tensor import Tensor
from ..session import Move
from .selection import exponents_view, ranks_view, training_view
from .twins import twin
from .widgets import WIDGET_CSS, button, card, cards, column, figure, select, text

MOVES: tuple[tuple[Move, str], ...] = (
    ("first", "|◀"), ("previous", "◀"), ("next", "▶"), ("last", "▶|"),
)  # fmt: skip
"""Ways to go by alerts, and what their buttons show."""

COLUMNS = 4
"""Small figures side by side."""


def tensor_view(page: Tensor) -> pn.Column:
    """Everything over steps, one axis below the other; beside it the selected step."""
    session, told = page.session, page.told
    chosen = session.choice.param.site.rx.bool()
    return column(
        cards(
            card(
                text(page.selection.told.param.cell),
                _steps(page),
                training_view(page.training, page.twins),
                column(
                    text(told.param.life, margin=(10, 0, 0, 0)),
                    figure(page.life.figure),
                    text(told.param.life_summary),
                    twin(page.twins, "life"),
                    visible=chosen,
                ),
                ranks_view(page.selection, page.twins),
                select(session, "statistic", session.statistics, label="Statistic", width=125),
                flex="4 1 640px",
            ),
            card(
                _looks(page),
                exponents_view(page.selection, page.twins),
                flex="1 1 420px",
                min_width=400,
            ),
        ),
        _scalars(page),
    )


def _scalars(page: Tensor) -> pn.Column:
    """All statistics, once they are asked for: so many figures take a browser a second."""
    choice = page.session.choice
    place = column()
    title = markup.title("All statistics", "merged over ranks; a diamond: not finite there")

    def switch() -> None:
        choice.more = "" if choice.more else "scalars"

    def fill(more: str) -> None:
        if more and not len(place):
            figures = (figure(one) for one in page.facets.figures.values())
            place.append(text(title))
            place.append(pn.GridBox(*figures, ncols=COLUMNS, sizing_mode="stretch_width", margin=0))
        place.visible = bool(more)

    choice.param.watch(lambda event: fill(event.new), ["more"])
    fill(choice.more)
    label = choice.param.more.rx.pipe(lambda more: f"{'Hide' if more else 'Show'} all statistics")
    return card(
        button(label, switch, margin=0),
        place,
        sizing_mode="stretch_width",
        margin=(12, 0, 0, 0),
        visible=choice.param.site.rx.bool(),
    )


def _looks(page: Tensor) -> pn.FlexBox:
    """How the histogram is drawn."""
    session = page.session
    return pn.FlexBox(
        select(session, "drawing", ["bars", "line"], label="Draw", width=90),
        select(session, "amount", ["share", "count"], label="Height", width=90),
        gap="10px",
        margin=(0, 0, 6, 0),
    )


def _steps(page: Tensor) -> pn.Column:
    """A slider over the recorded steps, buttons to the ones beside, and to those of alerts."""
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
    row = {"sizing_mode": "stretch_width"}
    return column(
        pn.Row(
            text(told.param.place, sizing_mode=None, width=180, margin=(6, 0, 0, 0)),
            button("◀", lambda: session.move(-1), margin=0, width=38, description="step before"),
            slider,
            button("▶", lambda: session.move(1), margin=0, width=38, description="step after"),
            margin=(6, 0, 4, 0),
            **row,
        ),
        pn.Row(
            *(_alert(page, which, mark) for which, mark in MOVES),
            text(told.param.alerts, margin=(6, 0, 0, 8)),
            margin=(0, 0, 8, 0),
            **row,
        ),
    )


def _alert(page: Tensor, which: Move, mark: str) -> pn.widgets.Button:
    return button(
        f"{mark} alert" if which in ("previous", "first") else f"alert {mark}",
        lambda: page.session.to_alert(which),
        margin=(0, 4, 0, 0),
        disabled=page.told.param.has_alerts.rx.not_(),
        description=f"{which} alert at this tensor",
    )
