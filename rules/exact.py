"""Rules whose verdicts are made by the collector, which sees the numbers of single ranks."""

from __future__ import annotations

from ..sketch.conservation import NO_FACTOR
from .rule import Rule

COPIES = Rule(
    name="replica-divergence",
    severity="error",
    meaning="Copies of a tensor that must be equal on several ranks differ, if only in a bit.",
    advice=(
        "Look at the device of the rank that is odd, and at what changes weights on one rank alone "
        "(random numbers, buffers, a step that one rank skipped). Where copies may differ: "
        "`observe(…, unchecked=…)`."
    ),
    threshold=0.0,
    clear=0.0,
    alone=True,
)
SUMS = Rule(
    name="conservation",
    severity="error",
    meaning="What ranks added up is not the sum of what each had: a reduction went wrong.",
    advice=(
        "Look for a parameter that is left out of the reduction or reduced twice, for gradients "
        "that are changed between it and the optimizer's step, and at the network."
    ),
    threshold=NO_FACTOR,
    clear=NO_FACTOR,
    alone=True,
)

EXACT = COPIES, SUMS
