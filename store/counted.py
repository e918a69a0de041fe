"""What was counted of tensors beside their sketches, labelled, and what it tells about formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..sketch.errors import SettingError
from ..sketch.formats import BLOCK_FORMATS, number_format
from ..sketch.quantities import (
    FINE_ROWS,
    FIRST_BLOCK_EXPONENT,
    LOST,
    BlockExponents,
    CastCounts,
    FineExponents,
    Quantity,
)
from ..sketch.ranges import fit
from ..sketch.table import FIRST_EXPONENT, Ints, SketchTable
from .fit import counted_of, fit_row, nonzero
from .labels import by_step
from .reader import Reader
from .record import QuantityInfo
from .selection import Chosen, Indices


def quantities_frame(reader: Reader, places: Indices) -> pd.DataFrame:
    """One row a quantity of these sites, see `Run.quantities`."""
    chosen = {int(place) for place in places}
    rows = [info for info in reader.meta.quantities if info.site in chosen]
    columns: dict[str, list[Any]] = {
        "site": [reader.label(info.site) for info in rows],
        "quantity": [info.name for info in rows],
        "shape": [info.quantity.shape for info in rows],
    }
    return pd.DataFrame(columns).astype({"site": object, "quantity": object, "shape": object})


def quantity_array(reader: Reader, quantity: Quantity, site: str, chosen: Chosen) -> xr.DataArray:
    """The counts of a quantity over the steps in which there are some, see `Run.quantity`.

    Raises:
        SettingError: there is no such site, or it was not counted there.
    """
    info = _info(reader, quantity, site)
    found = reader.read("quantities", chosen.records, info.numbers)
    seen = np.flatnonzero(found[:, 0] >= 0) if len(found) else np.zeros(0, np.int64)
    there = Chosen(chosen.records[seen], chosen.steps[seen], chosen.attempts[seen])
    axes = _axes(quantity)
    return xr.DataArray(
        found[seen].reshape(len(seen), *quantity.shape),
        dims=("step", *axes),
        coords=by_step(there) | axes | {"site": site},
        name=quantity.name,
        attrs={"units": "elements"},
    )


def counts_at(reader: Reader, site: str, step: int, attempt: int | None) -> dict[Quantity, Ints]:
    """What was counted of a site at one step.

    Raises:
        SettingError: the step was not recorded, or there is no such site.
    """
    record = np.array([reader.choose_step(step, attempt)])
    [place] = reader.choose_sites(sites=site)
    infos = [info for info in reader.meta.quantities if info.site == place]
    blocks = reader.read_all([("quantities", record, (info.numbers,)) for info in infos])
    return {
        info.quantity: block[0].reshape(info.quantity.shape)
        for info, block in zip(infos, blocks, strict=True)
        if block[0, 0] >= 0
    }


def fit_blocks(
    table: SketchTable, counts: dict[Quantity, Ints], formats: Sequence[str] | None
) -> pd.DataFrame:
    """By quantity and format, see `Run.block_formats`; `table` is the sketch of the tensor.

    Raises:
        SettingError: there is no such format.
    """
    total = nonzero(table)
    targets = [number_format(name) for name in formats or BLOCK_FORMATS]
    rows = {
        (quantity.name, target.name): fit_row(fit(quantity, found, target))
        | {"counted_share": counted_of(quantity, found) / total if total else 1.0}
        for quantity, found in counts.items()
        if isinstance(quantity, BlockExponents)
        for target in targets
    }
    index = pd.MultiIndex.from_tuples(list(rows), names=["quantity", "format"])
    return pd.DataFrame(list(rows.values()), index=index)


def _info(reader: Reader, quantity: Quantity, site: str) -> QuantityInfo:
    [place] = reader.choose_sites(sites=site)
    there = {info.name: info for info in reader.meta.quantities if info.site == place}
    if quantity.name not in there:
        known = ", ".join(there) or "nothing beside the sketch"
        raise SettingError(f"{quantity.name} was not counted of {site}; there is {known}.")
    return there[quantity.name]


def _axes(quantity: Quantity) -> dict[str, Any]:
    """The axes of a quantity's counts, and what stands along them."""
    match quantity:
        case CastCounts():
            return {"lost": [*LOST, "nonzero"]}
        case FineExponents():
            first, rows = FIRST_EXPONENT, FINE_ROWS
        case BlockExponents():
            first, rows = FIRST_BLOCK_EXPONENT, quantity.shape[0]
    parts = 1 << quantity.bits
    return {
        "exponent": np.arange(first - 1, first - 1 + rows),
        "part": 1 + np.arange(parts) / parts,
        "at": ["inside", "edge"],
    }
