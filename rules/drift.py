"""A rule about shapes: magnitudes of a tensor that are no longer distributed as they were."""

from __future__ import annotations

import numpy as np

from ..sketch.table import BINS, Floats, Ints, without_copies
from ..store.record import SiteInfo
from .past import WARM_UP
from .rule import Memory, Rule, Told, Verdict, of_rows
from .seen import Seen

RATE, YOUNG = 1 / 32, 3.0
"""What each record counts for in the past; while training is young, and much changes, so many times
what it would in the mean of all."""
EVERY = 4
"""Exponents that are one level here: distances are told to within so many octaves at most."""
LEVELS = -(-BINS // EVERY)


def drift(seen: Seen, memory: Memory) -> Verdict:
    """How far a tensor's magnitudes are from those of its own past, in octaves.

    It is the earth mover's distance of the histograms of exponents (Vallender 1974): the area
    between their cumulative shares.
    """
    rows, sites = np.flatnonzero(seen.known("may drift", may_drift) > 0), seen.record.sites
    first, upto = cumulated(seen.record.merged.histogram[without_copies(rows)])
    told = upto[:, -1] > 0
    if not told.all():
        rows, upto = rows[told], upto[told]
    value = np.full(len(sites), np.nan)
    past, seen_before = memory.table("past", seen.size, LEVELS), memory.column("n", seen.size, 0.0)
    at = without_copies(sites[rows])
    levels = _in_use(
        memory, first, first + upto.shape[1], everything=bool((seen_before[at] == 0).any())
    )
    moved = np.zeros((len(rows), levels.stop - levels.start))
    begin, end = first - levels.start, first - levels.start + upto.shape[1]
    np.divide(upto, upto[:, -1:], out=moved[:, begin:end])
    moved[:, end:] = 1.0
    moved -= past[at, levels]
    octaves = EVERY * np.abs(moved).sum(-1)
    value[rows] = np.where(seen_before[at] >= WARM_UP, octaves, np.nan)
    seen_before[at] += 1
    moved *= np.clip(YOUNG / seen_before[at], RATE, 1.0)[:, None]
    past[at, levels] += moved

    def tell(row: int) -> Told:
        text = (
            f"The magnitudes of {seen.site(row).label} have moved by {value[row]:.1f} octaves in "
            "the mean from where they were lately."
        )
        return Told(text=text, evidence={"octaves": float(value[row])})

    return of_rows(seen, rows, value, tell)


def may_drift(site: SiteInfo) -> float:
    """1 for what is judged: not a softmax, which moves by an octave where logits do by 0.7."""
    is_softmax = site.kind == "activation" and site.module.endswith("Softmax")
    return float(site.kind in ("activation", "weight", "tap") and not is_softmax)


def _in_use(memory: Memory, first: int, stop: int, *, everything: bool) -> slice:
    """The levels at which sites may have moved: those that any record has had so far.

    Below these the share of every site is 0, and above them 1: as it was, but for new sites.
    """
    lowest, highest = memory.column("lowest", 1, LEVELS), memory.column("highest", 1, 0.0)
    lowest[0], highest[0] = min(lowest[0], first), max(highest[0], stop)
    return slice(0, LEVELS) if everything else slice(int(lowest[0]), int(highest[0]))


def cumulated(histogram: Ints) -> tuple[int, Floats]:
    """The first level in use, and float64 [rows, levels in use]: how many are there or below."""
    used = np.flatnonzero(np.bitwise_or.reduce(histogram, axis=0))
    first, last = (int(used[0]) // EVERY, int(used[-1]) // EVERY) if len(used) else (0, 0)
    some = histogram[:, first * EVERY : (last + 1) * EVERY]
    upto = np.zeros((len(histogram), last + 1 - first))
    for place in range(EVERY):  # sums along so short an axis would be slow
        own = some[:, place::EVERY]
        upto[:, : own.shape[1]] += own
    return first, np.cumsum(upto, axis=1, out=upto)


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
