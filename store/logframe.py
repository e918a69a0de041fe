"""A run in the schema of Track & Visualize (tandv), for notebooks written against it.

One row a (step, site); columns in two levels: `metadata`, `scalar_stats`, `exponent_counts`.
Column n of `exponent_counts` counts 2^n <= |x| < 2^(n+1), as tandv documents; tandv itself stores
those in column n + 1. Zeros, NaN and infinities are in no column; -inf and +inf count finite
elements beyond the columns. Steps are those in which a value was observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..sketch.derive import derive
from ..sketch.table import FIRST_EXPONENT, LAST_EXPONENT, OVER, UNDER, SketchTable
from .record import SiteInfo

SCALARS = {
    "mean": "mean",
    "std": "std",
    "mean_abs": "mean_abs",
    "max_abs": "abs_max",
    "min_abs": "abs_min",
    "rm2": "rms",
    "rm4": "rm4",
    "rm8": "rm8",
}
"""Its names of statistics, and ours."""

TENSOR_TYPES = {
    "activation": "Activation",
    "activation_gradient": "Gradient",
    "weight": "Weights",
    "weight_gradient": "Weight_Gradients",
}
"""Its names of kinds; others keep ours."""

OF_PARAMETERS = ("weight", "weight_gradient", "optimizer_state")


def logframe(steps: Iterable[tuple[int, Sequence[SiteInfo], SketchTable]]) -> pd.DataFrame:
    """The rows of the given steps, each with the sites observed in it and their sketches."""
    parts = [part for part in steps if len(part[1])]
    table = SketchTable.concatenate([table for _, _, table in parts])
    rows = [metadata(step, site) for step, sites, _ in parts for site in sites]
    exponents = [-np.inf, *range(FIRST_EXPONENT, LAST_EXPONENT + 1), np.inf]
    counts = np.column_stack([table.counts[:, UNDER], table.histogram, table.counts[:, OVER]])
    names = ["name", "type", "tensor_type", "step", "dtype"]
    scalars = {theirs: derive(table, ours) for theirs, ours in SCALARS.items()}
    groups = {
        "metadata": pd.DataFrame(rows, columns=names).astype({"step": "int64"}),
        "scalar_stats": pd.DataFrame(scalars),
        "exponent_counts": pd.DataFrame(counts, columns=pd.Index(exponents, dtype=object)),
    }
    return pd.concat(groups, axis=1)


def metadata(step: int, site: SiteInfo) -> dict[str, Any]:
    """The columns that say which tensor a row is of."""
    is_parameter = site.kind in OF_PARAMETERS
    return {
        "name": site.name.removesuffix(".weight") if is_parameter else site.name,
        "type": site.module,
        "tensor_type": tensor_type(site),
        "step": step,
        "dtype": site.dtype,
    }


def tensor_type(site: SiteInfo) -> str:
    """Its name of the kind of a site."""
    if site.kind == "optimizer_state":
        return f"Optimiser_State.{site.slot}"
    return TENSOR_TYPES.get(site.kind, site.kind)
