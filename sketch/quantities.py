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
