"""Where everything stands on the page of ranks."""

from __future__ import annotations

import panel as pn

from .. import markup
from ..pages.ranks import Ranks
from .selection import training_view
from .twins import twin
from .widgets import button, card, cards, column, figure, select, text


def ranks_view(page: Ranks) -> pn.FlexBox:
    """Everything over steps, one axis below the other; beside it who stands out."""
    session, told = page.session, page.told
    return cards(
        card(
            training_view(page.training, page.twins),
            pn.FlexBox(
                select(session, "statistic", session.statistics, label="Statistic", width=125),
                button(
                    "All steps",
                    session.show_all_steps,
                    width=86,
                    disabled=session.choice.param.zoom.rx.is_(None),
                ),
                button(
                    "Open the tensor",
                    lambda: session.visit("tensor"),
                    disabled=session.choice.param.site.rx.not_(),
                ),
                gap="10px",
                margin=(8, 0, 0, 0),
            ),
            text(told.param.problem.rx.pipe(markup.problem), visible=told.param.problem.rx.bool()),
            column(
                text(told.param.title, margin=(10, 0, 2, 0)),
                text(told.param.legend),
                figure(page.heatmap.figure),
                twin(page.twins, "rank_map"),
                text(told.param.summary),
                text(told.param.numbers, margin=(6, 0, 0, 0)),
                visible=told.param.problem.rx.not_(),
            ),
            flex="4 1 640px",
        ),
        card(
            # What was counted comes before what is inferred.
            text(told.param.divergences),
            text(told.param.outliers, margin=(16, 0, 0, 0)),
            text(told.param.agreement, margin=(16, 0, 0, 0)),
            flex="1 1 460px",
            min_width=400,
        ),
    )
