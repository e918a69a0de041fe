"""Which number formats each tensor would fit, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import holoviews as hv
import pandas as pd

from ...sketch.errors import SettingError
from . import look
from .source import Data, Many, one_kind, source_of

FORMATS = ("bfloat16", "float16", "float8_e5m2", "float8_e4m3fn", "float4_e2m1fn")
SHARES = ("overflow", "underflow", "subnormal")


def format_table(
    data: Data,
    *,
    site: Many = None,
    kind: Many = None,
    name: str | None = None,
    step: int | None = None,
    formats: str | Sequence[str] = FORMATS,
    view: str | int = "merged",
    above: float = 0.0,
) -> hv.Table:
    """The share of each tensor that each format would lose, with the bounds that are certain.

    `overflow` is what exceeds the format's largest number, `underflow` what becomes 0, `subnormal`
    what lies below its smallest normal number; of the elements that are finite and not 0. Sites
    without a histogram at the step are left out. `plot.dframe()` is the table for pandas.

    Args:
        data: a run, or a LogFrame.
        site: labels.
        kind: only these kinds; activations by default, unless `site` is given.
        name: only sites in whose name this regular expression is found.
        step: a recorded step; of each site the last one by default.
        formats: a name, or several.
        view: `merged`; or a rank or coordinates as "tp=1", where `run.kept_ranks()` has them.
        above: only rows in which more than this share overflows or underflows.

    Raises:
        SettingError: nothing matches, there is no such format, or no site has a histogram.
    """
    source = source_of(data)
    if site is None and kind is None:
        kind = one_kind(source, "")
    names = [formats] if isinstance(formats, str) else list(formats)
    parts: list[pd.DataFrame] = []
    for one in source.choose(kind=kind, name=name, site=site):
        at = source.last_step(one) if step is None else step
        found = None if at is None else source.fit(one, at, formats=names, view=view)
        if found is not None:
            bounds = [f"{share}{end}" for share in SHARES for end in ("", "_low", "_high")]
            table = found[bounds].reset_index()
            table.insert(0, "site", one)
            table.insert(1, "step", at)
            parts.append(table)
    if not parts:
        when = "" if step is None else f" at step {step}"
        raise SettingError(f"No site that matches has a histogram{when}; see run.records().")
    table = pd.concat(parts, ignore_index=True)
    if above > 0:
        table = table[(table["overflow"] > above) | (table["underflow"] > above)]
    order = ["site", "step", "format"]
    plot = hv.Table(table, kdims=order, vdims=[one for one in table.columns if one not in order])
    return look.styled(
        plot,
        bokeh={"width": 1180, "height": 360, "fit_columns": False, "hooks": [_widths]},
        mpl={"fig_inches": (16, 9), "max_rows": 40},
    )


# `Any`: HoloViews' own plot of a table.
def _widths(plot: Any, _: object) -> None:
    for column in plot.handles["table"].columns:
        column.width = {"site": 330, "step": 50, "format": 110}.get(column.field, 88)
