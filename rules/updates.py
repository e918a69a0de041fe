"""Rules about what the optimizer does to weights: too much, nothing, or by a poisoned state."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..sketch.table import PROJECTION
from ..store.record import SiteInfo
from .rule import Memory, Rule, Told, Verdict, figures, of_rows, of_run
from .seen import Rows, Seen
from .tensors import zeros_of

STILL = 5
"""So many records in a row must a weight stay as it is, while others change, to be told of."""
IDLE = 50
"""So many must all stay as they are: gradients are added up over fewer micro-batches."""
SKIPPED, SEEKING = 8, 16
"""So many updates in a row does no scaler skip that has found its scale; to find it, it may skip
more: from 2^32 to 2^16 these."""
LEAST_ELEMENTS = 256
"""Of weights of fewer the sizes change by leaps: biases begin at zero."""
FEW, SMOOTHING = 8, 1 / 8
"""Updates whose mean is judged: the size of one is known to within a factor of a few only."""
ABOUT_ZERO, GROWTH = 1e-4, 1.5
"""A weight that begins with an rms below the first grows by whole steps: its own size says nothing
until it grows, in `FEW` records, by no more than the second."""
LEAP = 0.5
"""Of the larger of its sizes before and after: what one step does alone when it changes so much."""
SECOND_MOMENTS = {
    *("exp_avg_sq", "square_avg", "exp_inf", "max_exp_avg_sq", "sum"),
    *("nu", "nu_max", "sum_of_squares"),  # optax
}
"""Keys of optimizers' states that hold squares of gradients, or their largest."""
FIRST_MOMENTS = {"exp_avg", "momentum_buffer", "mu", "trace"}


def not_updating(seen: Seen, memory: Memory) -> Verdict | None:
    """For how many records in a row a weight has stayed as it is, though it has a gradient.

    Where no weight changes, the optimizer did nothing: that is told of the run, after more records.
    """
    rows, known, still = _unchanged(seen, memory)
    if not len(rows):
        return None
    record, sites = seen.record, seen.record.sites[rows]
    for_how_long = memory.column("still", seen.size, 0.0)
    stepped = bool((known & ~still).any())  # else warm-up, accumulation, or nothing at all
    gradient = _of_gradients(seen, rows, "rms")
    idle, since = memory.column("idle", 1, 0.0), memory.column("idle since", 1)
    # What had no gradient, as an expert without tokens, is not updated; it goes on as it was.
    graded = memory.column("graded", seen.size, 0.0)
    if stepped:
        for_how_long[sites] += graded[sites]
        for_how_long[sites[~(still & known)]] = 0.0
        idle[0] = 0.0
    elif (known & (gradient > 0)).any():
        since[0] = since[0] if idle[0] else record.step
        idle[0] += 1
    if len(seen.rows("weight_gradient")):
        graded[sites] = gradient > 0
    value = np.where((gradient > 0) & stepped, for_how_long[sites], np.nan)
    value[~still] = 0.0

    def tell(place: int) -> Told:
        if place == len(rows):
            text = (
                f"No weight has changed for {idle[0]:.0f} records, though gradients are not zero."
            )
            return Told(
                text=text,
                evidence={"records": float(idle[0])},
                since=int(since[0]),
                value=float(idle[0]),
                threshold=IDLE - 1.0,
            )
        size, label = float(gradient[place]), seen.site(int(rows[place])).label
        text = (
            f"{label} has not changed for {value[place]:.0f} records, while others have; its "
            f"gradient is not zero (rms {size:.3g})."
        )
        return Told(text=text, evidence={"records": float(value[place]), "gradient_rms": size})

    of_all = max(idle[0] - (IDLE - STILL), 0.0) if known.any() else np.nan
    return Verdict(sites=np.append(sites, -1), value=np.append(value, of_all), tell=tell)


