"""The scripts that figures need, to be put into a file that opens offline."""

from __future__ import annotations

from collections.abc import Iterable

from bokeh.model import Model
from bokeh.models import TableWidget
from bokeh.resources import Component, Resources


def scripts(figures: Iterable[Model]) -> str:
    """Bokeh's own code, as HTML: as much as these figures need.

    Not `Resources.render`: once Panel is imported that brings scripts which are fetched.
    """
    parts: list[Component] = ["bokeh"]
    if any(isinstance(one, TableWidget) for figure in figures for one in figure.references()):
        parts.extend(("bokeh-widgets", "bokeh-tables"))
    code = Resources(mode="inline", components=parts).js_raw
    return "\n".join(f"<script>{one}</script>" for one in code)
