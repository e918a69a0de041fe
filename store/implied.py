"""What is not written because other numbers imply it. Pure NumPy.

The exact moments and the float32 statistics that are made of them agree in their leading digits. So
of each moment only that is stored by which it differs from what the statistics say of it: half of
its digits. And of a record of one rank the spread over ranks, and the numbers of that rank, are
what its statistics say.

All arithmetic here is addition, multiplication, division and square root, which IEEE 754 rounds in
one way: what was written on one machine is read on any other, to the last bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..sketch.distribution import SPREAD
from ..sketch.table import (
    ABS_MIN,
    BINS,
    COUNT,
    L1,
    M2,
    M3,
    M4,
    MAX,
    MIN,
    S8,
    SUM,
    Floats,
    Ints,
    SketchTable,
    Words,
    magnitude,
    scale_exponent,
)
from .record import Record

TELLING = ("mean", "mean_abs", "std", "skewness", "kurtosis", "rm8", "min", "max", "abs_min")
"""The main statistics that say something about a moment."""
MEAN, MEAN_ABS, STD, SKEWNESS, KURTOSIS, RM8, LEAST, MOST, ABS_LEAST = range(len(TELLING))
SCALED = [M3, M4, S8]
"""Moments of which statistics say how they are to other moments."""

Numbers = NDArray[np.float32]


def digits_of(counts: Ints, moments: Floats, told: Numbers) -> Words:
    """uint64 [rows, len(MOMENTS)]: what `told` leaves open of the moments.

    Args:
        counts: int64 [rows, len(COUNTS)].
        moments: float64 [rows, len(MOMENTS)].
        told: float32 [rows, len(TELLING)]: the statistics, as they are stored.
    """
    elements = _elements(counts)
    guess = _plain(elements, told)
    guess[:, SCALED] = _scaled(elements, told, moments)
    off = moments.view(np.int64) - guess.view(np.int64)
    # The sign goes last, so that small numbers begin with zeros on either side.
    return ((off << 1) ^ (off >> 63)).view(np.uint64)


def moments_of(digits: Words, counts: Ints, told: Numbers) -> Floats:
    """float64 [rows, len(MOMENTS)]: what `digits_of` was given; NaN where nothing was observed."""
    elements, off = _elements(counts), _off(digits)
    moments = (_plain(elements, told).view(np.int64) + off).view(np.float64)
    scaled = _scaled(elements, told, moments).view(np.int64) + off[:, SCALED]
    moments[:, SCALED] = scaled.view(np.float64)
    moments[counts[:, COUNT] < 0] = np.nan
    return moments


def spread_of_one(scalars: Numbers, ranks: NDArray[np.number]) -> Numbers:
    """float32 [records, sites, statistics, len(SPREAD)]: of records that are of one rank.

    Args:
        scalars: float32 [records, sites, statistics].
        ranks: [records]: whose they are.
    """
    spread = np.empty((*scalars.shape, len(SPREAD)), np.float32)
    spread[..., :2] = scalars[..., None]
    whose = np.where(np.isnan(scalars), np.nan, ranks.astype(np.float32)[:, None, None])
    spread[..., 2:] = whose[..., None]
    return spread


def is_of_one(record: Record, scalars: Numbers) -> bool:
    """Whether what a record says over ranks follows from its scalars, and is not written."""
    if len(record.ranks) != 1:
        return False
    [spread] = spread_of_one(scalars[None], np.array(record.ranks))
    by_rank = (np.array_equal(own, scalars, equal_nan=True) for own in record.by_rank.values())
    return np.array_equal(record.spread, spread, equal_nan=True) and all(by_rank)


def _elements(counts: Ints) -> Floats:
    """float64 [rows]: how many elements the moments are of."""
    rows = len(counts)
    table = SketchTable(
        counts, np.empty((rows, 0)), np.empty(0, np.uint64), np.empty((0, BINS), np.int64)
    )
    return table.measured().astype(np.float64)


def _off(digits: Words) -> Ints:
    """int64: by how much each moment's bits differ from what was guessed."""
    return (digits >> np.uint64(1)).view(np.int64) ^ -(digits & np.uint64(1)).view(np.int64)


def _plain(elements: Floats, told: Numbers) -> Floats:
    """What the statistics say of the moments by themselves; 0 where they say nothing."""
    of = told.T.astype(np.float64)
    guess = np.zeros((len(elements), ABS_MIN + 1))
    with np.errstate(all="ignore"):
        guess[:, SUM] = of[MEAN] * elements
        guess[:, L1] = of[MEAN_ABS] * elements
        guess[:, M2] = of[STD] * of[STD] * (elements - 1)
    guess[:, MIN], guess[:, MAX], guess[:, ABS_MIN] = of[LEAST], of[MOST], of[ABS_LEAST]
    return _finite(guess)


def _scaled(elements: Floats, told: Numbers, moments: Floats) -> Floats:
    """What they say of the moments `SCALED`, given the others."""
    of, second = told.T.astype(np.float64), moments[:, M2]
    guess = np.empty((len(elements), len(SCALED)))
    with np.errstate(all="ignore"):
        guess[:, 0] = of[SKEWNESS] * (second * np.sqrt(second)) / np.sqrt(elements)
        guess[:, 1] = (of[KURTOSIS] + 3) * (second * second) / elements
        power = np.ldexp(of[RM8], -scale_exponent(magnitude(moments.T)))
        for _ in range(3):
            power = power * power
        guess[:, 2] = power * elements
    return _finite(guess)


def _finite(guess: Floats) -> Floats:
    guess[~np.isfinite(guess)] = 0.0
    return guess
