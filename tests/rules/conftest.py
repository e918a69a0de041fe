"""Records for tests of rules: tensors in, what a collector would make of them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.rules import RuleBook, Watch
from rankscope.sketch import SketchTable, sketch_array
from rankscope.sketch.derive import MAIN, main_statistics
from rankscope.sketch.distribution import RANKED, SPREAD, SUMMARY, RankDistribution
from rankscope.store import Alert, Record, SiteInfo

from .faults import FAULTS
from .runs import make_all

DTYPES = {"float16": np.float16, "float32": np.float32}


@dataclass
class Job:
    """A job under watch, record by record.

    Args:
        sites: what it has.
        ranks: how many ranks; each brings tensors of its own where several are given.
    """

    sites: Sequence[SiteInfo]
    ranks: int = 1
    book: RuleBook = field(default_factory=RuleBook)
    step: int = 0
    kept: list[Record] = field(default_factory=list[Record])
    """All records so far."""

    def __post_init__(self) -> None:
        self.watch = Watch(0, self.sites.__getitem__, self.book)

    def record(
        self, *tensors: Any, training: Mapping[str, float] | None = None, **facts: Any
    ) -> list[Alert]:
        """What is told of one more record; each tensor is of a site, or one of each rank of it."""
        each = [
            self._of_ranks(tensor, site) for tensor, site in zip(tensors, self.sites, strict=True)
        ]
        own = [SketchTable.concatenate([one[rank] for one in each]) for rank in range(self.ranks)]
        merged = own[0]
        for other in own[1:]:
            merged = merged.merge(other)
        numbers = np.stack([main_statistics(one).astype(np.float32) for one in own])
        ranks = tuple(range(self.ranks))
        fields: dict[str, Any] = {
            "index": self.step,
            "step": self.step,
            "attempt": 0,
            "time_ns": self.step,
            "ranks": ranks,
            "complete": True,
            "partial": False,
            "final": False,
            "sites": np.arange(len(tensors)),
            "merged": merged,
            "spread": spread_of(numbers),
            "by_rank": dict(zip(ranks, numbers, strict=True)),
            "training": {0: dict(training or {})},
            "health": {},
            "distribution": distribution_of(numbers),
            **facts,
        }
        record = Record(**fields)
        self.kept.append(record)
        self.step += 1
        return self.watch.judge(record, {}, world_size=self.ranks)

    def records(self, count: int, *tensors: Any, **more: Any) -> list[Alert]:
        """The same several times; tensors may be functions of the step."""
        told = list[Alert]()
        for _ in range(count):
            values = [one(self.step) if callable(one) else one for one in tensors]
            told += self.record(*values, **more)
        return told

    def _of_ranks(self, tensor: Any, site: SiteInfo) -> list[SketchTable]:
        dtype = DTYPES[site.dtype or "float32"]
        several = isinstance(tensor, list)
        own = tensor if several else [tensor] * self.ranks
        return [sketch_array(np.atleast_1d(np.asarray(one)).astype(dtype)) for one in own]


def spread_of(numbers: np.ndarray) -> np.ndarray:
    """float32 [sites, len(MAIN), len(SPREAD)] over float32 [ranks, sites, len(MAIN)]."""
    known = np.where(np.isnan(numbers), -np.inf, numbers)
    spread = np.full((*numbers.shape[1:], len(SPREAD)), np.nan, np.float32)
    spread[..., SPREAD.index("max")] = known.max(0)
    spread[..., SPREAD.index("argmax")] = known.argmax(0)
    spread[..., SPREAD.index("min")] = np.where(np.isnan(numbers), np.inf, numbers).min(0)
    return spread


def distribution_of(numbers: np.ndarray) -> np.ndarray:
    """float32 [peers, sites, len(RANKED), len(SUMMARY)]; nothing of one rank alone."""
    if len(numbers) < 2:
        return np.empty((0, numbers.shape[1], len(RANKED), len(SUMMARY)), np.float32)
    ranks = list(range(len(numbers)))
    over = [RankDistribution.of(numbers[..., MAIN.index(name)], ranks) for name in RANKED]
    return np.stack([one.summary() for one in over], axis=1)[None].astype(np.float32)


@pytest.fixture
def normal() -> Callable[..., np.ndarray]:
    """Normal numbers, other ones each time."""
    rng = np.random.default_rng(0)

    def draw(scale: float = 1.0, size: int = 1024) -> np.ndarray:
        return rng.standard_normal(size) * scale

    return draw


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All faulty runs, each trained once."""
    return make_all([job.name for job in FAULTS], tmp_path_factory.mktemp("bench"))
