"""Rules about what a tensor holds: non-finite values, the range of its format, dead activations."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from ..sketch.distribution import SPREAD
from ..sketch.table import COUNT, NAN, NEG_INF, POS_INF, SUBNORMAL, UNSEEN, ZERO, Floats
from ..store.record import SiteInfo
from .gradients import axes_of, without_effect
from .rule import Memory, Rule, Told, Verdict, figures, of_rows
from .seen import Seen

GRADIENTS = (
    "weight_gradient",
    "local_weight_gradient",
    "activation_gradient",
    "input_gradient",
    "local_input_gradient",
)
ACTIVATIONS = "activation", "local_activation", "input"
WHOLE = re.compile(r"\(root\)|\(stage (\d+)\)")
"""What a model is called, or the part of it that is a stage of a pipeline."""
SKIPPED = 16
"""A gradient scaler skips steps whose gradients overflow, and halves its scale each time; so many
in a row are none of that."""

ALL = 0.999999
"""From such a share of zeros on all of a gradient is zero."""
FEW = 64
"""So many elements may be alike by chance, as a loss or a count for each sample."""

LARGEST = {
    name: float(ml_dtypes.finfo(dtype).max)
    for name, dtype in (
        ("float16", np.float16),
        ("float8_e4m3fn", ml_dtypes.float8_e4m3fn),
        ("float8_e5m2", ml_dtypes.float8_e5m2),
        ("float8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
        ("float8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
    )
}
"""By dtype its largest number, of those whose range training leaves easily."""


NONFINITE, MOST = MAIN.index("nonfinite"), SPREAD.index("max")


def largest_of(site: SiteInfo) -> float:
    """The largest number of a site's format, NaN where training does not leave its range easily."""
    return LARGEST.get(site.dtype, np.nan)


def nonfinite(seen: Seen, memory: Memory) -> Verdict:
    """How many elements are NaN or infinite and were not meant to be."""
    record, sites = seen.record, seen.record.sites
    count = seen.statistic("nonfinite").copy()
    # What cannot be merged (Partial tensors) is seen by rank only.
    count = np.fmax(count, record.spread[:, NONFINITE, MOST].astype(np.float64))
    # Masks are made of -inf: where it was from the start it is meant.
    masks, negative = memory.column("masks", seen.size), record.merged.counts[:, NEG_INF]
    first = np.isnan(masks[sites])
    masks[sites[first]] = negative[first]
    count -= np.where(masks[sites] > 0, negative, 0)
    if not np.isnan(seen.training("loss_scale")):
        skipped, rows = memory.column("skipped", seen.size, 0.0), seen.rows(*GRADIENTS)
        skipped[sites[rows]] = np.where(count[rows] > 0, skipped[sites[rows]] + 1, 0)
        count[rows[(skipped[sites[rows]] < SKIPPED) & ~of_the_loss(seen)[rows]]] = 0

    def tell(row: int) -> Told:
        found = record.merged.counts[row]
        words = ((NAN, "NaN"), (POS_INF, "+inf"), (NEG_INF, "-inf"))
        parts = [f"{found[place]:,} {word}" for place, word in words if found[place]]
        what = " and ".join(parts) or f"{count[row]:,.0f} non-finite values"
        elements = int(found[COUNT] + found[UNSEEN])
        of = f" of {elements:,} element{'s' * (elements != 1)}" if elements else ""
        if found[UNSEEN]:
            what = f"at least {what}"
        ranks = seen.ranks_above(row, "nonfinite", 0.0)
        return Told(
            text=f"{seen.site(row).label} holds {what}{of}.",
            ranks=ranks if len(ranks) < len(record.ranks) else (),
            evidence={"nonfinite": float(count[row]), "elements": float(found[COUNT])},
        )

    return of_rows(seen, np.arange(len(sites)), count, tell)


def of_the_loss(seen: Seen) -> NDArray[np.bool_]:
    """Which rows are what the loss sends back to the whole model, and NaN without any infinity.

    A loss scale that is too large makes infinities there first, and NaN only of these.
    """
    stage, counts = seen.known("stage", stage_of), seen.record.merged.counts
    # Of all that are known: the rank with the last may be late.
    last = seen.sites.column("stage", seen.size, stage_of).max(initial=0.0)
    infinite = counts[:, POS_INF] + counts[:, NEG_INF]
    return (stage == last) & (counts[:, NAN] > 0) & (infinite == 0)


