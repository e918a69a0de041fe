"""A plot as a file that needs nothing else."""

from __future__ import annotations

import warnings
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import holoviews as hv

from ...sketch.errors import SettingError
from ...sketch.writing import writing
from ..offline import embedded, scripts
from .formats import MOST_LINES
from .look import arranged

if TYPE_CHECKING:
    from .look import Plot

PICTURES = (".png", ".svg", ".pdf")
DPI = 144
"""Pixels an inch of a PNG."""


def save(plot: Plot, path: str | Path) -> Path:
    """Write a plot: as HTML to zoom in and read numbers from, offline; as PNG, SVG or PDF.

    HTML is drawn by Bokeh, pictures by Matplotlib (`pip install 'rankscope[notebook]'`). No browser
    is needed, and nothing is fetched.

    Args:
        plot: what the functions of this module return, or any HoloViews object.
        path: its ending says what is written.

    Raises:
        SettingError: it is no plot, the ending is another one, Matplotlib is not installed, or the
            file cannot be written.
    """
    if not isinstance(plot, hv.core.Dimensioned):
        raise SettingError(
            "`save` takes a plot, as `scalar_lines` and the others return them, or any HoloViews "
            f"object, got {type(plot).__name__}. A panel needs Python to answer its clicks: "
            "`rankscope report` writes a run as one file."
        )
    path = Path(path)
    ending = path.suffix.lower()
    if ending == ".html":
        page = _page(plot, path.stem)
        with writing(path):
            path.write_text(page, encoding="utf-8")
    elif ending not in PICTURES:
        endings = ", ".join((".html", *PICTURES))
        raise SettingError(f"A plot is saved as one of {endings}; got {path.name!r}.")
    elif "matplotlib" not in hv.Store.loaded_backends():
        raise SettingError(
            f"{path.name} is drawn by Matplotlib, which is not installed: "
            "pip install 'rankscope[notebook]', or save as .html."
        )
    elif isinstance(plot, hv.Table) and len(plot) >= MOST_LINES:
        raise SettingError(
            f"A picture of a table has at most {MOST_LINES - 1} rows, got {len(plot)}: choose "
            "sites or formats, or save as .html."
        )
    else:
        with writing(path), warnings.catch_warnings():
            # HoloViews looks for the extremes of an image, and there may be no number in it.
            warnings.filterwarnings("ignore", "All-NaN slice encountered", RuntimeWarning)
            hv.save(arranged(plot), path, fmt=ending[1:], backend="matplotlib", dpi=DPI)
    return path


def _page(plot: Plot, name: str) -> str:
    renderer = hv.renderer("bokeh").instance()
    renderer.notebook_context = True  # else it takes the process's current document, see `embedded`
    figure = renderer.get_plot_state(plot)
    script, places = embedded({name: figure})
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">'
        f"<title>{escape(name)}</title>{scripts([figure])}</head><body>{places[name]}{script}</body></html>"
    )
