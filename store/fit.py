"""How one tensor would fit number formats, as a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..sketch.derive import derive
from ..sketch.formats import NumberFormat, number_format
from ..sketch.ranges import overflow, subnormal, underflow
from ..sketch.table import SketchTable

QUESTIONS = {"overflow": overflow, "underflow": underflow, "subnormal": subnormal}


def fit_formats(table: SketchTable, formats: Sequence[str]) -> pd.DataFrame:
    """By format, of the one row of `table`: shares with their bounds, and where the format ends.

    Bounds are of the elements that were looked at: of a sample `seen_share` is below 1.

    Raises:
        SettingError: there is no such format.
    """
    rows = [fit(table, number_format(name)) for name in formats]
    return pd.DataFrame(rows, index=pd.Index(list(formats), name="format", dtype=object))


def fit(table: SketchTable, target: NumberFormat) -> dict[str, float]:
    """The row of one format."""
    row: dict[str, float] = {}
    for question, share in QUESTIONS.items():
        # The largest float64 rounds to infinity: NumPy warns of numbers that are then not used.
        with np.errstate(all="ignore"):
            answer = share(table, target)
        row[question] = float(answer.value[0])
        row[f"{question}_low"] = float(answer.low[0])
        row[f"{question}_high"] = float(answer.high[0])
    return row | {
        "seen_share": float(derive(table, "seen_share")[0]),
        "max": target.max,
        "smallest_normal": target.smallest_normal,
        "smallest_subnormal": target.smallest_subnormal,
    }