def _unchanged(seen: Seen, memory: Memory) -> tuple[Rows, NDArray[np.bool_], NDArray[np.bool_]]:
    """Rows of weights with a checksum, bool [rows]: whether it was seen before, and is the same."""
    rows, merged = seen.rows("weight"), seen.record.merged
    rows = rows[merged.has_checksum()[rows]]
    sites = seen.record.sites[rows]
    words = merged.checksum[rows].view(np.uint32).reshape(-1, 2).astype(np.float64)
    low, high = memory.column("low", seen.size), memory.column("high", seen.size)
    known = ~np.isnan(low[sites])
    still = (low[sites] == words[:, 0]) & (high[sites] == words[:, 1])
    low[sites], high[sites] = words.T
    return rows, known, still


def skipped(seen: Seen, memory: Memory) -> Verdict | None:
    """In how many records in a row a gradient scaler lowered its scale: it skipped the update.

    Not those in which a weight has changed: the scale was lowered by somebody else. While it has
    fallen in every record so far it is being found, and `SEEKING` of them do not count.
    """
    scale = seen.training("loss_scale")
    if np.isnan(scale):
        return None
    _, known, still = _unchanged(seen, memory)
    last, at, first, since = (memory.column(name, 1) for name in ("scale", "at", "first", "since"))
    falls, has_held = memory.column("falls", 1, 0.0), memory.column("held", 1, 0.0)
    if scale < last[0] and not (known & ~still).any():
        if not falls[0]:
            first[0], since[0] = last[0], at[0]
        falls[0] += 1
    else:
        has_held[0] = max(has_held[0], float(not np.isnan(last[0])))
        falls[0] = 0.0
    last[0], at[0] = scale, seen.record.step

    def tell() -> Told:
        seen_still = "no weight changed" if known.any() else "a skipped update changes no weight"
        text = (
            f"From step {since[0]:.0f} on the gradient scaler skipped updates in {falls[0]:.0f} "
            f"records in a row: the loss scale fell from {figures(float(first[0]))} to "
            f"{figures(scale)} in them, and {seen_still}."
        )
        evidence = {"records": float(falls[0]), "loss_scale": scale, "before": float(first[0])}
        return Told(text=text, evidence=evidence, since=int(since[0]) if falls[0] else None)

    return of_run(float(falls[0]) - (0 if has_held[0] else SEEKING), tell)


def _of_gradients(seen: Seen, rows: Rows, statistic: str) -> np.ndarray:
    """float64 [rows]: a statistic of the gradient of each of these; NaN where unknown."""
    of = {seen.site(row).name: row for row in seen.rows("weight_gradient").tolist()}
    found = np.array([of.get(seen.site(row).name, -1) for row in rows.tolist()], np.intp)
    return np.where(found >= 0, seen.statistic(statistic)[found], np.nan)


def is_matrix(site: SiteInfo) -> float:
    """1 for weights of two dimensions or more that are not small."""
    shape = site.whole or site.shape
    return float(site.kind == "weight" and len(shape) > 1 and math.prod(shape) >= LEAST_ELEMENTS)


