"""What pages are put together from: texts, figures, menus, cards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import panel as pn
import param
from panel.viewable import Viewable

from ..session import Session

CSS = (Path(__file__).parent.parent / "style.css").read_text(encoding="utf-8")

CARD = {
    "background": "var(--surface)",
    "border": "1px solid var(--rule)",
    "border-radius": "10px",
    "padding": "12px 14px",
    "box-sizing": "border-box",
}
WIDGET_CSS = """
:host { font: 12.5px "Segoe UI", "Helvetica Neue", "Liberation Sans", Arial, sans-serif; }
.bk-input-group > label, label { color: var(--muted); font-size: 11.5px; }
.bk-input { background-color: var(--field); color: var(--ink); border-color: var(--line); }
.bk-input::placeholder { color: var(--muted); }
.bk-btn.bk-btn-default { background: var(--field); color: var(--ink);
  border: 1px solid var(--line); }
.bk-btn.bk-btn-default:hover { background: var(--hover); }
.noUi-target { background: var(--hover); border-color: var(--line); box-shadow: none; }
.noUi-handle { background: var(--surface); border-color: var(--muted); box-shadow: none; }
.bk-btn.bk-btn-default:disabled { color: var(--muted); }
"""


def text(content: param.Parameter | str, **settings: Any) -> pn.pane.HTML:
    """One of the page's texts."""
    settings = {"sizing_mode": "stretch_width", "margin": 0} | settings
    return pn.pane.HTML(content, stylesheets=[CSS], **settings)


def figure(model: object) -> pn.pane.Bokeh:
    """A Bokeh figure in its place."""
    return pn.pane.Bokeh(model, sizing_mode="stretch_width", margin=0)


# `settings`: Panel's, of many types.
def column(*parts: Viewable, **settings: Any) -> pn.Column:
    """Parts one below the other, as wide as there is room."""
    return pn.Column(*parts, **({"sizing_mode": "stretch_width", "margin": 0} | settings))


def card(*parts: Viewable, flex: str = "1 1 100%", **settings: Any) -> pn.Column:
    """Parts in a frame of their own.

    Args:
        parts: one below the other.
        flex: how it grows and shrinks beside other cards: CSS's `flex`.
        settings: Panel's.
    """
    styles = CARD | {"flex": flex, "min-width": "0"}
    return pn.Column(*parts, styles=styles, **({"margin": 0} | settings))


def cards(*parts: Viewable) -> pn.FlexBox:
    """Cards beside one another, or one below the other where there is no room."""
    return pn.FlexBox(*parts, gap="12px", align_items="flex-start", margin=(10, 0, 0, 0))


# `options`: a list, a dict or a parameter that holds a list.
def select(
    session: Session,
    attribute: str,
    options: Any,
    *,
    label: str = "",
    words: Callable[[str], str] = str,
    **settings: Any,
) -> pn.widgets.Select:
    """A menu for one part of the choice, which keeps a value that it does not know."""
    parameter = session.choice.param[attribute]

    def named(known: Sequence[str] | dict[str, str], value: str) -> dict[str, str]:
        menu = dict(known) if isinstance(known, dict) else {words(item): item for item in known}
        return menu if value in menu.values() else menu | {words(value): value}

    return pn.widgets.Select.from_param(
        parameter,
        label=label,
        description=None,
        options=param.bind(named, options, parameter),
        stylesheets=[WIDGET_CSS],
        **({"margin": 0} | settings),
    )


def several(
    session: Session, attribute: str, options: Any, *, most: int, label: str, **settings: Any
) -> pn.widgets.MultiChoice:
    """A menu for a part of the choice that is a list of at most so many."""
    parameter = session.choice.param[attribute]

    def named(known: Sequence[str], values: Sequence[str]) -> dict[str, str]:
        # Choices.js, which draws it, takes labels for HTML (bokeh 3.9).
        return {escape(value): value for value in (*known, *values)}

    return pn.widgets.MultiChoice.from_param(
        parameter,
        label=label,
        description=None,
        options=param.bind(named, options, parameter),
        max_items=most,
        stylesheets=[WIDGET_CSS],
        **({"margin": 0} | settings),
    )


def text_input(
    session: Session, attribute: str, *, label: str, **settings: Any
) -> pn.widgets.TextInput:
    """A box for one part of the choice, which counts once Enter is pressed or the box is left."""
    choice = session.choice
    box = pn.widgets.TextInput(
        value=getattr(choice, attribute),
        label=label,
        description=None,
        stylesheets=[WIDGET_CSS],
        **({"margin": 0} | settings),
    )

    def typed(event: param.parameterized.Event) -> None:
        # Panel tells of Enter without the document's lock, under which figures change (1.9.4).
        if event.new != getattr(choice, attribute):
            session.later(partial(setattr, choice, attribute, event.new))

    box.param.watch(typed, ["value"])
    choice.param.watch(lambda event: box.param.update(value=event.new), [attribute])
    return box


def button(label: Any, clicked: Callable[[], None], **settings: Any) -> pn.widgets.Button:
    """A button beside the menus; its label is a text, or a parameter that holds one."""
    made = pn.widgets.Button(
        label=label, stylesheets=[WIDGET_CSS], **({"margin": (19, 0, 0, 0)} | settings)
    )
    made.on_click(lambda *_: clicked())
    return made
