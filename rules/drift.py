"""A rule about shapes: magnitudes of a tensor that are no longer distributed as they were."""

from __future__ import annotations

import numpy as np

from ..sketch.table import BINS
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
    histogram = seen.record.merged.histogram[rows]
    padded = np.zeros((len(rows), LEVELS * EVERY))
    padded[:, :BINS] = histogram
    counts = padded.reshape(len(rows), LEVELS, EVERY).sum(-1)
    total = counts.sum(-1)
    told = total > 0
    shares = np.cumsum(counts[told], axis=-1) / total[told, None]
    past, seen_before = memory.table("past", seen.size, LEVELS), memory.column("n", seen.size, 0.0)
    at = sites[rows[told]]
    octaves = EVERY * np.abs(shares - past[at]).sum(-1)
    value = np.full(len(sites), np.nan)
    value[rows[told]] = np.where(seen_before[at] >= WARM_UP, octaves, np.nan)
    seen_before[at] += 1
    rate = np.maximum(RATE, 1 / seen_before[at])[:, None]
    past[at] += rate * (shares - past[at])

    def tell(row: int) -> Told:
        text = (
            f"The magnitudes of {seen.site(row).label} have moved by {value[row]:.1f} octaves in "
            "the mean from where they were lately."
        )
        return Told(text=text, evidence={"octaves": float(value[row])})

    return of_rows(seen, rows, value, tell)


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