def update_ratio(seen: Seen, memory: Memory) -> Verdict | None:
    """How much of a weight one step changes: the size of its update over its own.

    A sum of all elements with fixed random signs changes by the size of the update, in the mean of
    its square (Johnson and Lindenstrauss): so the projections of two records tell it. Whatever the
    signs, an update is no smaller than what the weight's size changes by.
    """
    rows, record = np.flatnonzero(seen.known("matrix", is_matrix) > 0), seen.record
    if not len(rows):
        return None
    sites, norm = record.sites, seen.statistic("l2")
    last, at = memory.column("projection", seen.size), memory.column("step", seen.size)
    squares, count = (
        memory.column("squares", seen.size, 0.0),
        memory.column("count", seen.size, 0.0),
    )
    some, projection = sites[rows], record.merged.moments[rows, PROJECTION]
    steps = record.step - at[some]
    steps = np.where(steps > 0, steps, np.nan)
    leap = _leap(seen, memory, rows)
    change = np.fmax((projection - last[some]) ** 2 / steps, (leap / steps) ** 2)
    # Of what is not finite sums leave elements out, and each time others.
    spoilt = seen.statistic("nonfinite")[rows] > 0
    last[some], at[some] = np.where(spoilt, np.nan, projection), record.step
    size = norm[rows]
    ratio = change / np.where(size > 0, size * size, np.nan)
    told = np.isfinite(ratio) & ~spoilt & ~_is_young(seen, memory, rows)
    rate = np.maximum(SMOOTHING, 1 / (count[some[told]] + 1))
    squares[some[told]] += rate * (ratio[told] - squares[some[told]])
    count[some[told]] += 1
    value = np.full(len(sites), np.nan)
    value[rows] = np.where((count[some] >= FEW) & ~spoilt, np.sqrt(squares[some]), np.nan)

    def tell(row: int) -> Told:
        label, evidence = seen.site(row).label, {"ratio": float(value[row]), "l2": float(norm[row])}
        left, leapt, before, after = (
            float(memory.column(name, seen.size)[sites[row]])
            for name in ("left", "leapt", "before", "after")
        )
        if record.step - leapt < FEW:
            text = (
                f"The size (l2) of {label} went from {figures(before)} to {figures(after)} between "
                f"steps {left:.0f} and {leapt:.0f}: most runs change a weight by 0.01% to 1% of "
                "its size in a step."
            )
            return Told(text=text, evidence=evidence)
        text = (
            f"Steps change {label} by about {value[row]:.0%} of its size each: most runs train "
            "with 0.01% to 1%."
        )
        return Told(text=text, evidence=evidence)

    return of_rows(seen, rows, value, tell)


def _leap(seen: Seen, memory: Memory, rows: Rows) -> NDArray[np.float64]:
    """float64 [rows]: by how much the size of each weight has changed; what leaps is remembered."""
    some, size = seen.record.sites[rows], seen.statistic("l2")[rows]
    size = np.where(seen.statistic("nonfinite")[rows] > 0, np.nan, size)
    last, at, left, leapt, before, after = (
        memory.column(name, seen.size)
        for name in ("size", "step", "left", "leapt", "before", "after")
    )
    changed = np.abs(size - last[some])
    leaps = changed > LEAP * np.fmax(size, last[some])
    left[some[leaps]], leapt[some[leaps]] = at[some[leaps]], seen.record.step
    before[some[leaps]] = last[some[leaps]]
    after[some[leaps]], last[some] = size[leaps], size
    return changed


def _is_young(seen: Seen, memory: Memory, rows: Rows) -> NDArray[np.bool_]:
    """bool [rows]: which weights began at about zero, and still grow."""
    some, size = seen.record.sites[rows], seen.statistic("l2")[rows]
    young, mark, since = (memory.column(name, seen.size) for name in ("young", "mark", "since"))
    known = ~np.isnan(size)
    new = known & np.isnan(young[some])
    young[some[new]] = seen.statistic("rms")[rows][new] < ABOUT_ZERO
    mark[some[new]], since[some[new]] = size[new], 0.0
    since[some[known]] += 1
    due = known & (since[some] > FEW)
    settled = due & (mark[some] > 0) & (size <= GROWTH * mark[some])
    young[some[settled]] = 0.0
    mark[some[due]], since[some[due]] = size[due], 1.0
    return young[some] > 0


def is_second(site: SiteInfo) -> float:
    """1 for the second moments of an optimizer."""
    return float(site.kind == "optimizer_state" and _key_of(site) in SECOND_MOMENTS)


def _key_of(site: SiteInfo) -> str:
    """What the optimizer calls it, without its place in a chain of optax."""
    return site.slot.rpartition(".")[2]


