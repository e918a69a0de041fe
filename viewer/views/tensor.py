"""Where everything stands on the page of one tensor."""

from __future__ import annotations

import panel as pn

from .. import markup, words
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


def tensor_view(page: Tensor) -> pn.FlexBox:
    """Everything over steps, one axis below the other; beside it the selected step."""
    told = page.told
    # All in one box: figures of two boxes on one page are never laid out (bokeh 3.9.2).
    return cards(
        card(
            _site(page),
            text(page.selection.told.param.cell, margin=(8, 0, 0, 0)),
            _steps(page),
            training_view(page.training, page.twins),
            column(
                text(told.param.life, margin=(10, 0, 0, 0)),
                figure(page.life.figure),
                text(told.param.life_summary),
                twin(page.twins, "life"),
                visible=page.selection.told.param.there,
            ),
            ranks_view(page.selection, page.twins),
            _curves(page),
            flex="4 1 640px",
        ),
        card(
            _looks(page),
            _beside(page),
            exponents_view(page.selection, page.twins),
            flex="1 1 420px",
            min_width=400,
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
        visible=page.selection.told.param.there,
    )


def _looks(page: Tensor) -> pn.FlexBox:
    """How the histogram is drawn."""
    session = page.session
    return pn.FlexBox(
        select(session, "drawing", ["bars", "line", "smooth"], label="Draw", width=90),
        select(session, "amount", ["share", "count"], label="Height", width=90),
        gap="10px",
        margin=(0, 0, 6, 0),
    )


def _site(page: Tensor) -> pn.Column:
    """Which site, and what is shown of it; what was found stands below."""
    session, sites = page.session, page.sites
    words_of = pn.widgets.TextInput(
        label="Find a site",
        placeholder="words of its name",
        description=None,
        width=210,
        margin=0,
        stylesheets=[WIDGET_CSS],
        css_classes=["search"],
    )
    words_of.param.watch(lambda event: sites.look_for(str(event.new)), ["value_input"])
    # Panel tells of Enter without the document's lock, under which figures change (panel 1.9.4).
    words_of.param.watch(lambda _: session.later(sites.take_first), ["enter_pressed"])

    def forget(found: str) -> None:
        # What was typed is done with once a site is selected.
        if not found and words_of.value:
            words_of.value = ""

    sites.told.param.watch(lambda event: forget(event.new), ["found"])
    options = session.options.param
    return column(
        pn.FlexBox(
            button("▲", lambda: session.move_site(-1), width=38, description="site before"),
            button("▼", lambda: session.move_site(1), width=38, description="site after"),
            words_of,
            select(session, "statistic", session.statistics, label="Statistic", width=125),
            select(session, "view", options.views, label="View", width=170, words=words.view_name),
            gap="8px",
        ),
        text(sites.told.param.found, margin=(4, 0, 0, 0)),
    )


def _beside(page: Tensor) -> pn.Column:
    """What stands beside it, and what often does."""
    told, options = page.beside.told, page.session.options.param
    return column(
        text(markup.title("Beside it", "up to four other sites")),
        text(page.sites.told.param.suggested),
        text(options.refused.rx.pipe(markup.problem), visible=options.refused.rx.bool()),
        text(told.param.problem.rx.pipe(markup.problem), visible=told.param.problem.rx.bool()),
        text(told.param.legend),
        text(told.param.summary),
        visible=page.selection.told.param.there,
        margin=(0, 0, 6, 0),
    )


def _curves(page: Tensor) -> pn.Column:
    """The statistic of all of them over steps."""
    told = page.beside.told
    return column(
        text(told.param.curves, margin=(12, 0, 0, 0)),
        figure(page.beside.lines.figure),
        text(told.param.curves_summary),
        twin(page.twins, page.beside.lines.figure.name),
        visible=told.param.curves.rx.bool(),
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
            text(told.param.place, sizing_mode=None, width=190, margin=(6, 0, 0, 0)),
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
