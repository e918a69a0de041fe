"""Where everything stands on the page that compares runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import panel as pn

from .. import markup
from ..pages.compare import Compare
from ..session import MOST_OTHERS
from .twins import twin
from .widgets import button, card, cards, column, figure, select, several, text, text_input

MAPS = {"how far apart": "", "each run": "each"}


def compare_view(page: Compare) -> pn.FlexBox:
    """The answer and what runs look like over steps; beside it the sites that part first."""
    session, told = page.session, page.told
    options, maps = session.options.param, session.choice.param.maps
    return cards(
        card(
            pn.FlexBox(
                select(
                    session,
                    "other",
                    options.others,
                    label="Compare with",
                    width=200,
                    words=lambda run: run or "the latest other",
                ),
                several(
                    session,
                    "also",
                    options.others,
                    most=MOST_OTHERS - 1,
                    label="and",
                    placeholder="further runs",
                    width=200,
                ),
                select(
                    session, "kind", options.kinds, label="Kind", width=160, words=markup.kind_name
                ),
                select(session, "statistic", session.statistics, label="Statistic", width=125),
                select(session, "maps", MAPS, label="Show", width=150),
                text_input(
                    session,
                    "pattern",
                    label="Name matches",
                    placeholder="regular expression",
                    width=150,
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
                text(told.param.runs),
                figure(page.training.figure),
                twin(page.twins, "compare_training"),
                _difference(page, visible=maps.rx() == ""),
                _each(page, visible=maps.rx() == "each"),
                column(
                    text(told.param.site, margin=(8, 0, 0, 0)),
                    figure(page.site.figure),
                    twin(page.twins, "compare_site"),
                    visible=session.choice.param.site.rx.bool(),
                ),
                visible=told.param.answer.rx.bool(),
            ),
            flex="4 1 640px",
        ),
        card(
            text(told.param.sites),
            flex="1 1 460px",
            min_width=400,
            visible=told.param.sites.rx.bool(),
        ),
    )


# `visible`: what Panel takes in the place of a bool.
def _difference(page: Compare, *, visible: Any) -> pn.Column:
    """The other run over this one."""
    told = page.told.param
    return column(
        text(told.title, margin=(8, 0, 2, 0)),
        text(told.legend),
        figure(page.heatmap.figure),
        twin(page.twins, "compare_map"),
        text(told.summary),
        visible=visible,
    )


def _each(page: Compare, *, visible: Any) -> pn.Column:
    """Each run by itself, in the same colours."""
    session, told = page.session, page.each.told.param
    scales = {"by statistic": "", "powers of two": "log2", "linear": "linear"}
    parts = [
        (text(told.titles.rx()[number], margin=(8, 0, 2, 0)), figure(one.figure),
         twin(page.twins, one.name))
        for number, one in enumerate(page.each.maps)
    ]  # fmt: skip
    maps = column()

    def show(titles: Sequence[str]) -> None:
        # What is not shown is not there: Bokeh lays out no figures in a hidden box within a box.
        shown = [one for part, title in zip(parts, titles, strict=True) if title for one in part]
        if list(maps) != shown:
            maps.objects = shown

    page.each.told.param.watch(lambda event: show(event.new), ["titles"])
    show(page.each.told.titles)
    return column(
        select(session, "scale", scales, label="Shading", width=125, margin=(8, 0, 0, 0)),
        text(told.legend),
        maps,
        text(told.summary),
        visible=visible,
    )
