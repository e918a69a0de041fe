"""A run as a plain Zarr store: what `zarr.open` and `xarray.open_zarr` read without rankscope."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import xarray as xr
import zarr
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from ..sketch.errors import StoreError
from .describe import attributes
from .naming import is_vacant, what_is_at
from .query import Run

AT_ONCE = 64
"""Steps that are in memory at a time."""
Answer = TypeVar("Answer")
CHUNKS: Mapping[str, int] = {"step": AT_ONCE, "site": 128}


def export_zarr(run: Run, folder: Path, *, exponents: bool = True) -> dict[str, int]:
    """Write one snapshot of a run into a new folder, as Zarr v3.

    If that is let go of before all of it was read, as where a run goes on for minutes meanwhile,
    `run` moves to the newest, of which the rest is then: of the same steps, sites and ranks.

    There is a variable over (step, site) for each main statistic, merged over all ranks, float32;
    `exponent_count` over (step, site, exponent), int64, with what lies in no bin beside it; and
    `training` over (step, rank, training_name), float64. Coordinates tell of sites and steps,
    attributes of units. Steps whose detail retention deleted are left out.

    Args:
        run: its present snapshot is written.
        folder: new, or empty.
        exponents: whether to write histograms, which are most of it.

    Returns:
        The lengths of the axes.

    Raises:
        StoreError: the folder holds something, or cannot be written; or the run cannot be read.
    """
    if folder.exists() and not (folder.is_dir() and is_vacant(folder)):
        raise StoreError(f"{folder} {what_is_at(folder)}; choose a folder that is new or empty.")
    steps = _ask(run, lambda: kept_steps(run))
    first = _ask(run, lambda: dataset(run, steps[:AT_ONCE], exponents=exponents))
    try:
        _append(first, folder, is_first=True)
        for start in range(AT_ONCE, len(steps), AT_ONCE):
            some = steps[start : start + AT_ONCE]
            part = _ask(run, partial(dataset, run, some, exponents=exponents))
            if part.sizes["step"]:
                _append(_as_begun(part, first), folder, is_first=False)
        _consolidate(folder)
    except OSError as error:
        raise StoreError(f"Cannot write to {folder}: {error.strerror or error}.") from error
    with xr.open_zarr(folder, chunks=None) as written:
        return {str(axis): size for axis, size in written.sizes.items()}


def _ask(run: Run, question: Callable[[], Answer]) -> Answer:
    """The answer as of the run's snapshot, or of the newest if that can no longer be read."""
    try:
        return question()
    except StoreError:
        if not run.refresh():
            raise
        return question()


def _as_begun(part: xr.Dataset, first: xr.Dataset) -> xr.Dataset:
    """The same along the axes of what was written first: a newer snapshot may know of more.

    Raises:
        StoreError: it is of another run.
    """
    if part.attrs["snapshot"] == first.attrs["snapshot"]:
        return part
    if part.attrs["id"] != first.attrs["id"]:
        raise StoreError(f"Run {first.attrs['run']!r} was made anew meanwhile: export it again.")
    axes = {axis: index for axis, index in first.indexes.items() if str(axis) != "step"}
    return part.sel(axes).assign_attrs(first.attrs)


def _consolidate(folder: Path) -> None:
    """Put all metadata in one place, where xarray looks first."""
    with warnings.catch_warnings():
        # It is an extension of Zarr v3; who does not know it reads on without.
        warnings.filterwarnings("ignore", message="Consolidated metadata is currently not part")
        zarr.consolidate_metadata(str(folder))


def kept_steps(run: Run) -> NDArray[np.int64]:
    """Those whose detail was not deleted."""
    records = run.records()
    return records.loc[~records["deleted"], "step"].to_numpy()


def dataset(run: Run, steps: NDArray[np.int64], *, exponents: bool) -> xr.Dataset:
    """All that is exported of consecutive steps, as far as they are kept."""
    records = run.records().set_index("step")
    steps = steps[np.isin(steps, records.index[~records["deleted"].to_numpy(bool)])]
    span = (int(steps[0]), int(steps[-1])) if len(steps) else (-1, -1)  # no step is negative
    main = run.main(steps=span).sel(step=steps)
    variables = {
        name: main.sel(statistic=name, drop=True).assign_attrs(attributes(name, "merged", None))
        for name in MAIN
    }
    # That of steps in between whose detail is deleted is still there.
    training = run.training(steps=span).sel(step=steps).rename(name="training_name")
    variables["training"] = training.assign_attrs(description="what the job told of itself")
    found = xr.Dataset(variables)
    if exponents:
        counted = _exponents(run, span)
        nothing = {name: counted[name].dtype.type(0) for name in counted.data_vars}
        steps = found["step"].to_numpy()
        found = found.merge(
            counted.reindex(step=steps, fill_value=nothing), compat="equals", join="exact"
        )
    kept = records.loc[found["step"].to_numpy()]
    found = found.assign_coords(
        time=("step", pd.DatetimeIndex(kept["time"]).tz_localize(None).to_numpy()),
        complete=("step", kept["complete"].to_numpy()),
    )
    found["time"].attrs["description"] = "wall clock of the record, UTC"
    return found.assign_attrs(_about(run))


def _exponents(run: Run, span: tuple[int, int]) -> xr.Dataset:
    """Counts by exponent; where nothing was sketched `observed` is false and all counts are 0."""
    found = run.exponents(steps=span).drop_vars(["attempt", "record"])
    names = {name: f"exponent_{name}" for name in map(str, found.data_vars)}
    for variable in found.data_vars.values():
        variable.attrs |= {"units": "elements"}
    found["count"].attrs["description"] = str(found.attrs["description"])
    return found.rename(names).drop_attrs(deep=False)


def _about(run: Run) -> dict[str, Any]:
    sites = run.sites().reset_index()
    return {
        "run": run.name,
        "id": run.zarr().attrs["id"],
        "snapshot": run.snapshot,
        "source": "exported by rankscope",
        "sites": json.loads(sites.to_json(orient="records") or "[]"),
    }


def _append(part: xr.Dataset, folder: Path, *, is_first: bool) -> None:
    if is_first:
        encoding = {
            str(name): {
                "chunks": tuple(
                    max(min(CHUNKS.get(str(axis), size), size) if axis != "step" else AT_ONCE, 1)
                    for axis, size in zip(variable.dims, variable.shape, strict=True)
                )
            }
            for name, variable in part.data_vars.items()
        }
        part.to_zarr(folder, mode="w-", zarr_format=3, consolidated=False, encoding=encoding)
    else:
        part.to_zarr(folder, append_dim="step", zarr_format=3, consolidated=False)
