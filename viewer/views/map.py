"""Where everything stands on the Map."""

from __future__ import annotations

import panel as pn

from .. import markup, words
from ..pages.folds import Folds
from ..pages.map import MODULES_WIDTH, Map
from .selection import exponents_view, ranks_view, training_view
from .twins import twin
from .widgets import WIDGET_CSS, button, card, cards, figure, select, text, text_input


def map_view(page: Map) -> pn.FlexBox:
    """Everything over steps, one axis below the other; beside it the selected cell."""
    return cards(_left(page), _right(page))


def _left(page: Map) -> pn.Column:
    told = page.told
    return card(
        training_view(page.training, page.twins),
        pn.Spacer(height=8),
        _controls(page),
        pn.Row(
            text(told.param.heatmap),
            text(told.param.legend, sizing_mode=None, width=490),
            margin=(10, 0, 2, 0),
            sizing_mode="stretch_width",
            visible=told.param.drawn,
        ),
        text(told.param.problem.rx.pipe(markup.problem), visible=told.param.problem.rx.bool()),
        pn.Row(
            text(page.folds.told.param.beside, sizing_mode=None, width=MODULES_WIDTH),
            figure(page.heatmap.figure),
            sizing_mode="stretch_width",
            margin=0,
            visible=told.param.drawn,
        ),
        text(told.param.heatmap_summary, visible=told.param.drawn),
        twin(page.twins, "heatmap", visible=told.param.drawn),
        ranks_view(page.selection, page.twins),
        flex="4 1 640px",
    )


def _controls(page: Map) -> pn.FlexBox:
    """What the heatmap shows: in one line on a window of 1440 pixels."""
    session = page.session
    options = session.options.param
    scales = {"by statistic": "", "powers of two": "log2", "linear": "linear"}
    return pn.FlexBox(
        select(session, "kind", options.kinds, label="Kind", width=145, words=markup.kind_name),
        select(session, "statistic", session.statistics, label="Statistic", width=105),
        select(session, "view", options.views, label="View", width=165, words=words.view_name),
        select(session, "scale", scales, label="Shading", width=115),
        _levels(page.folds),
        text_input(session, "pattern", label="Name matches", placeholder="regex", width=130),
        gap="10px",
    )


def _levels(folds: Folds) -> pn.widgets.Select:
    """To which depth modules are folded."""
    told = folds.told
    menu = pn.widgets.Select(
        label="Modules",
        options=told.levels,
        value=told.level,
        width=165,
        margin=0,
        stylesheets=[WIDGET_CSS],
    )
    # Both at once: a menu that does not know its value takes another one.
    told.param.watch(
        lambda *_: menu.param.update(options=told.levels, value=told.level), ["levels", "level"]
    )
    menu.param.watch(lambda event: folds.choose(event.new), ["value"])
    return menu


def _right(page: Map) -> pn.Column:
    """The selected cell."""
    session = page.session
    deeper = button(
        "Open the tensor",
        lambda: session.visit("tensor"),
        visible=session.choice.param.site.rx.bool(),
        margin=(6, 0, 6, 0),
    )
    return card(
        text(page.selection.told.param.cell),
        deeper,
        exponents_view(page.selection, page.twins),
        flex="1 1 420px",
        min_width=400,
    )
