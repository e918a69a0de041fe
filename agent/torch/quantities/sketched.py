"""Quantities that sketches tell: who asks for one has its kind of tensor sketched, and no more."""

from __future__ import annotations

from ....sketch.errors import SettingError
from ....sketch.quantities import COMBINED, SKETCHED

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


def kinds_of(asked: object) -> tuple[str, ...]:
    """The kinds of tensors whose sketches say what is asked for; none if something is computed.

    Raises:
        SettingError: it has options, which none of them has.
    """
    if not isinstance(asked, str):
        return ()
    word, *options = asked.split("(", 1)
    name = TAIYI.get(word.strip(), word.strip())
    if name not in SKETCHED and name not in COMBINED:
        return ()
    if options:
        raise SettingError(f"{asked!r}: {name} is told by sketches, and has no options.")
    return (SKETCHED[name].kind,) if name in SKETCHED else COMBINED[name].kinds
