"""What a run says about itself, as pandas tables. Pure: the facts come in as arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..sketch.regions import piece_of
from .incidents import by_identity
from .layout import COLUMNS
from .record import Alert, SiteInfo
from .selection import (
    ATTEMPT,
    BAD,
    COMPLETE,
    FINAL,
    GLANCED,
    PARTIAL,
    RANKS,
    ROWS,
    SKETCHED,
    STEP,
    TIME,
    Indices,
    check_attempt,
    ranks_in,
)
from .state import Attempt

NO_TIME = int(np.datetime64("NaT").view(np.int64))
GAUGES = ("stretch",)
"""What agents tell beside their counters, and is not to be added up."""


def records_frame(facts: Indices, attempts: Sequence[Attempt], *, deleted: int) -> pd.DataFrame:
    """One row a record, of all there are, see `Run.records`."""
    missing = [list[int]() for _ in facts]
    for place in np.flatnonzero(facts[:, COMPLETE] == 0).tolist():
        missing[place] = missing_ranks(facts[place], attempts)
    return pd.DataFrame(
        {
            "step": facts[:, STEP],
            "attempt": facts[:, ATTEMPT],
            "time": times(facts[:, TIME]),
            "complete": facts[:, COMPLETE].astype(bool),
            "partial": facts[:, PARTIAL].astype(bool),
            "final": facts[:, FINAL].astype(bool),
            "sites": facts[:, ROWS],
            "sketched": facts[:, SKETCHED],
            "glanced": facts[:, GLANCED],
            "nonfinite": facts[:, BAD],
            "ranks": facts[:, RANKS],
            "deleted": np.arange(len(facts)) < deleted,
            "missing": np.fromiter(missing, object, len(missing)),
        },
        index=pd.Index(np.arange(len(facts)), name="record"),
    )


def missing_ranks(row: Indices, attempts: Sequence[Attempt]) -> list[int]:
    """The ranks of its attempt that a record lacks."""
    size = attempts[row[ATTEMPT]].world_size
    return sorted(set(range(size)).difference(ranks_in(row[len(COLUMNS) :])))


def attempts_frame(facts: Indices, attempts: Sequence[Attempt]) -> pd.DataFrame:
    """One row an attempt, see `Run.attempts`."""
    when = facts[:, [STEP, TIME]]
    own = [when[facts[:, ATTEMPT] == number] for number in range(len(attempts))]
    first, last = (
        [end(rows, axis=0).tolist() if len(rows) else (None, NO_TIME) for rows in own]
        for end in (np.min, np.max)
    )
    return pd.DataFrame(
        {
            "launch": [one.launch for one in attempts],
            "world_size": [one.world_size for one in attempts],
            "mesh": [dict(one.mesh) for one in attempts],
            "ranks": [len(one.ranks) for one in attempts],
            "left": [one.left for one in attempts],
            "records": [len(rows) for rows in own],
            "first_step": pd.array([step for step, _ in first], "Int64"),
            "last_step": pd.array([step for step, _ in last], "Int64"),
            "started": times(np.array([moment for _, moment in first], np.int64)),
            "updated": times(np.array([moment for _, moment in last], np.int64)),
        },
        index=pd.RangeIndex(len(attempts), name="attempt"),
    )


def hosts_frame(attempts: Sequence[Attempt], attempt: int | None) -> pd.DataFrame:
    """One row a rank, see `Run.hosts`."""
    number = len(attempts) - 1 if attempt is None else attempt
    check_attempt(number, attempts)
    ranks = attempts[number].ranks if attempts else ()
    columns = ["rank", "host", "process", "device", "coordinates"]
    rows = [[one.rank, one.host, one.process, one.device, dict(one.coordinates)] for one in ranks]
    return pd.DataFrame(rows, columns=columns).set_index("rank")


def sites_frame(picked: Sequence[SiteInfo]) -> pd.DataFrame:
    """One row a site, see `Run.sites`."""
    index = pd.Index([site.label for site in picked], name="site", dtype=object)
    columns: dict[str, list[Any]] = {
        "kind": [site.kind for site in picked],
        "name": [site.name for site in picked],
        "slot": [site.slot for site in picked],
        "occurrence": [site.occurrence for site in picked],
        "dtype": [site.dtype for site in picked],
        "shape": [site.shape for site in picked],
        "whole": [site.whole for site in picked],
        "module": [site.module for site in picked],
        "order": [site.order for site in picked],
        "placement": [dict(site.placement) for site in picked],
        "aliases": [site.aliases for site in picked],
    }
    return pd.DataFrame(columns, index=index)


def regions_frame(sites: Sequence[SiteInfo], mesh: Mapping[str, int]) -> pd.DataFrame:
    """One row a piece on that mesh, see `Run.regions`."""
    rows: list[tuple[object, ...]] = []
    for site in sites:
        axes = [axis for axis, _ in site.cuts]
        if not axes or not mesh.keys() >= set(axes):
            continue
        for place in product(*(range(mesh[axis]) for axis in axes)):
            at = {axis: (own, mesh[axis]) for axis, own in zip(axes, place, strict=True)}
            cell = ",".join(f"{axis}={own}" for axis, (own, _) in sorted(at.items()))
            rows.append((site.label, cell, *piece_of(site.whole, site.cuts, at), site.whole))
    return pd.DataFrame(rows, columns=["site", "cell", "offset", "shape", "whole"])


def health_frame(ends: NDArray[np.float64], names: Sequence[str]) -> pd.DataFrame:
    """One row a rank, columns (name, latest | total).

    Args:
        ends: float64 [attempts, ranks, names], the last of each attempt; NaN where it has none.
        names: Of the counters, which grow from 0 within each attempt; those of `GAUGES` do not,
            and have no total.
    """
    columns = pd.MultiIndex.from_product([names, ["latest", "total"]], names=["counter", "value"])
    ranks = pd.RangeIndex(ends.shape[1], name="rank")
    frame = pd.DataFrame(np.nan, index=ranks, columns=columns)
    for place, name in enumerate(names if len(ends) else ()):
        of_one = ends[:, :, place]
        frame[(name, "latest")] = latest(of_one)
        seen = np.isfinite(of_one).any(axis=0) & (name not in GAUGES)
        frame[(name, "total")] = np.where(seen, np.nansum(of_one, axis=0), np.nan)
    return frame


def latest(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [columns]: of each column the last number that is not NaN."""
    if not len(numbers):
        return np.full(numbers.shape[1], np.nan)
    known = ~np.isnan(numbers)
    row = len(numbers) - 1 - np.argmax(known[::-1], axis=0)
    return np.where(known.any(axis=0), numbers[row, np.arange(numbers.shape[1])], np.nan)


