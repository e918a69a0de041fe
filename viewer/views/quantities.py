"""Where everything stands on the page of derived quantities."""

from __future__ import annotations

import panel as pn

from .. import markup
from ..pages.quantities import Quantities
from .selection import training_view
from .twins import twin
from .widgets import button, card, column, figure, select, text, text_input

AXES = {"as fits": "", "powers of two": "log2", "linear": "linear"}


def quantities_view(page: Quantities) -> pn.Column:
    """The question, then lines over steps, or a vector over steps and at the selected one."""
    told, session = page.told, page.session
    is_vector = told.param.shown.rx() == "vector"
    return card(
        training_view(page.training, page.twins),
        _question(page),
        text(told.param.problem.rx.pipe(markup.problem), visible=told.param.problem.rx.bool()),
        text(told.param.title, margin=(10, 0, 2, 0)),
        text(told.param.legend),
        column(
            figure(page.lines.figure),
            twin(page.twins, "quantity"),
            visible=told.param.shown.rx() == "lines",
        ),
        column(
            figure(page.heatmap.figure),
            twin(page.twins, "quantity_map"),
            figure(page.vector.figure),
            twin(page.twins, "quantity_vector"),
            visible=is_vector,
        ),
        text(told.param.summary),
        button(
            "Open the tensor",
            lambda: session.visit("tensor"),
            disabled=session.choice.param.site.rx.not_(),
            margin=(8, 0, 0, 0),
        ),
        sizing_mode="stretch_width",
        margin=(10, 0, 0, 0),
    )


def _question(page: Quantities) -> pn.FlexBox:
    session, told = page.session, page.told
    return pn.FlexBox(
        select(
            session, "quantity", told.param.names, label="Quantity", width=220,
            words=lambda name: name or page.first,
        ),
        text_input(
            session, "pattern", label="Name matches", placeholder="regular expression", width=160
        ),
        select(session, "scale", AXES, label="Axis", width=130),
        select(
            session, "module", told.param.modules, label="Vector of", width=240,
            words=lambda name: name or page.first_part,
            visible=told.param.shown.rx() == "vector",
        ),
        gap="10px",
        margin=(8, 0, 0, 0),
    )  # fmt: skip
