"""Answers with labels: coordinates by step and site, units and descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..sketch.table import COUNT, COUNTS, FIRST_EXPONENT, LAST_EXPONENT, UNBINNED, UNSEEN
from .columns import Columns
from .record import SiteInfo
from .selection import Chosen

CELL = ("step", "site")


def by_step(chosen: Chosen) -> dict[str, Any]:
    """Coordinates along the steps: which attempt and record each is of."""
    return {
        "step": chosen.steps,
        "attempt": ("step", chosen.attempts),
        "record": ("step", chosen.records),
    }


def by_site(sites: Sequence[SiteInfo]) -> dict[str, Any]:
    """Coordinates along the sites: what each label is made of."""
    return {
        "site": texts("site", [site.label for site in sites]),
        "kind": texts("site", [site.kind for site in sites]),
        "name": texts("site", [site.name for site in sites]),
        "slot": texts("site", [site.slot for site in sites]),
        "occurrence": ("site", np.array([site.occurrence for site in sites], dtype=np.int64)),
    }


def texts(axis: str, each: Sequence[str]) -> xr.Variable:
    """Texts along an axis; xarray need not look for dates in them, which takes a third of all."""
    return xr.Variable(axis, np.array(each, dtype=object), fastpath=True)


def by_column(columns: Columns) -> dict[str, Any]:
    """Coordinates along columns of steps: the first and the last step of each."""
    return {"step": columns.first, "last_step": ("step", columns.last)}


def exponents_dataset(
    along: dict[str, Any],
    sites: Sequence[SiteInfo],
    counts: NDArray[np.int64],
    histograms: NDArray[np.int64],
) -> xr.Dataset:
    """Histograms of exponents, see `Run.exponents`.

    Args:
        along: coordinates along the steps.
        sites: The sites.
        counts: int64 [steps, sites, COUNTS], negative where nothing was observed.
        histograms: int64 [steps, sites, BINS]
    """
    counts = np.where(counts[..., UNBINNED, None] > 0, -1, counts)  # left to the sentinel
    seen = np.maximum(counts, 0)
    names = ("zero", "nan", "pos_inf", "neg_inf", "under", "over")
    columns = {name: (CELL, seen[..., COUNTS.index(name)]) for name in names}
    return xr.Dataset(
        {"count": ((*CELL, "exponent"), histograms)}
        | columns
        | {"total": (CELL, seen[..., COUNT]), "unseen": (CELL, seen[..., UNSEEN])}
        | {"observed": (CELL, counts[..., COUNT] >= 0)},
        coords=along | by_site(sites) | {"exponent": np.arange(FIRST_EXPONENT, LAST_EXPONENT + 1)},
        attrs={"units": "elements", "description": "bin n counts 2^n <= |x| < 2^(n+1)"},
    )