def events_frame(events: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row an event, see `Run.events`."""
    columns = ["kind", "attempt", "rank", "step", "text", "time_ns"]
    frame = pd.DataFrame(list(events), columns=columns)
    frame["time"] = times(frame.pop("time_ns").to_numpy(np.int64))
    return frame


def gaps_frame(events: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a gap, see `Run.gaps`."""
    columns = ["attempt", "rank", "step", "last_step", "frames", "cause", "time_ns"]
    gaps = [event for event in events if event["kind"] == "gap"]
    frame = pd.DataFrame(gaps, columns=columns).rename(columns={"step": "first_step"})
    frame["time"] = times(frame.pop("time_ns").to_numpy(np.int64))
    return frame


def alerts_frame(alerts: Sequence[Alert]) -> pd.DataFrame:
    """One row an alert, see `Run.alerts`: of several entries of one the latest counts."""
    columns = ["rule", "severity", "attempt", "site", "ranks", "first_step", "last_step"]
    columns += ["value", "threshold", "text", "evidence", "time_ns", "undetermined"]
    latest = by_identity(alerts).values()
    rows = [asdict(one) | {"undetermined": one.undetermined} for one in latest]
    frame = pd.DataFrame(rows, columns=columns)
    frame["undetermined"] = frame["undetermined"].astype(bool)
    frame["ranks"] = frame["ranks"].map(tuple).astype(object)
    frame["last_step"] = frame["last_step"].astype("Int64")
    frame["time"] = times(frame.pop("time_ns").to_numpy(np.int64))
    return frame


def times(time_ns: Indices) -> pd.DatetimeIndex:
    """Nanoseconds since 1970 as times in UTC."""
    return pd.DatetimeIndex(time_ns.astype("datetime64[ns]"), tz="UTC")
