"""Rules about ranks: those that are missing, and those whose numbers are unlike the others'."""

from __future__ import annotations

import math

import numpy as np

from ..sketch.distribution import (
    DEVIATION,
    EXTREMES,
    MAGNITUDES,
    MEDIAN,
    NAMES,
    RANKED,
    RANKS,
    log2_magnitude,
)
from ..sketch.labels import rank_words
from ..sketch.table import without_copies
from ..store.record import SiteInfo
from .rule import Memory, Rule, Told, Verdict, figures, of_rows, of_run
from .seen import Seen

FEWEST = 4
"""Of fewer ranks none has a majority to be unlike."""
RMS = RANKED.index("rms")
TELLING = (
    RANKS,
    MEDIAN,
    DEVIATION,
    MAGNITUDES.start,
    MAGNITUDES.start + EXTREMES,
    NAMES.start,
    NAMES.start + EXTREMES,
)
"""Of the summary: how many ranks there are, what is usual, the most extreme, whose they are."""
LEAST_SPREAD = 0.03
"""Octaves between ranks that are nothing, however alike the others are."""
LEAST_OCTAVES = 1.25
"""Between a rank and half of the others: what is less than 2.4 times as large is no trouble."""
CLEAR, CLEAR_OCTAVES = 20.0, 0.75
"""Unless the others are so alike that it is so many deviations."""
LEAST_ELEMENTS = 16
"""Of fewer independent ones chance alone moves the rms by more than a quarter of an octave (about
1/sqrt(n) of one), of which `LEAST_OCTAVES` are five."""
BASE = 5.0
"""Deviations beyond what chance gives the most extreme of all ranks at all sites."""
LOCAL = (
    "input",
    "activation",
    "local_activation",
    "activation_gradient",
    "input_gradient",
    "local_input_gradient",
    "local_weight_gradient",
)
"""What ranks make of their own data."""


def missing(seen: Seen, _: Memory) -> Verdict | None:
    """How many ranks are not in a record."""
    record = seen.record
    if record.final or record.partial:
        return None
    absent = sorted(set(range(seen.world_size)) - set(record.ranks))

    def tell() -> Told:
        who = rank_words(absent).capitalize()
        text = f"{who} of {seen.world_size} sent nothing in time, record after record."
        return Told(text=text, ranks=tuple(absent), evidence={"missing": float(len(absent))})

    return of_run(float(len(absent)), tell)


def _elements(site: SiteInfo) -> float:
    """How many elements a rank's tensor has; infinite where its shape is not known."""
    return float(math.prod(site.shape)) if site.shape else math.inf


def outlier(seen: Seen, memory: Memory) -> Verdict | None:
    """How far the most extreme rank is from the others, over what chance explains.

    Distances are of log2 of the rms, in deviations (median absolute, times 1.4826); chance gives
    the largest of n normal numbers about sqrt(2 ln n).
    """
    summaries = seen.record.distribution
    rows = seen.rows(*LOCAL)
    rows = rows[seen.known("elements", _elements)[rows] >= LEAST_ELEMENTS]
    if not len(summaries) or not len(rows):
        return None
    told = summaries[:, without_copies(rows), RMS]
    ranks, middle, deviation, lowest, highest, low_name, high_name = (
        told[..., column].astype(np.float64) for column in TELLING
    )  # [peers, rows] each
    sigma = np.maximum(1.4826 * deviation, LEAST_SPREAD)
    below, above = middle - log2_magnitude(lowest), log2_magnitude(highest) - middle
    side = above >= below
    away = np.where(side, above, below)
    names = np.where(side, high_name, low_name)
    score = np.where(ranks >= FEWEST, away / sigma, np.nan)
    is_far = (away >= LEAST_OCTAVES) | ((away >= CLEAR_OCTAVES) & (score >= CLEAR))
    score[~is_far & (ranks >= FEWEST)] = 0.0
    peer = np.where(np.isnan(score).all(0), 0, np.argmax(np.nan_to_num(score, nan=-1.0), 0))
    every = np.arange(len(rows))
    best, who, octaves = score[peer, every], names[peer, every], away[peer, every]
    sites = seen.record.sites[rows]
    last = memory.column("rank", seen.size)
    best = np.where((last[sites] == who) | (best <= 0) | np.isnan(best), best, 0.0)
    last[sites] = np.where(np.isnan(who), last[sites], who)
    chance = math.sqrt(2 * math.log(max(len(rows) * float(np.nanmax(ranks)), 2.0)))
    value = np.full(len(seen.record.sites), np.nan)
    value[rows] = best - chance

    def tell(row: int) -> Told:
        at = int(np.searchsorted(rows, row))
        rank, factor = int(who[at]), 2 ** float(octaves[at])
        label, larger = seen.site(row).label, "larger" if side[peer[at], at] else "smaller"
        text = (
            f"All of {label} on rank {rank} is zero, and not on half of the ranks, record after "
            "record."
            if larger == "smaller" and lowest[peer[at], at] == 0
            else f"The rms of {label} on rank {rank} is {figures(factor)} times {larger} than on "
            f"half of the ranks, {best[at]:.0f} deviations away, record after record."
        )
        away_by = float(best[at])
        return Told(
            text=text,
            ranks=(rank,),
            evidence={"factor": factor, "deviations": away_by},
            value=away_by,
            threshold=BASE + chance,
        )

    return of_rows(seen, rows, value, tell)


MISSING = Rule(
    name="missing-rank",
    severity="warning",
    meaning="A rank takes no part in the records: it has died, hangs, or cannot be reached.",
    advice="Look at its host and its log; `run.events()` tells when it was heard of last.",
    threshold=0.0,
    clear=0.0,
    records=2,
    measure=missing,
)
OUTLIER = Rule(
    name="rank-outlier",
    severity="warning",
    meaning="One rank's numbers are unlike those of its peers, and stay so.",
    advice="Look at that rank's data, its random seed, its weights and its device.",
    threshold=BASE,
    clear=BASE / 2,
    records=2,
    calm=8,
    measure=outlier,
)

OVER_RANKS = MISSING, OUTLIER