def stage_of(site: SiteInfo) -> float:
    """Of the gradient of what a stage of a pipeline returns its number, of a whole model's 0."""
    found = WHOLE.fullmatch(site.name) if site.kind == "activation_gradient" else None
    return -1.0 if found is None else float(found[1] or 0)


def underflow(seen: Seen, _: Memory) -> Verdict:
    """Which share of the non-zero elements of a narrow format is subnormal."""
    rows, merged = seen.rows(*GRADIENTS, "optimizer_state"), seen.record.merged
    nonzero = merged.finite() - merged.counts[:, ZERO]
    known = (nonzero > 0) & (merged.counts[:, SUBNORMAL] >= 0)
    share = merged.counts[:, SUBNORMAL] / np.where(known, nonzero, np.nan)
    share[np.isnan(seen.known("largest", largest_of))] = np.nan
    scale = seen.training("loss_scale")
    scaled = "" if np.isnan(scale) else f" with a loss scale of {figures(scale)}"

    def tell(row: int) -> Told:
        info, zeros = seen.site(row), float(seen.statistic("zero_share")[row])
        text = (
            f"{share[row]:.0%} of the non-zero elements of {info.label} are subnormal in "
            f"{info.dtype}{scaled}, and {zeros:.0%} of all are zero: what is smaller is lost."
        )
        evidence = {"subnormal_share": float(share[row]), "zero_share": zeros}
        return Told(text=text, evidence=evidence)

    return of_rows(seen, rows, share, tell)


def overflow(seen: Seen, _: Memory) -> Verdict:
    """How near the largest magnitude is to the largest number of a narrow format."""
    largest, most = seen.known("largest", largest_of), seen.statistic("abs_max")

    def tell(row: int) -> Told:
        info = seen.site(row)
        text = (
            f"The largest magnitude in {info.label} is {most[row]:.4g}: "
            f"{most[row] / largest[row]:.0%} of the largest number of {info.dtype}."
        )
        return Told(
            text=text,
            ranks=seen.worst_rank(row, "abs_max"),
            evidence={"abs_max": float(most[row]), "largest": float(largest[row])},
        )

    return of_rows(seen, seen.rows(*ACTIVATIONS, "weight", "tap"), most / largest, tell)


def dead(seen: Seen, memory: Memory) -> Verdict:
    """Which share of what a module gives is zero.

    Of an element of a nested output only where it gets a gradient, if any of what is observed does:
    some are zeros on purpose, as the position bias of T5's layers that have none.
    """
    rows, zeros = seen.rows("activation", "local_activation"), zeros_of(seen)
    output = seen.shared("output", lambda site: (site.name, site.slot, site.occurrence))
    graded = memory.column("graded", int(output.max(initial=-1)) + 1, 0.0)
    graded[output[seen.rows("activation_gradient")]] = 1
    if graded.any():
        nested = seen.known("nested", lambda site: float(bool(site.slot))) > 0
        rows = rows[~nested[rows] | (graded[output[rows]] > 0)]

    def tell(row: int) -> Told:
        text = f"{zeros[row]:.2%} of {seen.site(row).label} is zero: it passes nothing on."
        return Told(text=text, evidence={"zero_share": float(zeros[row])})

    return of_rows(seen, rows, zeros, tell)


def zeros_of(seen: Seen) -> Floats:
    """float64 [rows]: which share of a tensor is zero; NaN where some of it is not finite."""
    return np.where(seen.statistic("nonfinite") > 0, np.nan, seen.statistic("zero_share"))


def constant(seen: Seen, _: Memory) -> Verdict:
    """1 where all elements that a module gives, if not few, are the same and not zero."""
    rows, counts = seen.rows("activation", "local_activation"), seen.record.merged.counts[:, COUNT]
    same = (seen.statistic("std") == 0) & (seen.statistic("rms") > 0) & (counts >= FEW)
    value = np.where(np.isnan(seen.statistic("std")), np.nan, same)

    def tell(row: int) -> Told:
        mean = float(seen.statistic("mean")[row])
        text = f"All elements of {seen.site(row).label} are {mean:.6g}: they say nothing."
        return Told(text=text, evidence={"mean": mean})

    return of_rows(seen, rows, value, tell)


