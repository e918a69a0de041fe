"""The power of two that makes a tensor fit a format best, from its histogram of exponents."""

from __future__ import annotations

import sys
from math import frexp, isinf

import numpy as np

from .formats import NumberFormat
from .ranges import kept_from, normal_from
from .table import Ints
from .tally import Tally


def best_shift(tally: Tally, target: NumberFormat) -> Ints:
    """int64 [rows]: by which power of two to multiply each row before a cast to `target`.

    Of the shifts with which nothing overflows it is one with which the least is lost: at first
    fewest elements that may become zero, then fewest that are subnormal. Of several that lose the
    same it is the one nearest to 0, so that what fits as it is gets no scale. 0 for no elements.
    """
    most = most_shift(tally, target)
    low, high = np.minimum(most, 0), most
    fewest = lost(tally, target, most)
    # What is lost only falls as the shift grows: the first that loses as little as the last.
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        same = (lost(tally, target, middle) == fewest).all(axis=0)
        high = np.where(same, middle, high)
        low = np.where(same, low, np.minimum(middle + 1, high))
    return high


def most_shift(tally: Tally, target: NumberFormat) -> Ints:
    """int64 [rows]: the largest shift with which nothing overflows.

    0 for no elements, and where it is not known how large they are.
    """
    own, exponent = np.frexp(tally.largest)
    end, end_exponent = frexp(target.overflow_threshold)
    if isinf(target.overflow_threshold):  # which is the power of two after the largest float64
        end, end_exponent = 0.5, sys.float_info.max_exp + 1
    most = end_exponent - exponent - (own >= end)
    return np.where((tally.total > 0) & np.isfinite(own), most, 0).astype(np.int64)


def lost(tally: Tally, target: NumberFormat, shift: Ints) -> Ints:
    """int64 [2, rows]: how many elements may become zero, and how many are subnormal, or zero."""
    thresholds = kept_from(target, shift), normal_from(target, shift)
    return np.stack([tally.total - tally.count_from(one).low for one in thresholds]).astype(
        np.int64
    )
