"""Where everything stands on the page where one lands."""

from __future__ import annotations

from collections.abc import Sequence

import panel as pn

from ..findings import Card
from ..pages.triage import Triage
from .selection import training_view
from .widgets import card, cards, column, text

FINDING_CSS = """
:host { --mark: #8593a0; border: 1px solid var(--line); border-radius: 8px;
  box-shadow: inset 5px 0 0 var(--mark); }
:host(.error) { --mark: var(--bad); border-color: var(--bad-line); background: var(--bad-ground); }
:host(.warning) { --mark: #d55e00; border-color: var(--warn-line);
  background: var(--warn-ground); }
"""
GO_CSS = """
:host { width: 100%; }
:host(.go) .bk-btn.bk-btn-default { text-align: left; white-space: normal; overflow-wrap: anywhere;
  border: 0; padding: 7px 14px 3px 18px; background: none; font-size: 14px; font-weight: 600;
  line-height: 1.4; color: var(--ink); }
:host(.go) .bk-btn.bk-btn-default:hover { text-decoration: underline; }
:host(.go.error) .bk-btn.bk-btn-default { color: var(--bad-ink); }
:host(.go.warning) .bk-btn.bk-btn-default { color: var(--warn-ink); }
"""


def triage_view(page: Triage) -> pn.FlexBox:
    """What is wrong, what happened to the pipeline, and how training goes."""
    told = page.told
    return cards(
        column(
            _wrong(page),
            card(
                training_view(page.training, page.twins),
                sizing_mode="stretch_width",
                margin=(12, 0, 0, 0),
            ),
            styles={"flex": "3 1 640px", "min-width": "0"},
        ),
        card(
            text(told.param.pipeline),
            text(told.param.events, margin=(6, 0, 0, 0), visible=told.param.events.rx.bool()),
            text(told.param.mesh, margin=(14, 0, 0, 0)),
            text(told.param.attempts, margin=(14, 0, 0, 0)),
            flex="1 1 380px",
        ),
    )


def _wrong(page: Triage) -> pn.Column:
    """What is wrong: a line, the findings, each a way to go there, and what that rests on."""
    told = page.told
    now, earlier = column(), column()
    places: list[FindingPlace] = []

    def show(cards: Sequence[Card]) -> None:
        # A place is filled anew, not made anew, so that what the reader has unfolded stays so.
        places.extend(FindingPlace(page, number) for number in range(len(places), len(cards)))
        for place, filled in zip(places, cards, strict=False):
            place.show(filled)
        for shown, is_now in ((now, True), (earlier, False)):
            views = [places[i].view for i, one in enumerate(cards) if one.now is is_now]
            if list(shown) != views:
                shown.objects = views

    told.param.watch(lambda event: show(event.new), ["cards"])
    show(told.cards)
    return card(
        text(told.param.state),
        text(told.param.now, visible=told.param.now.rx.bool()),
        now,
        text(told.param.earlier, visible=told.param.earlier.rx.bool()),
        earlier,
        text(told.param.grounds),
        sizing_mode="stretch_width",
    )


class FindingPlace:
    """Where a finding stands: its sentence as a button that goes there, its facts, its advice."""

    def __init__(self, page: Triage, number: int) -> None:
        self.button = pn.widgets.Button(stylesheets=[GO_CSS], sizing_mode="stretch_width", margin=0)
        self.button.on_click(lambda *_: page.select_finding(number))
        self.facts = text("", margin=(0, 14, 0, 18))
        self.moments = text("", margin=(2, 14, 0, 18))
        self.advice = text("", margin=(2, 14, 7, 18))
        self.view = column(
            self.button,
            self.facts,
            self.moments,
            self.advice,
            margin=(6, 0, 0, 0),
            stylesheets=[FINDING_CSS],
        )

    def show(self, card: Card) -> None:
        """Fill it."""
        mood = card.severity if card.severity in ("error", "warning") else "notice"
        self.button.param.update(label=card.text, css_classes=["go", mood])
        self.facts.object, self.advice.object = card.facts, card.advice
        self.moments.param.update(object=card.moments, visible=bool(card.moments))
        self.view.css_classes = [mood]
