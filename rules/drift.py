"""A rule about shapes: magnitudes of a tensor that are no longer distributed as they were."""

from __future__ import annotations

import numpy as np

from ..sketch.table import BINS, Floats, Ints, without_copies
from .past import WARM_UP
from .rule import Memory, Rule, Told, Verdict, of_rows
from .seen import Seen

RATE = 1 / 32
"""What each record counts for in the past."""
EVERY = 4
"""Exponents that are one level here: distances are told to within so many octaves at most."""
LEVELS = -(-BINS // EVERY)


def drift(seen: Seen, memory: Memory) -> Verdict:
    """How far a tensor's magnitudes are from those of its own past, in octaves.

    It is the earth mover's distance of the histograms of exponents (Vallender 1974): the area
    between their cumulative shares.
    """
    rows, sites = seen.rows("activation", "weight", "tap"), seen.record.sites
    upto = cumulated(seen.record.merged.histogram[without_copies(rows)])
    told = upto[:, -1] > 0
    if not told.all():
        rows, upto = rows[told], upto[told]
    shares = upto / upto[:, -1:]
    past, seen_before = memory.table("past", seen.size, LEVELS), memory.column("n", seen.size, 0.0)
    at = without_copies(sites[rows])
    moved = shares - past[at]
    value = np.full(len(sites), np.nan)
    octaves = EVERY * np.abs(moved).sum(-1)
    value[rows] = np.where(seen_before[at] >= WARM_UP, octaves, np.nan)
    seen_before[at] += 1
    moved *= np.maximum(RATE, 1 / seen_before[at])[:, None]
    past[at] += moved

    def tell(row: int) -> Told:
        text = (
            f"The magnitudes of {seen.site(row).label} have moved by {value[row]:.1f} octaves in "
            "the mean from where they were lately."
        )
        return Told(text=text, evidence={"octaves": float(value[row])})

    return of_rows(seen, rows, value, tell)


def cumulated(histogram: Ints) -> Floats:
    """float64 [rows, LEVELS]: how many elements are at each level or below it."""
    used = np.flatnonzero(np.bitwise_or.reduce(histogram, axis=0))
    upto = np.zeros((len(histogram), LEVELS))
    if not len(used):
        return upto
    # Most of a histogram is empty in all rows, and sums along so short an axis are slow.
    first, last = int(used[0]) // EVERY, int(used[-1]) // EVERY
    some = histogram[:, first * EVERY : (last + 1) * EVERY]
    counts = upto[:, first : last + 1]
    for place in range(EVERY):
        own = some[:, place::EVERY]
        counts[:, : own.shape[1]] += own
    np.cumsum(counts, axis=1, out=counts)
    upto[:, last + 1 :] = counts[:, -1:]
    return upto


DRIFT = (
    Rule(
        name="drift",
        severity="warning",
        meaning="A tensor's histogram of exponents is no longer where it was lately.",
        advice="Look at the weights before it, at their updates, and at the data of these steps.",
        threshold=5.0,
        clear=2.0,
        records=3,
        calm=8,
        measure=drift,
    ),
)
