"""Which number formats each tensor would fit, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import holoviews as hv

from ...sketch.errors import SettingError
from ...store.format_table import FITS, NOT_KNOWN
from . import look
from .opening import source_of
from .source import Data, Many

if TYPE_CHECKING:
    from ...store.format_table import Scale

FORMATS = ("bfloat16", "float16", "float8_e5m2", "float8_e4m3fn", "float4_e2m1fn")
WIDTHS = {"site": 330, "format": 110, "verdict": 80}
"""Pixels of columns; 90 for others."""
WIDTH_INCHES, LINE_INCHES, MOST_LINES = 18, 0.25, 100
"""Of a picture; of more lines none is made."""
BOUNDS = ("", "_low", "_high")
SHOWN = [f"{share}{end}" for share in ("overflow", "underflow", "subnormal") for end in BOUNDS]


def format_table(
    data: Data,
    *,
    site: Many = None,
    kind: Many = None,
    name: str | None = None,
    steps: int | tuple[int, int] | None = None,
    formats: str | Sequence[str] = FORMATS,
    scale: Scale = 0,
    most_overflow: float = 0.0,
    most_underflow: float = 0.01,
    broken: bool = False,
) -> look.Plot:
    """Which tensors would break in which formats: what each would lose in its worst step.

    `overflow` is what exceeds the format's largest number, `underflow` what becomes 0, `subnormal`
    what lies below its smallest normal number: shares of the elements that are finite and not 0,
    each with the bounds that are certain. `verdict` is fits, breaks, may break, or not known.
    `plot.dframe()` is the table for pandas, `Run.format_table` has more.

    Args:
        data: a run, or a LogFrame.
        site: labels.
        kind: only these kinds; all by default.
        name: only sites in whose name this regular expression is found.
        steps: a step, or first and last; all by default.
        formats: a name, or several; of a run those with a scale by block, too.
        scale: the exponent of a power of two by which tensors are multiplied first, one for all or
            one for each kind; of a run "site" or "kind": the best.
        most_overflow: the share of a tensor that may overflow where it fits.
        most_underflow: the share that may become zero.
        broken: only what does not fit.

    Raises:
        SettingError: nothing matches, or there is no such format or scale.
    """
    source = source_of(data)
    sites = source.choose(kind=kind, name=name, site=site)
    if not sites:
        raise SettingError("No site has been recorded yet.")
    names = [formats] if isinstance(formats, str) else list(formats)
    most = (most_overflow, most_underflow)
    table = source.fits(sites, steps=steps, formats=names, scale=scale, most=most).reset_index()
    if broken:
        table = table[~table["verdict"].isin([FITS, NOT_KNOWN])]
    told = ["verdict", "shift", *SHOWN]
    plot = hv.Table(table[["site", "format", *told]], kdims=["site", "format"], vdims=told)
    lines = len(table) + 1  # with the names of the columns
    return look.styled(
        plot,
        bokeh={"width": 1240, "height": 360, "fit_columns": False, "hooks": [_widths]},
        mpl={
            "fig_inches": WIDTH_INCHES,
            "aspect": WIDTH_INCHES / (LINE_INCHES * lines),
            "max_rows": lines,
            "max_value_len": max(map(len, sites)),
        },
    )


# `Any`: HoloViews' own plot of a table.
def _widths(plot: Any, _: object) -> None:
    for column in plot.handles["table"].columns:
        column.width = WIDTHS.get(column.field, 90)
