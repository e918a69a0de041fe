"""Where the selected cell and a training statistic stand, on whichever page shows them."""

from __future__ import annotations

import panel as pn

from ...sketch.formats import FORMATS
from .. import markup
from ..pages.selection import Selection
from ..pages.training import Training
from ..pages.twins import Twins
from .twins import twin
from .widgets import column, figure, select, text


def training_view(training: Training, twins: Twins) -> pn.Column:
    """The statistic's name to choose, what is said of it, its lines, and their table."""
    session = training.session
    return column(
        pn.Row(
            text(markup.title("Training"), width=74, sizing_mode=None, margin=(5, 0, 0, 0)),
            select(session, "training", session.options.param.names, width=180),
            text(training.told.param.summary, margin=(7, 0, 0, 12)),
            margin=0,
            sizing_mode="stretch_width",
        ),
        figure(training.lines.figure),
        twin(twins, training.lines.figure.name),
    )


def exponents_view(selection: Selection, twins: Twins) -> pn.Column:
    """The exponents of the selected cell against a format, and what each format would lose."""
    told = selection.told
    formats = {"the site's own format": ""} | {name: name for name in FORMATS}
    menu = select(
        selection.session, "format", formats, label="Compare with", width=200, margin=(10, 0, 4, 0)
    )
    return column(
        figure(selection.exponents.layout),
        text(told.param.exponents_summary),
        twin(twins, selection.exponents.figure.name),
        menu,
        text(told.param.fit, margin=(6, 0, 0, 0)),
        visible=told.param.there,
    )


def ranks_view(selection: Selection, twins: Twins) -> pn.Column:
    """The selected site on each rank."""
    return column(
        text(selection.told.param.ranks, margin=(12, 0, 0, 0)),
        figure(selection.ranks.figure),
        text(selection.told.param.ranks_summary, margin=(4, 0, 0, 0)),
        twin(twins, selection.ranks.figure.name),
        visible=selection.told.param.ranks.rx.bool(),
    )
