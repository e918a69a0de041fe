"""Below a plot: its table, and files of it."""

from __future__ import annotations

from html import escape
from typing import Any

import panel as pn

from ..pages.twins import Twins
from .widgets import column, text

SAVES = ("csv", "png", "svg")


# `visible`: what Panel takes in the place of a bool.
def twin(twins: Twins, name: str, *, visible: Any = True) -> pn.Column:
    """Buttons that unfold the table of the plot of that name and save it, and the table."""
    plot = escape(name)
    saves = "".join(
        f'<button type="button" data-save="{kind}" data-plot="{plot}">{kind.upper()}</button>'
        for kind in SAVES
    )
    fold = f'<button type="button" data-table="{plot}">Table</button>'
    buttons = f'<p class="twins" data-of="{plot}">{fold}{saves}</p>'
    html = twins.told.param.html
    return column(
        text(buttons),
        text(
            html.rx.pipe(lambda tables: tables.get(name, "")),
            visible=html.rx.pipe(lambda tables: name in tables),
        ),
        visible=visible,
    )
