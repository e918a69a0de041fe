"""What was counted of tensors beside their sketches, labelled, and what it tells about formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..sketch.errors import SettingError
from ..sketch.exact_counts import (
    FINE_ROWS,
    FIRST_BLOCK_EXPONENT,
    LOST,
    BlockExponents,
    CastCounts,
    ExactCount,
    FineExponents,
)
from ..sketch.formats import BLOCK_FORMATS
from ..sketch.ranges import fit
from ..sketch.shared_scales import number_formats_named
from ..sketch.table import FIRST_EXPONENT, Ints, SketchTable
from .fit import counted_of, fit_row, nonzero
from .labels import by_step
from .reader import Reader
from .record import ExactCountInfo
from .selection import Chosen, Indices


def exact_counts_frame(reader: Reader, places: Indices) -> pd.DataFrame:
    """One row an exact count of these sites, see `Run.exact_counts`."""
    chosen = {int(place) for place in places}
    rows = [info for info in reader.meta.exact_counts if info.site in chosen]
    columns: dict[str, list[Any]] = {
        "site": [reader.label(info.site) for info in rows],
        "exact_count": [info.name for info in rows],
        "shape": [info.exact_count.shape for info in rows],
    }
    return pd.DataFrame(columns).astype({"site": object, "exact_count": object, "shape": object})


def exact_count_array(
    reader: Reader, exact_count: ExactCount, site: str, chosen: Chosen
) -> xr.DataArray:
    """The counts of an exact count over the steps in which there are some, see `Run.exact_count`.

    Raises:
        SettingError: there is no such site, or it was not counted there.
    """
    info = _info(reader, exact_count, site)
    found = reader.read("exact_counts", chosen.records, info.numbers)
    seen = np.flatnonzero(found[:, 0] >= 0) if len(found) else np.zeros(0, np.int64)
    there = Chosen(chosen.records[seen], chosen.steps[seen], chosen.attempts[seen])
    axes = _axes(exact_count)
    return xr.DataArray(
        found[seen].reshape(len(seen), *exact_count.shape),
        dims=("step", *axes),
        coords=by_step(there) | axes | {"site": site},
        name=exact_count.name,
        attrs={"units": "elements"},
    )


def counts_at(reader: Reader, site: str, step: int, attempt: int | None) -> dict[ExactCount, Ints]:
    """What was counted of a site at one step.

    Raises:
        SettingError: the step was not recorded, or there is no such site.
    """
    record = np.array([reader.choose_step(step, attempt)])
    [place] = reader.choose_sites(site=site)
    infos = [info for info in reader.meta.exact_counts if info.site == place]
    blocks = reader.read_all([("exact_counts", record, (info.numbers,)) for info in infos])
    return {
        info.exact_count: block[0].reshape(info.exact_count.shape)
        for info, block in zip(infos, blocks, strict=True)
        if block[0, 0] >= 0
    }


def fit_blocks(
    table: SketchTable, counts: dict[ExactCount, Ints], formats: str | Sequence[str] | None
) -> pd.DataFrame:
    """By exact count and format, see `Run.block_formats`; `table` is the sketch of the tensor.

    Raises:
        SettingError: there is no such format.
    """
    total = nonzero(table)
    targets = number_formats_named(formats or BLOCK_FORMATS)
    rows = {
        (exact_count.name, target.name): fit_row(fit(exact_count, found, target))
        | {"counted_share": counted_of(exact_count, found) / total if total else 1.0}
        for exact_count, found in counts.items()
        if isinstance(exact_count, BlockExponents)
        for target in targets
    }
    if not rows:
        return pd.DataFrame()
    index = pd.MultiIndex.from_tuples(list(rows), names=["exact_count", "format"])
    return pd.DataFrame(list(rows.values()), index=index)


def _info(reader: Reader, exact_count: ExactCount, site: str) -> ExactCountInfo:
    [place] = reader.choose_sites(site=site)
    there = {info.name: info for info in reader.meta.exact_counts if info.site == place}
    if exact_count.name not in there:
        known = ", ".join(there) or "nothing beside the sketch"
        raise SettingError(f"{exact_count.name} was not counted of {site}; there is {known}.")
    return there[exact_count.name]


def _axes(exact_count: ExactCount) -> dict[str, Any]:
    """The axes of an exact count's counts, and what stands along them."""
    match exact_count:
        case CastCounts():
            return {"lost": [*LOST, "nonzero"]}
        case FineExponents():
            first, rows = FIRST_EXPONENT, FINE_ROWS
        case BlockExponents():
            first, rows = FIRST_BLOCK_EXPONENT, exact_count.shape[0]
    parts = 1 << exact_count.bits
    return {
        "exponent": np.arange(first - 1, first - 1 + rows),
        "part": 1 + np.arange(parts) / parts,
        "at": ["inside", "edge"],
    }