def poisoned(seen: Seen, _: Memory) -> Verdict:
    """Which share of second moments is zero where the first are not: their squares underflowed."""
    # Where some are infinite the share is of the others: it cannot be held against another's.
    rows, zeros = np.flatnonzero(seen.known("second", is_second) > 0), zeros_of(seen)
    firsts = {
        seen.site(row).name: row
        for row in seen.rows("optimizer_state").tolist()
        if _key_of(seen.site(row)) in FIRST_MOMENTS
    }
    found = np.array([firsts.get(seen.site(row).name, -1) for row in rows.tolist()], np.intp)
    value = np.full(len(zeros), np.nan)
    value[rows] = np.where(found >= 0, zeros[rows] - zeros[found], np.nan)

    def tell(row: int) -> Told:
        info = seen.site(row)
        text = (
            f"{zeros[row]:.0%} of {info.label} is zero though the gradients were not: their "
            f"squares are below the range of {info.dtype or 'its format'}, and the update divides "
            "by them."
        )
        return Told(text=text, evidence={"zero_share": float(zeros[row])})

    return of_rows(seen, rows, value, tell)


def lost_updates(seen: Seen, _: Memory) -> Verdict | None:
    """Which share of a weight an update leaves as it is, though its gradient is not zero there."""
    rows, unchanged = seen.rows("update"), seen.statistic("zero_share")
    if not (unchanged[rows] < 1).any():  # the optimizer did nothing: its learning rate is zero
        return None
    value = np.full(len(unchanged), np.nan)
    value[rows] = unchanged[rows] - _of_gradients(seen, rows, "zero_share")

    def tell(row: int) -> Told:
        name, share = seen.site(row).name, unchanged[row]
        text = (
            f"Updates leave {share:.0%} of {name} as it is: they are smaller than what its format "
            "can add to it."
            if share < 1
            else f"Updates of {name} are zero throughout: the optimizer leaves it as it is, or its "
            "format cannot add what is so small."
        )
        return Told(text=text, evidence={"unchanged": float(unchanged[row])})

    return of_rows(seen, rows, value, tell)


UPDATES = (
    Rule(
        name="weights-not-updating",
        severity="warning",
        meaning="A weight stays as it is though it has a gradient.",
        advice=(
            "Look whether the optimizer was given it, with a learning rate, and whether its "
            "updates are lost by rounding (bfloat16 weights): keep a float32 copy, or round "
            "stochastically."
        ),
        threshold=STILL - 1,
        clear=0.0,
        measure=not_updating,
    ),
    Rule(
        name="skipped-updates",
        severity="error",
        meaning="The gradient scaler skips every update: the weights stay as they are.",
        advice=(
            "Look at where gradients are first not finite: a scale that falls on and on finds "
            "no overflow of its own making, but NaN."
        ),
        threshold=SKIPPED - 1,
        clear=0.0,
        measure=skipped,
    ),
    Rule(
        name="lost-updates",
        severity="notice",
        meaning="Most of what updates would add to a weight is lost in rounding.",
        advice=(
            "Keep a float32 copy of the weights, round stochastically, or raise the learning rate. "
            "Where the optimizer has such a copy, nothing is lost."
        ),
        threshold=0.5,
        clear=0.3,
        records=4,
        measure=lost_updates,
    ),
    Rule(
        name="update-ratio",
        severity="warning",
        meaning="Each step changes a large part of a weight: the learning rate is too high for it.",
        advice=(
            "Lower the learning rate, or lengthen its warm-up. Where it leapt between two steps, "
            "look at the batch and gradients of the first, whose update lies between them, and at "
            "what else writes to it."
        ),
        threshold=0.3,
        clear=0.1,
        records=2,
        calm=8,
        measure=update_ratio,
    ),
    Rule(
        name="optimizer-poisoned",
        severity="error",
        meaning="The optimizer's second moments have underflowed: its next updates are huge.",
        advice="Keep the optimizer's state in float32, or scale the loss and raise `eps`.",
        threshold=0.2,
        clear=0.05,
        calm=4,
        measure=poisoned,
    ),
)
