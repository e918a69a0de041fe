"""Quantities that sketches tell: who asks for one has its kind of tensor sketched, and no more."""

from __future__ import annotations

SKETCHED = {
    "input_norm": ("input", "InputSndNorm"),
    "input_mean": ("input", "InputMean"),
    "input_std": ("input", "InputStd"),
    "output_norm": ("activation", "OutputSndNorm"),
    "output_grad_norm": ("activation_gradient", "OutputGradSndNorm"),
    "weight_norm": ("weight", "WeightNorm"),
    "weight_grad_norm": ("weight_gradient", "WeightGradNorm"),
    "update_norm": ("update", "UpdateNorm"),
    "gradient_flow": ("weight_gradient", "GradientFlow"),
}
"""By name: the kind of tensor, and what Taiyi calls it, or would."""

_KINDS = {name: kind for name, (kind, _) in SKETCHED.items()} | {
    taiyi: kind for kind, taiyi in SKETCHED.values()
}


def kind_of(asked: object) -> str | None:
    """The kind of tensor whose sketches say what is asked for; None if something is computed."""
    return _KINDS.get(asked) if isinstance(asked, str) else None
