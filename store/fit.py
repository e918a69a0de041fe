"""How one tensor would fit number formats, as a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ..sketch.derive import derive
from ..sketch.exact_counts import NONZERO, BlockExponents, CastCounts, ExactCount
from ..sketch.formats import NumberFormat
from ..sketch.ranges import QUESTIONS, Bounded, fit
from ..sketch.shared_scales import number_formats_named
from ..sketch.table import ZERO, Ints, SketchTable
from ..sketch.tally import Tally

ENDS = ("max", "smallest_normal", "smallest_subnormal")
"""Where a format ends."""


def fit_formats(
    table: SketchTable, counts: Mapping[ExactCount, Ints], formats: str | Sequence[str]
) -> pd.DataFrame:
    """By format, of the one row of `table`: shares with their bounds, and where the format ends.

    Bounds are of the elements that were looked at: of a sample `seen_share` is below 1.

    Args:
        counts: what was counted of the tensor beside; the answer with the narrowest bounds counts.

    Raises:
        SettingError: there is no such format.
    """
    tally = Tally.of(table)
    targets = number_formats_named(formats)
    # The largest float64 rounds to infinity: NumPy warns of numbers that are then not used.
    with np.errstate(all="ignore"):
        each = tally.take(np.zeros(len(targets), np.intp))
        asked = {question: share(each, targets) for question, share in QUESTIONS.items()}
        seen_share = float(derive(table, "seen_share")[0])
        rows = [
            _row(
                table, counts, target, {question: _at(one, row) for question, one in asked.items()}
            )
            | {"seen_share": seen_share}
            | {name: getattr(target, name) for name in ENDS}
            for row, target in enumerate(targets)
        ]
    names = [target.name for target in targets]
    return pd.DataFrame(rows, index=pd.Index(names, name="format", dtype=object))


def fit_row(shares: Mapping[str, Bounded]) -> dict[str, float]:
    """By question the share and its bounds, of one row."""
    row: dict[str, float] = {}
    for question, answer in shares.items():
        row[question] = float(answer.value[0])
        row[f"{question}_low"] = float(answer.low[0])
        row[f"{question}_high"] = float(answer.high[0])
    return row


def _row(
    table: SketchTable,
    counts: Mapping[ExactCount, Ints],
    target: NumberFormat,
    guaranteed: Mapping[str, Bounded],
) -> dict[str, float]:
    """Of each share what the histogram guarantees, or what was counted where that is narrower."""
    best = dict(guaranteed)
    for exact_count, found in counts.items():
        if isinstance(exact_count, BlockExponents):  # which tells of a tensor that is scaled
            continue
        if counted_of(exact_count, found) != nonzero(table):  # not all ranks, or parts, did
            continue
        for question, answer in fit(exact_count, found, target).items():
            if _width(answer) < _width(best[question]):
                best[question] = answer
    return fit_row(best)


def _at(found: Bounded, row: int) -> Bounded:
    one = slice(row, row + 1)
    return Bounded(found.value[one], found.low[one], found.high[one])


def counted_of(exact_count: ExactCount, counts: Ints) -> Ints:
    """int64: of how many finite elements that are not zero counts tell; of several rows, of each.

    Args:
        exact_count: what was counted.
        counts: int64 of its shape; of several rows with an axis in front.
    """
    if isinstance(exact_count, CastCounts):
        return counts[..., NONZERO]
    return counts.sum(axis=(-3, -2, -1))


def nonzero(table: SketchTable) -> int:
    """How many there are in the one row of a table."""
    return int(table.measured()[0] - table.counts[0, ZERO])


def _width(answer: Bounded) -> float:
    return float(answer.high[0] - answer.low[0])
