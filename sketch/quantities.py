"""Quantities of modules and parameters that every sketch tells at no further cost."""

from __future__ import annotations

from typing import NamedTuple


class Sketched(NamedTuple):
    """A quantity that is read off sketches: which statistic of which kind of sites."""

    kind: str
    statistic: str


SKETCHED = {
    "input_norm": Sketched("input", "l2"),
    "input_mean": Sketched("input", "mean"),
    "input_std": Sketched("input", "std"),
    "output_norm": Sketched("activation", "l2"),
    "output_grad_norm": Sketched("activation_gradient", "l2"),
    "weight_norm": Sketched("weight", "l2"),
    "weight_grad_norm": Sketched("weight_gradient", "l2"),
    "update_norm": Sketched("update", "l2"),
    "gradient_flow": Sketched("weight_gradient", "mean_abs"),
}
"""By name."""


class Combined(NamedTuple):
    """A quantity that follows from sketches of several kinds of sites."""

    kinds: tuple[str, ...]
    """Of the sites."""
    column: str
    """Of the frame that has it: `Run.updates`, or `Run.noise_scale`."""
    instead: str
    """A sentence: what watches it, for no bound does."""


NOISE_SCALE = "noise_scale"
_CHANGES = "weight", "update"
COMBINED = {
    "update_ratio": Combined(_CHANGES, "ratio", "The rule update-ratio watches it."),
    "trust_ratio": Combined(
        _CHANGES,
        "trust_ratio",
        "No rule watches it; update-ratio tells of steps that are too large.",
    ),
    "unchanged_share": Combined(_CHANGES, "unchanged", "The rule lost-updates watches it."),
    NOISE_SCALE: Combined(
        ("weight_gradient", "local_weight_gradient"),
        "noise_scale",
        "No rule watches it; ask run.noise_scale().",
    ),
}
"""By name: all but the noise scale are of parameters, and that is of the whole model."""
