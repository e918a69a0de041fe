"""How a tensor would fit formats, by a histogram whose ends are open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...sketch.table import ABS_MIN, COUNT, FIRST_EXPONENT, MAX, MIN, OVER, UNDER, SketchTable
from ...store.fit import fit_formats

if TYPE_CHECKING:
    from ..spectrum import Spectrum

SHARES = ("overflow", "underflow", "subnormal")


def fit(spectrum: Spectrum, beyond: tuple[int, int], formats: Sequence[str]) -> pd.DataFrame:
    """By format the shares that are lost, with bounds; as `Run.formats`.

    What lies beyond the columns may lie anywhere there, so each share is looked at with all of it
    at either end of its room.

    Args:
        spectrum: the histogram, and how many lie below and above it.
        beyond: the first and the last exponent that the histogram has.
        formats: names.

    Raises:
        SettingError: there is no such format.
    """
    ends = [
        fit_formats(_table(spectrum, low, high), {}, formats)
        for low in (beyond[0] - 1, FIRST_EXPONENT - 1)
        for high in (beyond[1] + 1, None)
    ]
    found = ends[0].copy()
    for share in SHARES:
        low = np.min([one[f"{share}_low"] for one in ends], axis=0)
        high = np.max([one[f"{share}_high"] for one in ends], axis=0)
        found[f"{share}_low"], found[f"{share}_high"] = low, high
        found[share] = np.clip(found[share], low, high)
    return found


def _table(spectrum: Spectrum, low: int, high: int | None) -> SketchTable:
    """The histogram with what is beyond its columns at these exponents; None: above all bins."""
    table = SketchTable.empty(1)
    bins = table.histogram[0]
    bins[spectrum.exponents - FIRST_EXPONENT] = spectrum.counts
    under, over = spectrum.aside["under"], spectrum.aside["over"]
    if low >= FIRST_EXPONENT:
        bins[low - FIRST_EXPONENT] += under
    else:
        table.counts[0, UNDER] = under
    if high is not None and high - FIRST_EXPONENT < len(bins):
        bins[high - FIRST_EXPONENT] += over
    else:
        table.counts[0, OVER] = over
    table.counts[0, COUNT] = spectrum.total
    # Nothing is known of the extremes: they decide nothing.
    table.moments[0, [MIN, MAX, ABS_MIN]] = -np.inf, np.inf, 0.0
    return table
