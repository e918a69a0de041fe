"""A run in the schema of Track & Visualize (tandv), for notebooks written against it.

One row a (step, site); columns in two levels: `metadata`, `scalar_stats`, `exponent_counts`.
Column n of `exponent_counts` counts 2^n <= |x| < 2^(n+1), as tandv documents; tandv itself stores
those in column n + 1. Zeros, NaN and infinities are in no column, but `scalar_stats` counts them;
-inf and +inf count finite elements beyond the columns. docs/logframe.md has all of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..sketch.derive import MAIN, derive
from ..sketch.errors import SettingError
from ..sketch.table import BINS, COUNTS, FIRST_EXPONENT, LAST_EXPONENT, OVER, UNDER, SketchTable
from .record import SiteInfo

METADATA = ("name", "type", "tensor_type", "step", "dtype")
"""Its columns that say which tensor a row is of."""

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

MORE_SCALARS = ("min", "max", "l2", "skewness", "kurtosis")
"""Statistics beyond its own, under our names; its schema takes any."""

COUNTED = ("zero", "nan", "pos_inf", "neg_inf", "negative", "subnormal", "unseen")
"""Counts of what its columns of exponents do not tell, under our names."""

TENSOR_TYPES = {
    "activation": "Activation",
    "activation_gradient": "Gradient",
    "weight": "Weights",
    "weight_gradient": "Weight_Gradients",
}
"""Its names of kinds; others keep ours."""

KINDS = {theirs: ours for ours, theirs in TENSOR_TYPES.items()} | {"Weight": "weight"}
"""By its name our kind; some logs have the second for weights."""

OPTIMIZER_STATE = "Optimiser_State"
"""What its tensor type begins with of an optimizer's state; a dot and the key follow."""

OF_A_MODULE = ("Activation", "Gradient")
"""Its kinds that are named after the module alone."""

OF_PARAMETERS = ("weight", "weight_gradient", "optimizer_state", "update")

PLACE = re.compile(r"(.*?)(?:\[([^\[\]]*)\])?(?:#(\d{1,9}))?", re.DOTALL)
"""How which element of an output, and which call, stand behind a name."""

ORIGIN = "rankscope"
"""The attribute of a frame that says what its columns of exponents are."""

Part = tuple[int, Sequence[SiteInfo], SketchTable, NDArray[np.float32]]
"""A step, the sites observed in it, their sketches, and their main statistics as stored."""


def logframe(
    parts: Iterable[Part], *, exponents: tuple[int, int] = (FIRST_EXPONENT, LAST_EXPONENT)
) -> pd.DataFrame:
    """The rows of the given steps.

    Args:
        parts: the steps, and what was observed in them.
        exponents: the first and the last of which there is a column; -inf and +inf have the rest.

    Raises:
        SettingError: there are no such exponents.
    """
    first, last = exponents
    if not FIRST_EXPONENT <= first <= last <= LAST_EXPONENT:
        raise SettingError(
            f"`exponents` must be a first and a last one between {FIRST_EXPONENT} and "
            f"{LAST_EXPONENT}, got {first} and {last}."
        )
    some = [part for part in parts if len(part[1])]
    table = SketchTable.concatenate([part[2] for part in some])
    stored = np.concatenate([np.empty((0, len(MAIN)), np.float32), *[part[3] for part in some]])
    rows = [metadata(step, site) for step, sites, *_ in some for site in sites]
    low, high = first - FIRST_EXPONENT, last - FIRST_EXPONENT + 1
    counts = np.column_stack(
        [
            table.counts[:, UNDER] + table.histogram[:, :low].sum(axis=1),
            table.histogram[:, low:high],
            table.counts[:, OVER] + table.histogram[:, high:BINS].sum(axis=1),
        ]
    )
    labels = pd.Index([-np.inf, *range(first, last + 1), np.inf], dtype=object)
    groups = {
        "metadata": pd.DataFrame(rows, columns=list(METADATA)).astype({"step": "int64"}),
        "scalar_stats": pd.DataFrame(scalars_of(table, stored)),
        "exponent_counts": pd.DataFrame(counts, columns=labels),
    }
    frame = pd.concat(groups, axis=1)
    frame.attrs[ORIGIN] = {"exponents": "floor(log2 |x|)"}
    return sealed(frame)


def scalars_of(table: SketchTable, stored: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """By name the columns of statistics, and of counts: NaN where a count is not known."""
    names = SCALARS | dict.fromkeys(MORE_SCALARS)
    columns: dict[str, NDArray[Any]] = {}
    for theirs, ours in names.items():
        name, foreign = ours or theirs, table.lacks_moments()
        columns[theirs] = np.where(foreign, stored[:, MAIN.index(name)], derive(table, name))
    return columns | counts_of(table, stored)


def counts_of(table: SketchTable, stored: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """By name the columns of `COUNTED`."""
    columns = {name: table.counts[:, COUNTS.index(name)] for name in COUNTED}
    known = {name: count >= 0 for name, count in columns.items()}
    # What somebody else counted may hold more zeros, NaN and infinities than are known.
    foreign = table.lacks_moments() & (columns["unseen"] > 0)
    hidden = foreign & np.isnan(stored[:, MAIN.index("zero_share")])
    columns["unseen"] = columns["unseen"] + np.where(hidden, columns["zero"], 0)
    known["zero"] = known["zero"] & ~hidden
    for name in ("nan", "pos_inf", "neg_inf"):
        known[name] = ~(table.lacks_moments() & np.isnan(stored[:, MAIN.index("nonfinite")]))
    return {
        name: count if known[name].all() else np.where(known[name], count, np.nan)
        for name, count in columns.items()
    }


def metadata(step: int, site: SiteInfo) -> dict[str, Any]:
    """The columns that say which tensor a row is of."""
    is_parameter = site.kind in OF_PARAMETERS
    name = site.name.removesuffix(".weight") if is_parameter else site.name
    element = f"[{site.slot}]" if site.slot and site.kind != "optimizer_state" else ""
    call = f"#{site.occurrence}" if site.occurrence else ""
    return {
        "name": f"{name}{element}{call}",
        "type": site.module,
        "tensor_type": tensor_type(site),
        "step": step,
        "dtype": site.dtype,
    }


def parted(name: str) -> tuple[str, str, int]:
    """Name, slot and occurrence, which `metadata` puts into one name."""
    found = PLACE.fullmatch(name)
    return (name, "", 0) if found is None else (found[1], found[2] or "", int(found[3] or 0))


def modules_in(names: Iterable[str], tensor_types: Iterable[str]) -> set[str]:
    """The modules of a log: those with outputs, and those in which something is named."""
    rows = list(zip(names, tensor_types, strict=True))
    inside = {name.rpartition(".")[0] for name, _ in rows}
    return inside | {name for name, theirs in rows if theirs in OF_A_MODULE}


def parameter_named(name: str, kind: str, modules: Collection[str]) -> str:
    """A name with the `.weight` that `metadata` leaves out; as it is, where it is of no module."""
    is_weight = kind in OF_PARAMETERS and name and name in modules
    return f"{name}.weight" if is_weight else name


def tensor_type(site: SiteInfo) -> str:
    """Its name of the kind of a site."""
    if site.kind == "optimizer_state":
        return f"{OPTIMIZER_STATE}.{site.slot}"
    return TENSOR_TYPES.get(site.kind, site.kind)


def sealed(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the attribute without which tandv's plots refuse it: a hash of its columns."""
    text = str(frame.dtypes)
    frame.attrs["vis-meta"] = {"hash": hashlib.sha256(text.encode()).hexdigest()}
    return frame
