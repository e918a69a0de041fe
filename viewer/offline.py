"""Figures in a file that opens offline: what draws each, and the scripts that all of them need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bokeh.document import Document
from bokeh.embed import components
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


def embedded(figures: Mapping[str, Model]) -> tuple[str, dict[str, str]]:
    """The script that draws figures, and by their names the places in which it does, as HTML.

    In a document of their own: Bokeh would ask the process's current one, which may be a page that
    a server of this process has closed.
    """
    if not figures:
        return "", {}
    document = Document()
    for figure in figures.values():
        document.add_root(figure)
    return components(dict(figures))
