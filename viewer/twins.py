"""What plots show as tables: for those who cannot see them, and to take away."""

from __future__ import annotations

from html import escape
from math import isnan

import numpy as np
import pandas as pd

from . import words
from .columns import MISSING, NONFINITE, NUMBER
from .grid import Grid
from .series import Lines
from .spectrum import ASIDE, ASIDE_NAMES, Spectrum
from .tables import table

MOST_ROWS, MOST_COLUMNS = 300, 40
"""Of a table on the page; a file has all."""


def lines_table(lines: Lines | None) -> pd.DataFrame:
    """Lines by step, a column a rank; least and greatest where not all ranks have a line."""
    if lines is None:
        return pd.DataFrame()
    columns = {f"rank {rank}": lines.values[rank] for rank in sorted(lines.values)}
    if len(lines.drawn) < len(lines.values) or not lines.values:
        columns = {"least": lines.low, "greatest": lines.high} | columns
    return pd.DataFrame(columns, index=pd.Index(lines.steps, name="step"))


def grid_table(grid: Grid | None) -> pd.DataFrame:
    """Cells by first step, a column a row of sites; what is not finite as that, or missing."""
    if grid is None:
        return pd.DataFrame()
    values = np.exp2(grid.shade.astype(float)) if grid.logarithmic else grid.shade.astype(float)
    cells = np.where(np.isin(grid.state, (NUMBER, NONFINITE)), values, 0.0).astype(object)
    cells[grid.state == NONFINITE] = "not finite"
    cells[grid.state == MISSING] = np.nan
    there = grid.first >= 0
    index = pd.Index(grid.first[there], name="step")
    return pd.DataFrame(cells[:, there].T, index=index, columns=grid.names)


def spectrum_table(spectrum: Spectrum | None) -> pd.DataFrame:
    """Elements and shares by exponent, then what has none."""
    if spectrum is None:
        return pd.DataFrame()
    named = [f"2^{e} to 2^{e + 1}" for e in spectrum.exponents.tolist()]
    counts = [*spectrum.counts.tolist(), *(spectrum.aside[name] for name in ASIDE)]
    index = pd.Index([*named, *ASIDE_NAMES], name="|x|")
    shares = np.array(counts) / max(spectrum.total, 1)
    return pd.DataFrame({"elements": counts, "share": shares}, index=index)


def html(frame: pd.DataFrame, caption: str) -> str:
    """A table on the page: of a long or wide one as much as can be read."""
    if frame.empty:
        return f'<p class="summary">{escape(caption)}: nothing to show.</p>'
    rows = np.unique(np.linspace(0, len(frame) - 1, min(len(frame), MOST_ROWS)).astype(int))
    shown = frame.iloc[rows, :MOST_COLUMNS]
    if shown.shape != frame.shape:
        caption += f" ({len(shown)} of {words.count(len(frame), 'row')}, evenly spaced"
        caption += (
            f", and {shown.shape[1]} of {words.count(frame.shape[1], 'column')}; CSV has all)"
        )
    heads = [str(frame.index.name or ""), *(str(name) for name in shown.columns)]
    cells = [
        [escape(str(name)), *(_cell(value) for value in row)]
        for name, row in zip(shown.index, shown.to_numpy(object).tolist(), strict=True)
    ]
    return f'<div class="scroll">{table(caption, heads, cells, kind="twin")}</div>'


# `value`: a number, or a word in the place of one.
def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if isnan(value) else escape(words.number(value))
    return escape(str(value))
