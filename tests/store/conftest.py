"""Records to write: small and deterministic, from real tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankscope.sketch import (
    MAIN,
    RANKED,
    RankDistribution,
    SketchTable,
    main_statistics,
    sketch_array,
)
from rankscope.sketch.distribution import SPREAD, SUMMARY
from rankscope.store import Record, RunWriter, SiteInfo

SITES = [
    SiteInfo(kind="activation", name="layers.0.up", dtype="float32", module="Linear", order=0),
    SiteInfo(kind="activation", name="layers.1.up", dtype="float32", module="Linear", order=1),
    SiteInfo(kind="weight", name="layers.0.up.weight", dtype="float32", shape=(4, 2), order=3),
    SiteInfo(kind="optimizer_state", name="layers.0.up.weight", slot="exp_avg", order=2),
]

Tensors = Mapping[int, NDArray[np.float32]]


def build_record(
    index: int,
    tensors: Tensors | Mapping[int, Tensors] | None = None,
    *,
    look: Callable[[NDArray[Any]], SketchTable] = sketch_array,
    peers: Mapping[int, int] | None = None,
    **changes: Any,
) -> Record:
    """A record of those tensors: {site: tensor}, or {rank: {site: tensor}}.

    `peers` are the coordinates of ranks on the axis `tp`.
    """
    given = default_tensors(index) if tensors is None else tensors
    nested = any(isinstance(value, Mapping) for value in given.values())
    by_rank: Mapping[int, Tensors] = given if nested else {0: given}  # type: ignore[assignment]
    sites = np.array(sorted({site for one in by_rank.values() for site in one}), np.intp)
    tables = {rank: table_of(one, sites, look) for rank, one in by_rank.items()}
    merged = SketchTable.empty(len(sites))
    for table in tables.values():
        merged = merged.merge(table)
    numbers = {
        rank: np.where(
            np.isin(sites, list(by_rank[rank]))[:, None], main_statistics(table), np.nan
        ).astype(np.float32)
        for rank, table in tables.items()
    }
    facts: dict[str, Any] = {
        "index": index,
        "step": index,
        "attempt": 0,
        "time_ns": 1_700_000_000_000_000_000 + index * 10**9,
        "ranks": tuple(sorted(by_rank)),
        "complete": True,
        "partial": False,
        "final": False,
        "sites": sites,
        "merged": merged,
        "spread": spread_of(numbers, len(sites)),
        "by_rank": numbers,
        "distribution": distribution_of(numbers, peers or dict.fromkeys(numbers, 0)),
        "training": {rank: {"loss": float(10 - index + rank)} for rank in by_rank},
        "health": {rank: {"dropped": float(index)} for rank in by_rank},
    }
    return Record(**facts | changes)


@cache
def default_tensors(index: int) -> Tensors:
    return {
        site: np.random.default_rng([index, site]).normal(size=40).astype(np.float32)
        for site in range(len(SITES))
    }


def table_of(
    tensors: Tensors, sites: NDArray[np.intp], look: Callable[[NDArray[Any]], SketchTable]
) -> SketchTable:
    rows = [look(tensors[site]) if site in tensors else SketchTable.empty(1) for site in sites]
    return SketchTable.concatenate(rows)


def spread_of(numbers: Mapping[int, NDArray[np.float32]], rows: int) -> NDArray[np.float32]:
    ranks = np.array(sorted(numbers), np.float32)
    stacked = np.stack([numbers[rank] for rank in sorted(numbers)])
    unknown = np.isnan(stacked).all(axis=0)
    told = np.where(unknown, 0, stacked)
    ends = np.stack([np.nanargmin(told, axis=0), np.nanargmax(told, axis=0)])
    values = np.take_along_axis(told, ends, axis=0)
    spread = np.stack([*values, *ranks[ends]], axis=-1)
    spread[unknown] = np.nan
    return spread.reshape(rows, len(MAIN), len(SPREAD))


def distribution_of(
    numbers: Mapping[int, NDArray[np.float32]], peers: Mapping[int, int]
) -> NDArray[np.float32]:
    columns = [MAIN.index(name) for name in RANKED]
    found: list[NDArray[np.float32]] = []
    for one in range(max(peers.values()) + 1):
        ranks = [rank for rank in sorted(numbers) if peers[rank] == one]
        values = np.stack([numbers[rank][:, columns] for rank in ranks])
        over = RankDistribution.of(values.reshape(len(ranks), -1), ranks).summary()
        found.append(over.reshape(*values.shape[1:], len(SUMMARY)))
    return np.stack(found)


@pytest.fixture
def record() -> Callable[..., Record]:
    """Makes a record: `record(index, {site: tensor}, step=…)`."""
    return build_record


@pytest.fixture(scope="session")
def record_maker() -> Callable[..., Record]:
    """The same, for runs that several tests share."""
    return build_record


@pytest.fixture(scope="session")
def all_sites() -> list[SiteInfo]:
    """The four sites, for the same."""
    return SITES


@pytest.fixture
def sites() -> list[SiteInfo]:
    """Four sites of three kinds; the last is executed before the third."""
    return SITES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the run `gpt` lies."""
    return tmp_path / "gpt"


@pytest.fixture
def writer(path: Path) -> Iterator[RunWriter]:
    """A writer with one attempt of two ranks and the four sites."""
    with RunWriter.open(path, run="gpt") as writer:
        attempt = writer.catalog.attempt_of("first launch")
        writer.catalog.set_attempt(attempt, 2, {"dp": 2}, [])
        writer.catalog.add_sites(SITES)
        yield writer