def saturated(seen: Seen, _: Memory) -> Verdict:
    """How near all that a bounded nonlinearity gives is to its bounds, from 0 to 1."""
    rows, rms = np.flatnonzero(seen.known("bounded", is_bounded) > 0), seen.statistic("rms")
    std, mean = seen.statistic("std"), seen.statistic("mean")
    sigmoid = seen.known("sigmoid", lambda site: float(site.module == "Sigmoid")) > 0
    # Between 0 and 1 the largest variance of a mean m is m (1 - m), where all are at the bounds.
    value = np.where(sigmoid, std * std / np.maximum(mean * (1 - mean), 1e-12), rms * rms)

    def tell(row: int) -> Told:
        info = seen.site(row)
        text = f"{info.label} is {value[row]:.1%} saturated: {info.module} is flat there."
        return Told(text=text, evidence={"rms": float(rms[row]), "mean": float(mean[row])})

    return of_rows(seen, rows, value, tell)


def is_bounded(site: SiteInfo) -> float:
    """1 for what a nonlinearity gives that is flat at its bounds."""
    return float(site.kind == "activation" and site.module in ("Tanh", "Sigmoid", "Hardtanh"))


def zero_gradient(seen: Seen, _: Memory) -> Verdict:
    """Which share of a weight's gradient is zero.

    Not that of a bias whose module's matrix has one: what the bias adds cancels, as the last one of
    a critic whose loss is a difference of two means.
    """
    rows, zeros = seen.rows("weight_gradient"), zeros_of(seen)
    is_vector = axes_of(seen)[rows] <= 1
    zeros[rows[is_vector & without_effect(seen, rows, zeros[rows], ALL)]] = np.nan

    def tell(row: int) -> Told:
        text = f"All of {seen.site(row).label} is zero: nothing that the loss sees depends on it."
        return Told(text=text, evidence={"zero_share": float(zeros[row])})

    return of_rows(seen, rows, zeros, tell)


TENSORS = (
    Rule(
        name="nonfinite",
        severity="error",
        meaning="A tensor holds NaN or infinity; whatever is made of it will, too.",
        advice=(
            "See `first_bad` for where it began. Usual causes: a division by zero or the logarithm "
            "of one, a softmax of a row that is masked throughout, an overflow of a 16-bit format, "
            "a learning rate too high. Gradients of a scaled loss may overflow while the scale is "
            "found: tell it, as `scope.step(loss_scale=scale)`."
        ),
        threshold=0.0,
        clear=0.0,
        alone=True,
        measure=nonfinite,
    ),
    Rule(
        name="underflow",
        severity="warning",
        meaning="A large part of a gradient is below the normal range of its narrow format.",
        advice=(
            "Scale the loss (in torch `torch.amp.GradScaler`; of one that does, a higher "
            "`init_scale` or a shorter `growth_interval`), or use bfloat16, which has the range "
            "of float32. Keep the optimizer's state in float32."
        ),
        threshold=0.25,
        clear=0.1,
        records=2,
        calm=8,
        measure=underflow,
    ),
    Rule(
        name="overflow",
        severity="warning",
        meaning="A tensor comes near the end of its narrow format; beyond it are infinities.",
        advice="Use bfloat16 for it, or keep it small: normalise, clip, or scale it.",
        threshold=0.5,
        clear=0.25,
        calm=8,
        measure=overflow,
    ),
    Rule(
        name="dead-activation",
        severity="warning",
        meaning="A module gives nothing but zeros: no gradient goes back through it.",
        advice=(
            "Look at the bias before it and at the update that moved it: a step too large, or a "
            "wrong initialisation. A lower learning rate or a leaky activation keeps units alive."
        ),
        threshold=0.999,
        clear=0.99,
        records=2,
        calm=4,
        measure=dead,
    ),
    Rule(
        name="constant-activation",
        severity="warning",
        meaning="A module gives the same number everywhere.",
        advice="Look for weights that are all zero, a saturated nonlinearity, or input that is.",
        threshold=0.0,
        clear=0.0,
        records=2,
        calm=4,
        measure=constant,
    ),
    Rule(
        name="saturated-activation",
        severity="warning",
        meaning="A bounded nonlinearity is at its bounds: little gradient goes back through it.",
        advice="Normalise what comes in, lower the learning rate, or initialise with less gain.",
        threshold=0.95,
        clear=0.9,
        records=4,
        calm=8,
        measure=saturated,
    ),
    Rule(
        name="zero-gradient",
        severity="warning",
        meaning="A weight gets no gradient in any step.",
        advice=(
            "Look whether its output is used, and for a `detach()`, a `stop_gradient` or a dead "
            "layer after it."
        ),
        threshold=ALL,
        clear=ALL,
        records=8,
        measure=zero_gradient,
    ),
)
