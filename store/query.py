"""Questions about a run: what was observed, labelled, from one snapshot at a time.

Steps are chosen inclusively. Of a step that was recorded by several attempts the last counts,
unless `attempt` says otherwise. Numbers that were not observed are NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
import zarr
from numpy.typing import NDArray

from ..sketch.derive import MAIN, check_statistic, derive
from ..sketch.errors import SettingError
from ..sketch.formats import FORMATS
from ..sketch.table import BINS, COUNT, COUNTS, FIRST_EXPONENT, LAST_EXPONENT, SketchTable
from .describe import attributes
from .fit import fit_formats
from .frames import attempts_frame, events_frame, health_frame, records_frame, sites_frame
from .logframe import logframe
from .pooling import Heatmap, Pool, group_size, pool_any, pool_numbers
from .reader import NONFINITE, Reader
from .record import SPREAD, SiteInfo
from .selection import (
    ATTEMPT,
    Chosen,
    Indices,
    Steps,
    choose_records,
    choose_sites,
    choose_step,
)

View = str | int
"""`merged`, one rank, or `min`, `max`, `argmin`, `argmax` over ranks."""
Labels = str | Collection[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstNonfinite:
    """Where NaN or infinity first appeared."""

    site: str
    kind: str
    name: str
    step: int
    ranks: tuple[int, ...]
    """The ranks that had such values there; empty where the run kept no numbers by rank."""
    previous_step: int | None
    """The last step before it in which the site was observed, if any."""


def open_run(path: str | Path) -> Run:
    """Open a run for reading, while it is written or later.

    Raises:
        NotARunError: the path holds no run; the message says what it holds.
        StoreError: it cannot be read.
    """
    return Run(Reader(path))


class Run:
    """A run as of one snapshot; `refresh` moves to the newest."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __repr__(self) -> str:
        return f"<Run {self.name!r} at {self.path}, {self._reader.state.records} records>"

    @property
    def name(self) -> str:
        """Name of the run."""
        return self._reader.snapshot.run

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._reader.path

    @property
    def finished(self) -> bool:
        """Whether its writer ended it; a later attempt begins it again."""
        return self._reader.state.finished

    @property
    def snapshot(self) -> str:
        """The snapshot that all answers are from."""
        return self._reader.snapshot.id

    @property
    def marked_formats(self) -> tuple[str, ...]:
        """Number formats that the run asks its viewers to mark."""
        return self._reader.snapshot.formats

    @property
    def attempts(self) -> pd.DataFrame:
        """By attempt: launch, world_size, mesh, ranks, records, first_step, last_step, started, updated."""
        return attempts_frame(self._reader.facts(), self._reader.meta.attempts)

    def refresh(self) -> bool:
        """Move to the newest snapshot; whether there was a newer one."""
        return self._reader.refresh()

    def records(self, *, all_attempts: bool = False) -> pd.DataFrame:
        """By record: step, attempt, time (UTC), complete, partial, final, ranks, missing.

        `ranks` is how many ranks it holds, `missing` lists the others of its attempt.
        """
        facts, attempts = self._reader.facts(), self._reader.meta.attempts
        return records_frame(facts, attempts, all_attempts=all_attempts)

    def sites(
        self, kind: str | Collection[str] | None = None, name: str | None = None
    ) -> pd.DataFrame:
        """By label, in the order of execution: kind, name, slot, occurrence, dtype, shape, module, …

        Raises:
            SettingError: nothing matches.
        """
        known = self._reader.meta.sites
        return sites_frame(known, choose_sites(known, kind=kind, name=name).tolist())

    def scalar(
        self,
        statistic: str,
        *,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        sites: Labels = None,
        steps: Steps = None,
        view: View = "merged",
        attempt: int | None = None,
    ) -> xr.DataArray:
        """One statistic over (step, site).

        Main statistics are float32 and come in every view; the others are derived from the exact
        columns, as float64, for the merged view.

        Args:
            statistic: A name of `rankscope.sketch.STATISTICS`.
            kind: Only sites of this kind, or these.
            name: Only sites in whose name this regular expression is found.
            sites: Only these labels, in this order.
            steps: Which steps, both ends included.
            view: `merged`, a rank, or `min`, `max`, `argmin`, `argmax` over ranks.
            attempt: Only records of this attempt.

        Raises:
            SettingError: there is no such statistic, site, view or attempt.
        """
        places = self._sites(kind, name, sites)
        chosen = choose_records(self._reader.facts(), steps=steps, attempt=attempt)
        values = self._values(statistic, chosen.records, places, view)
        return xr.DataArray(
            values,
            dims=("step", "site"),
            coords=step_coordinates(chosen) | self._site_coordinates(places),
            name=statistic,
            attrs=attributes(statistic, view, attempt),
        )

    def main(
        self,
        *,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        sites: Labels = None,
        steps: Steps = None,
        attempt: int | None = None,
    ) -> xr.DataArray:
        """All main statistics over (step, site, statistic), float32: quickest for one step.

        Raises:
            SettingError: there is no such site or attempt.
        """
        places = self._sites(kind, name, sites)
        chosen = choose_records(self._reader.facts(), steps=steps, attempt=attempt)
        return xr.DataArray(
            self._reader.read("scalars", chosen.records, places),
            dims=("step", "site", "statistic"),
            coords=step_coordinates(chosen)
            | self._site_coordinates(places)
            | {"statistic": list(MAIN)},
            name="main",
        )

    def ranks(
        self,
        statistic: str,
        *,
        site: str,
        steps: Steps = None,
        attempt: int | None = None,
    ) -> xr.DataArray:
        """One main statistic of one site over (step, rank); NaN for ranks that are not kept.

        Raises:
            SettingError: it is no main statistic, or there is no such site.
        """
        column = main_column(statistic, "ranks")
        [place] = self._sites(None, None, site)
        chosen = choose_records(self._reader.facts(), steps=steps, attempt=attempt)
        values = self._reader.read("ranks", chosen.records, slice(None), int(place), column)
        return xr.DataArray(
            values,
            dims=("step", "rank"),
            coords=step_coordinates(chosen) | {"rank": np.arange(values.shape[1]), "site": site},
            name=statistic,
            attrs=attributes(statistic, "merged", attempt) | {"view": "by rank"},
        )

    def exponents(
        self,
        *,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        sites: Labels = None,
        steps: Steps = None,
        attempt: int | None = None,
    ) -> xr.Dataset:
        """Histograms of exponents: `count` over (step, site, exponent), and what is in no bin.

        Bin n counts the elements with 2^n <= |x| < 2^(n+1). By (step, site) there are zero, nan,
        pos_inf, neg_inf, under, over, total, and `observed`, without which all counts are 0.

        Raises:
            SettingError: there is no such site.
        """
        places = self._sites(kind, name, sites)
        chosen = choose_records(self._reader.facts(), steps=steps, attempt=attempt)
        counts = self._reader.read("counts", chosen.records, places)
        observed = counts[..., COUNT] >= 0
        counts = np.maximum(counts, 0)
        cell = ("step", "site")
        names = ("zero", "nan", "pos_inf", "neg_inf", "under", "over")
        columns = {column: (cell, counts[..., COUNTS.index(column)]) for column in names}
        histogram = self._reader.histograms(chosen.records, places)
        exponents = np.arange(FIRST_EXPONENT, LAST_EXPONENT + 1)
        return xr.Dataset(
            {"count": ((*cell, "exponent"), histogram)}
            | columns
            | {"total": (cell, counts[..., COUNT]), "observed": (cell, observed)},
            coords=step_coordinates(chosen)
            | self._site_coordinates(places)
            | {"exponent": exponents},
            attrs={"units": "elements", "description": "bin n counts 2^n <= |x| < 2^(n+1)"},
        )

    def table(
        self, step: int, sites: Labels = None, *, attempt: int | None = None
    ) -> tuple[list[str], SketchTable]:
        """The exact columns of one step: the labels of the sites observed in it, and a row for each.

        Raises:
            SettingError: the step was not recorded, or there is no such site.
        """
        record = choose_step(self._reader.facts(), step, attempt)
        here, table = self._reader.table(record, self._sites(None, None, sites))
        return [self._label(place) for place in here], table

    def formats(
        self,
        *,
        site: str,
        step: int,
        formats: Sequence[str] = FORMATS,
        attempt: int | None = None,
    ) -> pd.DataFrame:
        """How one tensor would fit number formats: by format the shares that overflow, underflow, …

        Each share comes with the bounds that the histogram guarantees.

        Raises:
            SettingError: the site was not observed in that step, or there is no such format.
        """
        labels, table = self.table(step, [site], attempt=attempt)
        if not labels:
            raise SettingError(f"{site} was not observed in step {step}.")
        return fit_formats(table, formats)

    def heatmap(
        self,
        statistic: str,
        *,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        view: View = "merged",
        steps: Steps = None,
        width: int | None = None,
        height: int | None = None,
        pool: Pool = "max",
        attempt: int | None = None,
    ) -> Heatmap:
        """One statistic over all chosen sites (rows) and steps (columns), at most height x width.

        What falls into one cell is pooled so that the worst is kept: the largest number (or the
        smallest, by `pool`), and whether there was any NaN or infinity.

        Raises:
            SettingError: there is no such statistic, site or view.
        """
        if pool not in ("max", "min"):
            raise SettingError(f"`pool` must be 'max' or 'min', got {pool!r}.")
        if view in ("argmin", "argmax"):
            raise SettingError(f"`view` {view!r} has no worst to pool; ask `scalar` for it.")
        places = self._sites(kind, name, None)
        chosen = choose_records(self._reader.facts(), steps=steps, attempt=attempt)
        values = self._values(statistic, chosen.records, places, view)
        bad_view = "max" if view == "min" else view
        bad = self._values("nonfinite", chosen.records, places, bad_view)
        sizes = group_size(len(chosen), width), group_size(len(places), height)
        labels = [self._label(place) for place in places]
        return Heatmap(
            statistic=statistic,
            kind=kind if isinstance(kind, str) else None,
            view=view,
            values=pool_numbers(values.astype(np.float32, copy=False), sizes, pool).T,
            nonfinite=pool_any(bad > 0, sizes).T,
            observed=pool_any(~np.isnan(bad), sizes).T,
            row_sites=[
                labels[start : start + sizes[1]] for start in range(0, len(labels), sizes[1])
            ],
            column_first=chosen.steps[:: sizes[0]],
            column_last=np.append(chosen.steps[sizes[0] - 1 : -1 : sizes[0]], chosen.steps[-1:]),
        )

    def training(self, *, steps: Steps = None, attempt: int | None = None) -> xr.DataArray:
        """Training statistics over (step, rank, name), float64."""
        chosen = choose_records(self._reader.facts(), steps=steps, attempt=attempt)
        values, names = self._numbers("training", chosen.records)
        return xr.DataArray(
            values,
            dims=("step", "rank", "name"),
            coords=step_coordinates(chosen) | {"rank": np.arange(values.shape[1]), "name": names},
            name="training",
        )

    def health(self) -> pd.DataFrame:
        """The agents' counters, by rank: columns (counter, latest | total over attempts)."""
        facts = self._reader.facts()
        numbers, names = self._numbers("health", np.arange(len(facts)))
        return health_frame(numbers, facts[:, ATTEMPT], names)

    def events(self) -> pd.DataFrame:
        """What happened to the pipeline: kind, attempt, rank, step, text, time (UTC)."""
        return events_frame(self._reader.events())

    def first_nonfinite(self) -> FirstNonfinite | None:
        """The earliest step with NaN or infinity, and in it the first site to be executed.

        None where every value observed was finite.
        """
        chosen = choose_records(self._reader.facts())
        places = self._sites(None, None, None)
        if not len(chosen) or not len(places):
            return None
        merged = self._values("nonfinite", chosen.records, places, "merged")
        bad = (merged > 0) | (self._values("nonfinite", chosen.records, places, "max") > 0)
        if not bad.any():
            return None
        at = int(np.argmax(bad.any(axis=1)))
        row = int(np.argmax(bad[at]))
        return self._nonfinite_at(chosen, at, int(places[row]), ~np.isnan(merged[:at, row]))

    def _nonfinite_at(
        self, chosen: Chosen, at: int, place: int, seen: NDArray[np.bool_]
    ) -> FirstNonfinite:
        site = self._reader.meta.sites[place]
        by_rank = self._reader.read("ranks", chosen.records[[at]], slice(None), place, NONFINITE)
        before = chosen.steps[:at][seen]
        return FirstNonfinite(
            site=site.label,
            kind=site.kind,
            name=site.name,
            step=int(chosen.steps[at]),
            ranks=tuple(map(int, np.flatnonzero(by_rank[0] > 0))),
            previous_step=int(before[-1]) if len(before) else None,
        )

    def zarr(self) -> zarr.Group:
        """The snapshot as plain Zarr, read only; `docs/store.md` says what is in it."""
        return self._reader.group

    def logframe(
        self,
        *,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        steps: Steps = None,
    ) -> pd.DataFrame:
        """Rows by (step, site) in the schema of Track & Visualize, see `rankscope.store.logframe`."""
        places = self._sites(kind, name, None)
        chosen = choose_records(self._reader.facts(), steps=steps)
        sites = self._reader.meta.sites
        tables = [self._reader.table(int(record), places) for record in chosen.records]
        return logframe(
            [
                (int(step), [sites[place] for place in here], table)
                for step, (here, table) in zip(chosen.steps, tables, strict=True)
            ]
        )

    def _label(self, place: int) -> str:
        return self._reader.meta.sites[place].label

    def _sites(
        self, kind: str | Collection[str] | None, name: str | None, sites: Labels
    ) -> Indices:
        known = self._reader.meta.sites
        return choose_sites(known, kind=kind, name=name, sites=sites)

    def _site_coordinates(self, places: Indices) -> dict[str, Any]:
        chosen: list[SiteInfo] = [self._reader.meta.sites[place] for place in places]
        return {
            "site": [site.label for site in chosen],
            "kind": ("site", [site.kind for site in chosen]),
            "name": ("site", [site.name for site in chosen]),
            "slot": ("site", [site.slot for site in chosen]),
            "occurrence": ("site", [site.occurrence for site in chosen]),
        }

    def _values(self, statistic: str, records: Indices, places: Indices, view: View) -> NDArray:
        """[records, sites] of a statistic, NaN where it was not observed."""
        check_statistic(statistic)
        if view == "merged" and statistic not in MAIN:
            return self._derived(statistic, records, places)
        column = main_column(statistic, f"view {view!r}")
        if view == "merged":
            return self._reader.read("scalars", records, places, column)
        if isinstance(view, str):
            extreme = spread_column(view)
            return self._reader.read("spread", records, places, column, extreme)
        ranks = self._reader.ranks
        if not 0 <= view < ranks:
            raise SettingError(f"There is no rank {view}; there are 0 to {ranks - 1}.")
        return self._reader.read("ranks", records, int(view), places, column)

    def _derived(self, statistic: str, records: Indices, places: Indices) -> NDArray[np.float64]:
        counts = self._reader.read("counts", records, places)
        moments = self._reader.read("moments", records, places)
        shape = counts.shape[:2]
        flat = SketchTable(
            counts.reshape(-1, counts.shape[2]),
            moments.reshape(-1, moments.shape[2]),
            np.empty(0, np.uint64),
            np.empty((0, BINS), np.int64),
        )
        values = derive(flat, statistic).reshape(shape)
        return np.where(counts[..., COUNT] >= 0, values, np.nan)

    def _numbers(self, name: str, records: Indices) -> tuple[NDArray[np.float64], list[str]]:
        meta = self._reader.meta
        names = list(meta.training if name == "training" else meta.health)
        if not names:
            return np.empty((len(records), self._reader.ranks, 0)), []
        return self._reader.read(name, records, slice(None), slice(0, len(names))), names


def main_column(statistic: str, what: str) -> int:
    """Where a main statistic stands; SettingError for one that is kept merged only."""
    check_statistic(statistic)
    if statistic not in MAIN:
        raise SettingError(
            f"{statistic!r} is kept merged only, not for {what}; by rank there are {', '.join(MAIN)}."
        )
    return MAIN.index(statistic)


def spread_column(view: str) -> int:
    """Where a view over ranks stands on the last axis of the spread."""
    if view not in SPREAD:
        raise SettingError(
            f"`view` must be 'merged', a rank, or one of {', '.join(SPREAD)}, got {view!r}."
        )
    return SPREAD.index(view)


def step_coordinates(chosen: Chosen) -> dict[str, Any]:
    """Coordinates along the steps: which attempt and record each is of."""
    return {
        "step": chosen.steps,
        "attempt": ("step", chosen.attempts),
        "record": ("step", chosen.records),
    }
