"""What the store holds of a finding: the tensor as it was then, and the steps before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..sketch.labels import more_words
from .ranks import LEAST_OCTAVES
from .rule import figures

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from ..store.query import Run
    from ..store.record import Alert

BEFORE = 4
"""So many steps before it are told."""
SHOWN = ("rms", "abs_max", "nonfinite")
LEAP, SEARCHED = 8.0, 8
"""By so many times a weight that leaps grows in one step; in so many records before."""
BEFORE_ZERO = 1e-4
"""A weight of a smaller rms says nothing by what it grows by: it began at about zero."""
BESIDE = ("zero", "nan", "pos_inf", "neg_inf", "under", "over")
"""Where elements are counted that are in no bin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A tensor in one step, over all ranks; None where it was not observed."""

    step: int
    rms: float | None
    abs_max: float | None
    nonfinite: float | None
    """How many elements are NaN or infinite; on the first rank to blame, if that has more of them:
    of copies one is merged, and it may be another."""
    blamed_rms: float | None
    """The rms of the first rank to blame, where it is kept."""
    peers_rms: float | None
    """The median rms of the ranks that hold the same part of the model and are not to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponents:
    """The elements of a tensor in one step, over all ranks, by their exponent."""

    step: int
    total: int
    zero: int
    nan: int
    infinite: int
    counts: Mapping[int, int]
    """Of n, how many have 2^n <= |x| < 2^(n+1); exponents of none are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The tensor of a finding; empty where it is of none."""

    moments: Sequence[Moment] = ()
    """The last recorded steps before it, that in which it began, and that in which it was told."""
    exponents: Exponents | None = None
    """In the step in which it was told, or the last before that was sketched; None: in neither, or
    it has none over all ranks."""


def is_apart(stored: Evidence) -> bool:
    """Whether the rank to blame was far from its peers when that was told."""
    if not stored.moments:
        return False
    last = stored.moments[-1]
    if not last.blamed_rms or not last.peers_rms:
        return False
    return abs(math.log2(last.blamed_rms / last.peers_rms)) >= LEAST_OCTAVES


def evidence_of(run: Run, cause: Alert, records: pd.DataFrame) -> Evidence:
    """What a run holds of the site of an alert.

    Args:
        run: that it is of.
        cause: the alert; it is of a site of the run.
        records: of all attempts, see `Run.records`.
    """
    own = records[records["attempt"] == cause.attempt]
    steps = np.unique(np.asarray(own["step"], np.int64))
    at_record = np.asarray(records.index) == cause.record
    told = max([cause.first_step, *records.loc[at_record, "step"].tolist()])
    begun = int(np.searchsorted(steps, cause.first_step))
    first = int(steps[max(begun - BEFORE, 0)]) if len(steps) else cause.first_step
    stored = run.main(sites=[cause.site], steps=(first, told), attempt=cause.attempt)
    shown = stored.isel(site=0).sel(statistic=list(SHOWN))
    seen = shown.isel(step=np.flatnonzero(shown.notnull().any("statistic").values))
    at = seen["step"].values
    chosen = (at <= cause.first_step) | (at == told)
    blamed, peers = _rms_of_ranks(run, cause, at)
    spoilt = _nonfinite_of_rank(run, cause, at)
    return Evidence(
        moments=[
            _moment(seen.isel(step=place), *(found.get(step) for found in (blamed, peers, spoilt)))
            for place, step in enumerate(at.tolist())
            if chosen[place]
        ],
        exponents=_exponents(run, cause.site, (first, told), cause.attempt),
    )


