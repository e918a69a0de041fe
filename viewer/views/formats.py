"""Where everything stands on the page of formats."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

import panel as pn

from .. import markup
from ..pages.formats import ROWS, Formats
from ..session import Session
from .selection import training_view
from .widgets import WIDGET_CSS, button, card, column, select, text, text_input


def formats_view(page: Formats) -> pn.Column:
    """The question, its answer by format, and the table of sites."""
    told = page.told
    return column(
        card(
            training_view(page.training, page.twins),
            _question(page),
            text(told.param.problem.rx.pipe(markup.problem), visible=told.param.problem.rx.bool()),
            text(told.param.answer, margin=(10, 0, 0, 0)),
            text(told.param.reasons, margin=(4, 0, 0, 0)),
            _downloads(page),
            sizing_mode="stretch_width",
            margin=(10, 0, 0, 0),
        ),
        card(
            _pager(page),
            text(told.param.table, styles={"overflow-x": "auto"}),
            text(told.param.summary, margin=(8, 0, 0, 0)),
            sizing_mode="stretch_width",
            margin=(12, 0, 0, 0),
        ),
    )


def _question(page: Formats) -> pn.FlexBox:
    session = page.session
    kinds = session.options.param.kinds
    every = kinds.rx.pipe(
        lambda known: {"all kinds": ""} | {markup.kind_name(kind): kind for kind in known}
    )
    steps = {
        "healthy or chosen step": "",
        "the selected step": "step",
        "worst of the visible steps": "steps",
    }
    return pn.FlexBox(
        select(session, "of", every, label="Kind", width=140),
        _entry(session, "pattern", "Name matches", "regular expression", 160),
        select(session, "over", steps, label="When", width=205),
        _entry(session, "formats", "Formats", "e2m1,e4m3,e5m2,fp16,bf16", 225),
        _entry(session, "times", "Times a power of two", "4, weight=4, site or kind", 205),
        button("Best by site", lambda: _times(session, "site")),
        button("Best by kind", lambda: _times(session, "kind")),
        button("As it is", lambda: _times(session, "")),
        _entry(session, "most", "May be lost", "0:0.01", 80),
        gap="10px",
    )


def _times(session: Session, text: str) -> None:
    session.choice.times = text


def _entry(
    session: Session, attribute: str, label: str, hint: str, width: int
) -> pn.widgets.TextInput:
    return text_input(session, attribute, label=label, placeholder=hint, width=width)


def _downloads(page: Formats) -> pn.FlexBox:
    return pn.FlexBox(
        _download("Table as CSV", "formats.csv", page.csv),
        _download("Recipe as JSON", "recipe.json", page.recipe),
        gap="10px",
        margin=(10, 0, 0, 0),
    )


def _download(label: str, filename: str, made: Callable[[], str]) -> pn.widgets.FileDownload:
    return pn.widgets.FileDownload(
        callback=lambda: StringIO(made()),
        filename=filename,
        label=label,
        stylesheets=[WIDGET_CSS],
        margin=0,
        width=150,
    )


def _pager(page: Formats) -> pn.FlexBox:
    told = page.told
    last: Any = told.param.first.rx() + ROWS >= told.param.total.rx()
    return pn.FlexBox(
        button("‹ worse", lambda: page.turn(-1), disabled=told.param.first.rx() == 0, margin=0),
        button("better ›", lambda: page.turn(1), disabled=last, margin=0),
        button(
            "Open the tensor",
            lambda: page.session.visit("tensor"),
            disabled=page.session.choice.param.site.rx.not_(),
            margin=0,
        ),
        gap="10px",
        margin=(0, 0, 6, 0),
    )
