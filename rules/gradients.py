"""Rules about magnitudes that leave what is usual: gradients, activations, the loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..sketch.table import COUNT, Floats
from .past import WARM_UP, usual
from .rule import Memory, Rule, Told, Verdict, figures, of_rows, of_run
from .seen import Rows, Seen

FORGET, FOLLOW = 1 / 64, 1 / 50
"""By so many octaves a record does the largest magnitude of the past fade, and grow at most …"""
EARLY = 6.5
"""… or by this over the number of records, where that is more: training begins with changes."""
YOUNG = 1 / 16
"""By so many octaves a record falls to what a small activation may grow, which is the median of all
at first; for a gradient by `FORGET`: they are unlike each other for longer."""
RISEN = 0.5
"""Octaves above the largest of the past from which on a site counts as growing."""
MOST_BACK = 16
"""So many records before that, at most, is the begin of slow growth sought."""
FAR, FAR_DEVIATIONS = 8.0, 1000.0
"""Octaves above the largest of the past, and deviations of the loss, of which one record is enough:
256 times, and 20 times a loss that hardly moves."""
LEAST_SHARE = 0.02
"""Of the loss itself: what moves less is as it was."""
MANY = 8
"""So many sites must there be for their median to say something."""
NOTHING = 20.0
"""Octaves below that median where a gradient is next to nothing."""


def exploding(seen: Seen, memory: Memory) -> Verdict | None:
    """By how many octaves a gradient is larger than it ever was lately."""
    rows = seen.rows("weight_gradient")
    return _growth(seen, memory, rows, young=FORGET)


def blown_up(seen: Seen, memory: Memory) -> Verdict | None:
    """By how many octaves what a module gives is larger than it ever was lately."""
    rows = seen.rows("activation", "local_activation", "tap")
    return _growth(seen, memory, rows, young=YOUNG)


def _growth(seen: Seen, memory: Memory, rows: Rows, *, young: float) -> Verdict | None:
    if not len(rows):
        return None
    sites, rms = seen.record.sites, seen.statistic("rms")
    now = np.log2(np.where(rms > 0, rms, np.nan))
    top, count = memory.column("top", seen.size), memory.column("count", seen.size, 0.0)
    some = sites[rows]
    before = np.where(count[some] >= WARM_UP, top[some], np.nan)
    value = np.full(len(sites), np.nan)
    value[rows] = now[rows] - before
    told = ~np.isnan(now[rows])
    at, new = some[told], now[rows][told]
    count[at] += 1
    # What grows for good is the new usual, but so slowly that it is told before.
    follow = np.maximum(FOLLOW, EARLY / count[at])
    top[at] = np.where(
        count[at] == 1, new, np.maximum(top[at] - FORGET, np.minimum(new, top[at] + follow))
    )
    if len(at) >= MANY:
        # Branches that begin near zero grow to the size of the others while training is young.
        top[at] = np.maximum(top[at], np.median(top[at]) - young * count[at])

    rise, at_rise = memory.column("rise", seen.size), memory.column("count at rise", seen.size)
    rise[sites[rows[value[rows] <= RISEN]]] = np.nan
    rising = sites[rows[value[rows] > RISEN]]
    new = rising[np.isnan(rise[rising])]
    rise[new], at_rise[new] = seen.record.step, count[new]

    def tell(row: int) -> Told:
        info, was = seen.site(row), float(rms[row] / 2 ** value[row])
        risen, records = float(rise[sites[row]]), float(count[sites[row]] - at_rise[sites[row]])
        since = _began(risen, seen.record.step, records, float(value[row]))
        text = (
            f"The rms of {info.label} is {rms[row]:.3g} in step {seen.record.step}, "
            f"{figures(2 ** value[row])} times the largest of the records before ({was:.3g})."
        )
        ranks = seen.worst_rank(row, "rms") if info.kind == "activation" else ()
        evidence = {"rms": float(rms[row]), "before": was}
        return Told(text=text, ranks=ranks, evidence=evidence, since=since)

    return of_rows(seen, rows, value, tell)


def _began(rise: float, step: int, records: float, octaves: float) -> int:
    """When growth began that reached `RISEN` in step `rise`, if it was always as fast as since.

    Args:
        records: from that step to `step`.
    """
    if records <= 0 or octaves <= RISEN:
        return int(rise)
    back = min(round(RISEN * records / (octaves - RISEN)), MOST_BACK)
    return int(rise - back * max(step - rise, 0) / records)


def vanishing(seen: Seen, _: Memory) -> Verdict | None:
    """By how many octaves a weight's gradient is smaller than half of the others.

    Not that of a bias whose module's matrix has one: the loss reaches the module, and what the bias
    adds cancels, as before a normalisation, or, of keys of attention, in the softmax.
    """
    rows, rms = seen.rows("weight_gradient"), seen.statistic("rms")
    now = np.log2(np.where(rms[rows] > 0, rms[rows], np.nan))
    if np.isfinite(now).sum() < MANY:
        return None
    median = float(np.nanmedian(now))
    value = np.full(len(rms), np.nan)
    value[rows] = median - now
    value[rows[without_effect(seen, rows, value[rows], NOTHING)]] = np.nan

    def tell(row: int) -> Told:
        text = (
            f"The rms of {seen.site(row).label} is {rms[row]:.3g}; half of all weights have a "
            f"gradient above {2**median:.3g}."
        )
        return Told(text=text, evidence={"rms": float(rms[row]), "median": 2**median})

    return of_rows(seen, rows, value, tell)


def without_effect(seen: Seen, rows: Rows, value: Floats, threshold: float) -> NDArray[np.bool_]:
    """Which parameters have next to no gradient, though one of more axes of their module has.

    Where shapes are not known, as of a LogFrame, one of more elements.

    Args:
        rows: of gradients of weights.
        value: by row, how near it is to nothing.
        threshold: from which value on a gradient is next to nothing.
    """
    axes = axes_of(seen)[rows]
    elements = seen.record.merged.counts[rows, COUNT]
    axes = np.where((axes == 0) & (elements > 1), elements, axes)
    module = seen.shared("module", lambda site: site.name.rpartition(".")[0])[rows]
    reached = np.where(value < threshold, axes, 0.0)
    most = np.zeros(module.max(initial=-1) + 1)
    np.maximum.at(most, module, reached)
    return (value >= threshold) & (axes < most[module])


def axes_of(seen: Seen) -> Floats:
    """float64 [rows]: how many axes each tensor has; 0 for a scalar, or where it is not known."""
    return seen.known("axes", lambda site: float(len(site.shape)))


def loss_lost(seen: Seen, _: Memory) -> Verdict | None:
    """1 where the loss is no finite number."""
    told = {rank: said["loss"] for rank, said in seen.record.training.items() if "loss" in said}
    if not told:
        return None
    bad = [rank for rank, loss in told.items() if not np.isfinite(loss)]

    def tell() -> Told:
        ranks = tuple(bad) if len(bad) < len(told) else ()
        return Told(text=f"The loss is {told[bad[0]]}.", ranks=ranks)

    return of_run(float(bool(bad)), tell)


def loss_spike(seen: Seen, memory: Memory) -> Verdict | None:
    """By how many usual deviations the loss is above what it was lately."""
    loss = seen.training("loss")
    if not np.isfinite(loss):
        return None
    one = np.array([0])
    mean_was = float(memory.column("loss mean", 1, 0.0)[0])
    before = usual(
        memory, "loss", one, 1, np.array([loss]), least=LEAST_SHARE * max(abs(mean_was), 1e-12)
    )
    mean, sigma = float(before.mean[0]), float(before.sigma[0])

    def tell() -> Told:
        text = f"The loss is {loss:.4g}; of the records before it was {mean:.4g} ± {sigma:.2g}."
        return Told(text=text, evidence={"loss": loss, "mean": mean, "sigma": sigma})

    return of_run((loss - mean) / sigma, tell)


GRADIENTS_AND_LOSS = (
    Rule(
        name="loss-nonfinite",
        severity="error",
        meaning="The loss is NaN or infinite: gradients of this step say nothing.",
        advice=(
            "See `first_bad` for the tensor in which it began. If it names none, look at the loss "
            "itself: a logarithm or a division, the targets, a mean of nothing."
        ),
        threshold=0.0,
        clear=0.0,
        alone=True,
        measure=loss_lost,
    ),
    Rule(
        name="exploding-gradient",
        severity="error",
        meaning="A gradient is many times as large as it was before.",
        advice=(
            "Lower the learning rate or lengthen its warm-up, clip gradients by norm, look at the "
            "batch of that step."
        ),
        threshold=4.0,
        clear=1.0,
        records=2,
        at_once=FAR,
        calm=8,
        measure=exploding,
    ),
    Rule(
        name="exploding-activation",
        severity="error",
        meaning="What a module gives is many times as large as it was before.",
        advice=(
            "Look at the weights before it and at their last updates. Attention logits are kept "
            "small by normalising queries and keys, or by a cap."
        ),
        threshold=4.0,
        clear=1.0,
        records=2,
        at_once=FAR,
        calm=8,
        measure=blown_up,
    ),
    Rule(
        name="vanishing-gradient",
        severity="warning",
        meaning="A weight's gradient is next to nothing beside those of the others.",
        advice=(
            "Look at what lies between it and the loss: saturated nonlinearities, a wrong "
            "initialisation, a missing residual or normalisation."
        ),
        threshold=NOTHING,
        clear=16.0,
        records=4,
        calm=8,
        measure=vanishing,
    ),
    Rule(
        name="loss-spike",
        severity="warning",
        meaning="The loss has left what was usual.",
        advice="Look at the batch, the learning rate, and what was largest in the gradients then.",
        threshold=8.0,
        clear=4.0,
        records=2,
        at_once=FAR_DEVIATIONS,
        calm=8,
        measure=loss_spike,
    ),
)