def leap_before(run: Run, step: int, attempt: int, records: pd.DataFrame) -> str:
    """Which weights grew many times larger just before a step, and when, in a sentence, if any.

    Args:
        records: of all attempts, see `Run.records`.
    """
    own = records[records["attempt"] == attempt]
    steps = np.unique(np.asarray(own["step"], np.int64))
    before = steps[steps <= step][-SEARCHED:]
    if not len(before) or "weight" not in set(run.sites()["kind"]):
        return ""
    sizes = run.scalar("rms", kind="weight", steps=(int(before[0]), step), attempt=attempt)
    rms, steps = sizes.values, sizes["step"].values
    known = np.where((rms[:-1] >= BEFORE_ZERO) & np.isfinite(rms[1:]), rms[:-1], np.nan)
    growth = rms[1:] / known / np.diff(steps)[:, None]
    leapt = np.flatnonzero((growth >= LEAP).any(axis=1))
    if not len(leapt):
        return ""
    at = int(leapt[0])
    most, others = int(np.nanargmax(growth[at])), np.flatnonzero(growth[at] >= LEAP)[1:]
    return (
        "Weights had leapt before: the rms of "
        f"{sizes['site'].values[most]}{more_words(others.tolist())} went from "
        f"{figures(float(rms[at, most]))} to {figures(float(rms[at + 1, most]))} between steps "
        f"{steps[at]} and {steps[at + 1]}. Look at the learning rate first."
    )


def _rms_of_ranks(
    run: Run, cause: Alert, steps: NDArray[np.int64]
) -> tuple[dict[int, float], dict[int, float]]:
    """By step the rms of the first rank to blame, and the median of its peers, where kept."""
    kept = None if cause.undetermined else _on_ranks(run, cause, "rms", steps)
    if kept is None:
        return {}, {}
    first, span = cause.ranks[0], (int(steps[0]), int(steps[-1]))
    found = run.rank_ratios("rms", site=cause.site, steps=span, attempt=cause.attempt)
    group = dict(zip(found.ranks, found.group, strict=True))
    others = [
        rank
        for rank in kept["rank"].values.tolist()
        if group.get(rank, -1) == group.get(first) and rank not in cause.ranks
    ]
    rest = kept.sel(rank=others).dropna("step", how="all")
    return _by_step(kept.sel(rank=first).dropna("step")), _by_step(rest.median("rank"))


def _nonfinite_of_rank(run: Run, cause: Alert, steps: NDArray[np.int64]) -> dict[int, float]:
    """By step how much of the first rank to blame is not finite, where kept."""
    kept = _on_ranks(run, cause, "nonfinite", steps)
    return {} if kept is None else _by_step(kept.sel(rank=cause.ranks[0]).dropna("step"))


def _on_ranks(
    run: Run, cause: Alert, statistic: str, steps: NDArray[np.int64]
) -> xr.DataArray | None:
    """A main statistic on each rank; None where none is kept of the first rank to blame."""
    if not cause.ranks or not len(steps):
        return None
    span = int(steps[0]), int(steps[-1])
    kept = run.ranks(statistic, site=cause.site, steps=span, attempt=cause.attempt)
    return kept if cause.ranks[0] in kept["rank"].values else None


def _by_step(values: xr.DataArray) -> dict[int, float]:
    return dict(zip(values["step"].values.tolist(), values.values.tolist(), strict=True))


def _moment(
    row: xr.DataArray, blamed_rms: float | None, peers_rms: float | None, spoilt: float | None
) -> Moment:
    rms, abs_max, nonfinite = (None if np.isnan(one) else float(one) for one in row.values)
    if nonfinite is not None and spoilt is not None:
        nonfinite = max(nonfinite, spoilt)
    return Moment(
        step=int(row["step"]),
        rms=rms,
        abs_max=abs_max,
        nonfinite=nonfinite,
        blamed_rms=blamed_rms,
        peers_rms=peers_rms,
    )


def _exponents(run: Run, site: str, steps: tuple[int, int], attempt: int) -> Exponents | None:
    """Of the last of these steps in which it was sketched."""
    found = run.exponents(sites=[site], steps=steps, attempt=attempt).isel(site=0)
    sketched = np.flatnonzero(found["observed"].values)
    if not len(sketched):
        return None
    last = found.isel(step=int(sketched[-1]))
    counts = last["count"].values
    beside = sum(int(last[name]) for name in BESIDE)
    if not counts.any() and beside < int(last["total"]):
        return None  # of addends only what is not finite is counted over all ranks
    return Exponents(
        step=int(last["step"]),
        total=int(last["total"]),
        zero=int(last["zero"]),
        nan=int(last["nan"]),
        infinite=int(last["pos_inf"]) + int(last["neg_inf"]),
        counts={
            int(last["exponent"].values[place]): int(counts[place])
            for place in np.flatnonzero(counts)
        },
    )
