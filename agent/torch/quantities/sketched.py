"""Quantities that sketches tell: who asks for one has its kind of tensor sketched, and no more."""

from __future__ import annotations

from ....sketch.quantities import SKETCHED

TAIYI = {
    "InputSndNorm": "input_norm",
    "InputMean": "input_mean",
    "InputStd": "input_std",
    "OutputSndNorm": "output_norm",
    "OutputGradSndNorm": "output_grad_norm",
    "WeightNorm": "weight_norm",
    "WeightGradNorm": "weight_grad_norm",
    "UpdateNorm": "update_norm",
    "GradientFlow": "gradient_flow",
}
"""By what Taiyi calls them, or would."""


def kind_of(asked: object) -> str | None:
    """The kind of tensor whose sketches say what is asked for; None if something is computed."""
    name = TAIYI.get(asked, asked) if isinstance(asked, str) else ""
    return SKETCHED[name].kind if name in SKETCHED else None
