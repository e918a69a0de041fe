"""Where everything stands on the page that compares two runs."""

from __future__ import annotations

import panel as pn

from .. import markup
from ..pages.compare import Compare
from .widgets import WIDGET_CSS, button, card, cards, column, figure, select, text


def compare_view(page: Compare) -> pn.FlexBox:
    """The answer and what both look like over steps; beside it the sites that part first."""
    session, told = page.session, page.told
    options = session.options.param
    return cards(
        card(
            pn.FlexBox(
                select(session, "other", options.others, label="Compare with", width=200),
                select(
                    session, "kind", options.kinds, label="Kind", width=160, words=markup.kind_name
                ),
                select(session, "statistic", session.statistics, label="Statistic", width=125),
                pn.widgets.TextInput.from_param(
                    session.choice.param.pattern,
                    label="Name matches",
                    placeholder="regular expression",
                    description=None,
                    width=150,
                    margin=0,
                    stylesheets=[WIDGET_CSS],
                ),
                button(
                    "Open the tensor",
                    lambda: session.visit("tensor"),
                    disabled=session.choice.param.site.rx.not_(),
                ),
                gap="10px",
            ),
            text(told.param.problem.rx.pipe(markup.problem), visible=told.param.problem.rx.bool()),
            column(
                text(told.param.answer, margin=(8, 0, 0, 0)),
                select(session, "training", options.names, width=180, margin=(8, 0, 0, 0)),
                figure(page.training.figure),
                text(told.param.title, margin=(8, 0, 2, 0)),
                text(told.param.legend),
                figure(page.heatmap.figure),
                text(told.param.summary),
                column(figure(page.site.figure), visible=session.choice.param.site.rx.bool()),
                visible=told.param.answer.rx.bool(),
            ),
            flex="4 1 640px",
        ),
        card(text(told.param.sites), flex="1 1 460px", min_width=400),
    )
