"""What the singular values of a weight say."""

from __future__ import annotations

import torch

from ....sketch.spectra import Statistic
from .quantity import Quantity
from .registry import add


def matrix(weight: torch.Tensor) -> torch.Tensor:
    """[outputs, all else], as a convolution's weight is seen as a matrix."""
    if weight.dim() < 2:
        raise ValueError(f"a weight of shape {list(weight.shape)} is no matrix")
    return weight.flatten(1)


_COST = (
    "Of the weight as the step uses it, [outputs, all else], by a Gram matrix of its smaller side "
    "up to `limit` (1024): about 1.3 rows * columns * side operations in float64 on the device "
    "when due. Of a weight that is cut over ranks it is the side that lets their pieces add up, "
    "and nothing is gathered; singular values below 1e-8 of the largest are lost."
)
_READ: dict[str, tuple[Statistic, str]] = {
    "weight_spectral_norm": (
        "largest",
        "The largest singular value: by how much a layer can stretch its input. Bad: it grows "
        "without end; sharp growth in attention comes before diverging logits.",
    ),
    "weight_stable_rank": (
        "stable_rank",
        "The squared Frobenius norm over the squared spectral norm (Rudelson and Vershynin 2007). "
        "Bad: it falls towards 1, one direction outweighs all others.",
    ),
    "weight_effective_rank": (
        "effective_rank",
        "exp of the entropy of the singular values as shares of their sum (Roy and Vetterli 2007). "
        "Bad: it falls over steps, the weight loses directions.",
    ),
    "weight_spectrum": ("spectrum", "All singular values, the largest first."),
}

for _name, (_statistic, _text) in _READ.items():
    add(
        Quantity(
            name=_name,
            needs=("weight",),
            compute=matrix,
            form="gram",
            statistic=_statistic,
            either_side=True,
            describe=f"{_text}\n\n{_COST}",
        )
    )
