"""A rule about how training starts: the initialisation of weights."""

from __future__ import annotations

import math

import numpy as np

from ..sketch.derive import MAIN
from ..sketch.distribution import SPREAD
from ..sketch.labels import rank_words
from ..store.record import SiteInfo
from .rule import Memory, Rule, Told, Verdict, figures, of_rows
from .seen import Seen

RMS, LEAST, MOST = MAIN.index("rms"), SPREAD.index("min"), SPREAD.index("max")
LINEAR = ("Linear", "Conv1d", "Conv2d", "Conv3d")
"""Modules whose output has the size of their input times sqrt(fan in) times the weights' rms."""
SMALL = 0.5
"""Weights that are too small count half: small ones are often meant, as before a residual sum."""
UNLIKE = 4.0
"""So many times the smallest rms on any rank is no chance: others have begun otherwise."""
CONSTANT = 99.0
"""Stands for weights that are all alike: units that begin alike stay so."""


def fan_in(site: SiteInfo) -> float:
    """How many products each output of a weight adds up, if it is of a linear layer."""
    shape = site.whole or site.shape
    is_weight = site.kind == "weight" and site.name.endswith(".weight") and len(shape) > 1
    return float(math.prod(shape[1:])) if is_weight else math.nan


def initial_gain(seen: Seen, memory: Memory) -> Verdict | None:
    """By how many octaves a linear layer, as it is first seen, makes signals larger or smaller."""
    sites, fan = seen.record.sites, seen.known("fan in", fan_in)
    rows = np.flatnonzero(~np.isnan(fan))
    if not len(rows):
        return None
    judged = memory.column("judged", seen.size, 0.0)
    rms, std = seen.statistic("rms"), seen.statistic("std")
    rows = rows[~np.isnan(rms[rows]) & (judged[sites[rows]] == 0)]
    judged[sites[rows]] = 1.0
    rows = rows[rms[rows] > 0]  # zeros are meant
    if seen.is_resumed or not len(rows):
        return None
    layers = {seen.site(row).name: seen.site(row).module for row in seen.rows("activation")}
    rows = np.array(
        [row for row in rows if layers.get(seen.site(row).name[: -len(".weight")]) in LINEAR],
        np.intp,
    )
    if not len(rows):
        return None
    gain = np.sqrt(fan) * rms
    octaves = np.log2(gain)
    off = np.maximum(octaves, -SMALL * octaves)
    off = np.where(std == 0, CONSTANT, off)

    def tell(row: int) -> Told:
        label, evidence = seen.site(row).label, {"rms": float(rms[row]), "gain": float(gain[row])}
        if std[row] == 0:
            return Told(text=f"All elements of {label} begin alike.", evidence=evidence)
        ranks, of_ranks = _unlike(seen, row)
        text = (
            f"{label} begins with an rms of {rms[row]:.3g}{of_ranks}: its layer multiplies what "
            f"comes in by about {figures(gain[row])}."
        )
        return Told(text=text, ranks=ranks, evidence=evidence)

    return of_rows(seen, rows, off, tell)


def _unlike(seen: Seen, row: int) -> tuple[tuple[int, ...], str]:
    """The ranks whose part of a weight is many times as large as another's, and in words."""
    least, most = (float(seen.record.spread[row, RMS, at]) for at in (LEAST, MOST))
    if not most > UNLIKE * least:
        return (), ""
    ranks = seen.ranks_above(row, "rms", UNLIKE * least)
    return ranks, f" (up to {most:.3g} on {rank_words(ranks)}, from {least:.3g} on others)"


START = (
    Rule(
        name="poor-initialisation",
        severity="warning",
        meaning="A layer begins with weights that blow up what comes in, or make it vanish.",
        advice="Initialise by fan-in, as by `torch.nn.init.kaiming_normal_` or `xavier_uniform_`.",
        threshold=3.5,
        clear=0.0,
        measure=initial_gain,
    ),
)
