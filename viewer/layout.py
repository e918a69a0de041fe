"""Where everything stands: Panel's panes and widgets, bound to a page's texts and choice.

The only file that knows Panel's widgets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import panel as pn
import param
from bokeh.document import Document
from panel.io.notifications import NotificationAreaBase
from panel.io.resources import LOCAL_DIST

from ..sketch.formats import FORMATS
from . import markup, words
from .findings import Card
from .page import Page

CSS = Path(__file__).with_name("style.css").read_text(encoding="utf-8")

BODY_CSS = """
html, body { background: #f4f6f8; }
body { padding: 14px 18px 24px; box-sizing: border-box; height: auto; min-height: 100%; }
"""
CARD = {
    "background": "#ffffff",
    "border": "1px solid #e1e6eb",
    "border-radius": "10px",
    "padding": "12px 14px",
    "margin": "0",
}
FINDING_CSS = """
:host { --mark: #8593a0; border: 1px solid #d5dce3; border-radius: 8px;
  box-shadow: inset 5px 0 0 var(--mark); }
:host(.error) { --mark: #d6006c; border-color: #efb3d0; background: #fdf6fa; }
:host(.warning) { --mark: #d55e00; border-color: #efc09c; background: #fef9f5; }
"""
GO_CSS = """
:host { width: 100%; }
:host(.go) .bk-btn.bk-btn-default { text-align: left; white-space: normal; overflow-wrap: anywhere;
  border: 0; padding: 7px 14px 3px 18px; background: none; font-size: 14px; font-weight: 600;
  line-height: 1.4; color: #17212b; }
:host(.go) .bk-btn.bk-btn-default:hover { text-decoration: underline; }
:host(.go.error) .bk-btn.bk-btn-default { color: #9d0050; }
:host(.go.warning) .bk-btn.bk-btn-default { color: #8f3d00; }
"""
WIDGET_CSS = """
:host { font: 12.5px "Segoe UI", "Helvetica Neue", "Liberation Sans", Arial, sans-serif; }
.bk-input-group > label, label { color: #566370; font-size: 11.5px; }
"""


def prepare(document: Document) -> None:
    """Set Panel up for a session, so that it fetches nothing from outside this machine."""
    # Panel learns this from the first request; a session that a websocket makes anew has none,
    # and would send the browser to a content delivery network for its style sheets.
    document.template_variables["dist_url"] = LOCAL_DIST
    pn.extension(notifications=True, reconnect=True, raw_css=[BODY_CSS])


def forget(document: Document) -> None:
    """Let go of what Panel and Bokeh keep of a session that ended before a browser had loaded it.

    Panel's notification area would hold the whole page for ever (panel 1.9.4). A document that was
    destroyed still holds the models it never sent (bokeh 3.9), and is itself held for a while by
    the context of whatever ran last in it.
    """
    views: dict[str, Any] = pn.state._views  # pyright: ignore[reportPrivateUsage]  # no public door
    for key, (view, _, owner, _) in list(views.items()):
        if owner is document and isinstance(view, NotificationAreaBase):
            views.pop(key, None)
    document.models.flush_synced()


def page_view(page: Page) -> pn.Column:
    """The whole page."""
    told = page.told
    return pn.Column(
        text(told.param.header),
        wrong(page),
        text(told.param.events, margin=(8, 0, 0, 0), visible=told.param.events.rx.bool()),
        pn.FlexBox(
            left(page), right(page), gap="12px", align_items="flex-start", margin=(12, 0, 0, 0)
        ),
        sizing_mode="stretch_width",
        margin=0,
    )


def text(content: param.Parameter | str, **settings: Any) -> pn.pane.HTML:
    """One of the page's texts."""
    settings = {"sizing_mode": "stretch_width", "margin": 0} | settings
    return pn.pane.HTML(content, stylesheets=[CSS], **settings)


def figure(model: object) -> pn.pane.Bokeh:
    """A Bokeh figure in its place."""
    return pn.pane.Bokeh(model, sizing_mode="stretch_width", margin=0)


def wrong(page: Page) -> pn.Column:
    """What is wrong: a line, the findings, each a way to go there, and what that rests on."""
    told = page.told
    shown = pn.Column(
        sizing_mode="stretch_width", margin=0, styles={"max-height": "40vh", "overflow-y": "auto"}
    )
    places: list[FindingPlace] = []

    def show(cards: Sequence[Card]) -> None:
        # A place is filled anew, not made anew, so that what the reader has unfolded stays so.
        places.extend(FindingPlace(page, number) for number in range(len(places), len(cards)))
        for place, card in zip(places, cards, strict=False):
            place.show(card)
        if len(shown) != len(cards):
            shown.objects = [place.view for place in places[: len(cards)]]

    told.param.watch(lambda event: show(event.new), ["cards"])
    show(told.cards)
    return pn.Column(
        text(told.param.state),
        shown,
        text(told.param.grounds),
        sizing_mode="stretch_width",
        styles=CARD | {"padding": "8px 14px", "margin": "10px 0 0"},
    )


class FindingPlace:
    """Where a finding stands: its sentence as a button that goes there, its facts, its advice."""

    def __init__(self, page: Page, number: int) -> None:
        self.button = pn.widgets.Button(stylesheets=[GO_CSS], sizing_mode="stretch_width", margin=0)
        self.button.on_click(lambda *_: page.select_finding(number))
        self.facts = text("", margin=(0, 14, 0, 18))
        self.advice = text("", margin=(2, 14, 7, 18))
        self.view = pn.Column(
            self.button,
            self.facts,
            self.advice,
            sizing_mode="stretch_width",
            margin=(6, 0, 0, 0),
            stylesheets=[FINDING_CSS],
        )

    def show(self, card: Card) -> None:
        """Fill it."""
        mood = card.severity if card.severity in ("error", "warning") else "notice"
        self.button.param.update(label=card.text, css_classes=["go", mood])
        self.facts.object, self.advice.object = card.facts, card.advice
        self.view.css_classes = [mood]


def left(page: Page) -> pn.Column:
    """Everything over steps, one axis below the other."""
    told = page.told
    chosen = page.choice.param.site.rx.bool()
    return pn.Column(
        pn.Row(
            text(markup.title("Training"), width=74, sizing_mode=None, margin=(5, 0, 0, 0)),
            select(page, "training", told.param.names, width=180),
            text(told.param.training_summary, margin=(7, 0, 0, 12)),
            margin=0,
            sizing_mode="stretch_width",
        ),
        figure(page.training.figure),
        pn.Spacer(height=8),
        controls(page),
        pn.Row(
            text(told.param.heatmap),
            text(told.param.legend, sizing_mode=None, width=490),
            margin=(10, 0, 2, 0),
            sizing_mode="stretch_width",
        ),
        text(told.param.problem.rx.pipe(markup.problem), visible=told.param.problem.rx.bool()),
        figure(page.heatmap.figure),
        text(told.param.heatmap_summary),
        pn.Column(
            text(told.param.ranks, margin=(12, 0, 0, 0)),
            figure(page.ranks.figure),
            text(told.param.ranks_summary, margin=(4, 0, 0, 0)),
            visible=chosen,
            sizing_mode="stretch_width",
            margin=0,
        ),
        styles=CARD | {"flex": "4 1 640px", "min-width": "0"},
    )


def controls(page: Page) -> pn.FlexBox:
    """What the heatmap shows."""
    told, choice = page.told, page.choice
    whole = pn.widgets.Button(
        label="All steps",
        margin=(19, 0, 0, 0),
        width=86,
        disabled=choice.param.zoom.rx.is_(None),
        stylesheets=[WIDGET_CSS],
    )
    whole.on_click(lambda *_: page.whole())
    scales = {"by statistic": "", "powers of two": "log2", "linear": "linear"}
    return pn.FlexBox(
        select(page, "kind", told.param.kinds, label="Kind", width=160, words=markup.kind_name),
        select(page, "statistic", page.statistics, label="Statistic", width=125),
        select(page, "view", told.param.views, label="View", width=170, words=words.view_name),
        select(page, "scale", scales, label="Shading", width=125),
        pn.widgets.TextInput.from_param(
            choice.param.pattern,
            label="Name matches",
            placeholder="regular expression",
            description=None,
            width=150,
            margin=0,
            stylesheets=[WIDGET_CSS],
        ),
        whole,
        gap="10px",
    )


def right(page: Page) -> pn.Column:
    """The selected cell."""
    told = page.told
    formats = {"the site's own format": ""} | {name: name for name in FORMATS}
    return pn.Column(
        text(told.param.selection),
        pn.Column(
            figure(page.selection.exponents.layout),
            text(told.param.exponents_summary),
            select(page, "format", formats, label="Compare with", width=200, margin=(10, 0, 4, 0)),
            text(told.param.fit, margin=(6, 0, 0, 0)),
            visible=page.choice.param.site.rx.bool(),
            sizing_mode="stretch_width",
            margin=0,
        ),
        styles=CARD | {"flex": "1 1 420px", "box-sizing": "border-box"},
        min_width=400,
    )


# `options`: a list, a dict or a parameter that holds a list.
def select(
    page: Page,
    attribute: str,
    options: Any,
    *,
    label: str = "",
    words: Callable[[str], str] = str,
    **settings: Any,
) -> pn.widgets.Select:
    """A menu for one part of the choice, which keeps a value that it does not know."""
    parameter = page.choice.param[attribute]

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
