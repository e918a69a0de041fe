"""How tensors would fit formats, by histograms whose ends are open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ...sketch.formats import number_format
from ...sketch.ranges import QUESTIONS
from ...sketch.table import ABS_MIN, COUNT, FIRST_EXPONENT, MAX, MIN, OVER, UNDER, SketchTable
from ...sketch.tally import Tally

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def shares(
    exponents: Ints,
    counts: Ints,
    beyond: Ints,
    formats: Sequence[str],
    shift: Ints | int = 0,
) -> Floats:
    """float64 [formats, questions, 3, rows]: the shares of `QUESTIONS`, their least and greatest.

    What lies beyond the columns may lie anywhere there, so each share is looked at with all of it
    at either end of its room.

    Args:
        exponents: int64 [bins], ascending, without gaps.
        counts: int64 [rows, bins].
        beyond: int64 [2, rows]: how many lie below and above all columns.
        formats: names.
        shift: by which power of two elements are multiplied first; one, or one a row.

    Raises:
        SettingError: there is no such format.
    """
    lowest, highest = int(exponents[0]) - 1, int(exponents[-1]) + 1
    ends = [
        _tally(exponents, counts, beyond, low, high)
        for low, high in product((lowest, None), (highest, None))
    ]
    found = np.empty((len(formats), len(QUESTIONS), 3, len(counts)))
    for row, name in enumerate(formats):
        for number, question in enumerate(QUESTIONS.values()):
            with np.errstate(all="ignore"):  # the largest float64 rounds to infinity
                told = [question(end, number_format(name), shift=shift) for end in ends]
            low = np.min([one.low for one in told], axis=0)
            high = np.max([one.high for one in told], axis=0)
            found[row, number] = np.clip(told[0].value, low, high), low, high
    return found


def _tally(exponents: Ints, counts: Ints, beyond: Ints, low: int | None, high: int | None) -> Tally:
    """The histograms with what is beyond their columns at these exponents; None: beyond all."""
    table = SketchTable.empty(len(counts))
    inside = exponents - FIRST_EXPONENT
    table.histogram[:, inside] = counts
    bins = table.histogram.shape[1]
    for number, exponent, column in ((beyond[0], low, UNDER), (beyond[1], high, OVER)):
        place = -1 if exponent is None else exponent - FIRST_EXPONENT
        if 0 <= place < bins:
            table.histogram[:, place] += number
        else:
            table.counts[:, column] = number
    table.counts[:, COUNT] = counts.sum(axis=1) + beyond.sum(axis=0)
    # Nothing is known of the extremes: as bounds that no element need reach they decide nothing.
    table.moments[:, [MIN, MAX, ABS_MIN]] = -np.inf, np.inf, 0.0
    return replace(Tally.of(table), reached=np.zeros(len(counts), bool))
