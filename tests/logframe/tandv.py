"""LogFrames as Track & Visualize makes them, built by hand from what is known of it.

shared/seeds.md, 1.1 and 1.3: exponents by frexp, those beyond -16 and 16 in one column each, whose
labels are -inf and inf; statistics rounded to the tensor's own dtype; one row a tensor and step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Tensor = tuple[int, str, str, NDArray[Any]]
"""Step, name, tensor type and value."""
Stats = Callable[[NDArray[Any]], Mapping[str, float]]

TYPES = {
    "Activation": "<class 'torch.nn.modules.linear.Linear'>",
    "Gradient": "<class '__main__.Own'>",
}


def exponent_counts(tensor: NDArray[Any], first: int = -16, last: int = 16) -> dict[float, int]:
    """Counts by column."""
    values = tensor.astype(np.float64).ravel()
    exponents = np.where(np.isfinite(values), np.frexp(values)[1], 0)
    clamped = np.clip(exponents, first - 1, last + 1)
    labels = {first - 1: -np.inf, last + 1: np.inf}
    columns = range(first - 1, last + 2)
    return {labels.get(column, column): int((clamped == column).sum()) for column in columns}


def scalar_stats(tensor: NDArray[Any]) -> dict[str, float]:
    """Its statistics; powers overflow and underflow as they do in the tensor's dtype."""
    own, values = tensor.dtype, tensor.astype(np.float64).ravel()
    with np.errstate(all="ignore"):
        size = np.abs(values)
        square = (values * values).astype(own).astype(np.float64).mean()
        rm2 = float(np.sqrt(square).astype(own))
        scaled = values / rm2 if rm2 else values * np.nan
        found = {
            "mean": values.mean(),
            "std": values.std(ddof=1) if values.size > 1 else np.nan,
            "mean_abs": size.mean(),
            "max_abs": size.max(),
            "min_abs": size.min(),
            "rm2": rm2,
            "rm4": (scaled**4).mean() ** (1 / 4) * rm2,
            "rm8": (scaled**8).mean() ** (1 / 8) * rm2,
        }
        return {name: float(np.array(value).astype(own)) for name, value in found.items()}


def row_of(tensor: Tensor, stats: Stats) -> dict[Any, Any]:
    """One row by column."""
    step, name, tensor_type, value = tensor
    about = {
        "name": name,
        "type": TYPES.get(tensor_type),
        "tensor_type": tensor_type,
        "step": step,
        "dtype": str(value.dtype),
    }
    return (
        {("metadata", key): part for key, part in about.items()}
        | {("scalar_stats", key): part for key, part in stats(value).items()}
        | {("exponent_counts", key): part for key, part in exponent_counts(value).items()}
    )


def build(tensors: Sequence[Tensor], stats: Stats = scalar_stats) -> pd.DataFrame:
    """The LogFrame of these tensors."""
    frame = pd.DataFrame([row_of(tensor, stats) for tensor in tensors])
    frame.columns = pd.MultiIndex.from_tuples(list(frame.columns))
    return frame
