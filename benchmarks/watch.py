"""What the rules of the watch cost, and what they tell of a healthy job of many ranks.

Records are made as a healthy job of 64 ranks makes them, without the job: magnitudes that wander
and drift, single steps and single ranks that stand out, heavy tails, a loss that falls. `--sites`
and `--steps` say how much; whatever is told is a false alarm.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rankscope.rules import RuleBook, Watch
from rankscope.sketch.derive import MAIN
from rankscope.sketch.distribution import SPREAD, RankDistribution
from rankscope.sketch.table import BINS, COUNTS, MOMENTS, SketchTable
from rankscope.store import Alert, Record, SiteInfo
from rankscope.store.incidents import by_identity, incidents_of

KINDS = ("activation", "activation_gradient", "weight", "weight_gradient", "local_weight_gradient")
ELEMENTS = 1 << 16
ARRAY = NDArray[np.float64]


def sites(count: int) -> list[SiteInfo]:
    """Layers with all kinds of sites."""
    return [
        SiteInfo(
            kind=KINDS[place % len(KINDS)],
            name=f"layers.{place // len(KINDS)}.weight",
            dtype="float16" if place % 10 == 0 else "bfloat16",
            shape=(256, 256),
        )
        for place in range(count)
    ]


def records(count: int, steps: int, ranks: int, seed: int) -> Iterator[Record]:
    """A healthy job, record by record."""
    rng = np.random.default_rng(seed)
    kinds = np.arange(count) % len(KINDS)
    level = rng.uniform(-12, 2, count)
    weights = kinds == KINDS.index("weight")
    wander = np.zeros(count)
    projection = rng.standard_normal(count) * 256 * 2.0**level
    for step in range(steps):
        wander = 0.98 * wander + rng.standard_t(4, count) * 0.05
        trend = -1.5 * np.log2(1 + step / 200) * (kinds != KINDS.index("weight"))
        shock = (rng.random(count) < 1e-3) * rng.uniform(0, 3, count)
        noise = rng.standard_t(5, count) * np.where(weights, 0.0, 0.1)
        octaves = level + trend + wander * ~weights + noise + shock * ~weights
        rms = 2.0**octaves
        own = octaves + rng.standard_t(4, (ranks, count)) * 0.12
        step_size = 2e-3 / (1 + step / 500)
        projection += weights * rng.standard_normal(count) * step_size * 256 * rms
        loss = 2 + 6 * np.exp(-step / 400) + rng.standard_t(4) * 0.1
        yield record(step, rms, 2.0**own, projection, float(loss), rng)


def record(
    step: int, rms: ARRAY, own: ARRAY, projection: ARRAY, loss: float, rng: np.random.Generator
) -> Record:
    """One record of tensors with these magnitudes, and those of each rank."""
    count, ranks = len(rms), len(own)
    counts = np.zeros((count, len(COUNTS)), np.int64)
    counts[:, COUNTS.index("count")] = ELEMENTS
    counts[:, COUNTS.index("zero")] = rng.integers(0, ELEMENTS // 2, count)
    counts[:, COUNTS.index("subnormal")] = ELEMENTS // 100
    moments = np.zeros((count, len(MOMENTS)))
    for name, value in (
        ("m2", rms**2 * ELEMENTS),
        ("l1", 0.8 * rms * ELEMENTS),
        ("projection", projection),
        ("min", -4 * rms),
        ("max", 4 * rms),
        ("abs_min", rms * 1e-3),
    ):
        moments[:, MOMENTS.index(name)] = value
    spread = np.full((count, len(MAIN), len(SPREAD)), np.nan, np.float32)
    spread[:, MAIN.index("nonfinite")] = 0.0
    everyone = list(range(ranks))
    over = [RankDistribution.of(one.astype(np.float32), everyone) for one in (own, 4 * own)]
    summary = np.stack([one.summary() for one in over], axis=1)
    return Record(
        index=step,
        step=step,
        attempt=0,
        time_ns=step,
        ranks=tuple(everyone),
        complete=True,
        partial=False,
        final=False,
        sites=np.arange(count),
        merged=SketchTable(
            counts,
            moments,
            rng.integers(1, 1 << 62, count, np.uint64),
            np.zeros((count, BINS), np.int64),
        ),
        spread=spread,
        by_rank={},
        training={0: {"loss": loss}},
        health={},
        distribution=summary[None].astype(np.float32),
    )


def main() -> None:
    """Print one row, and the incidents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=500)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    known = sites(options.sites)
    watch, alerts, took = Watch(0, known.__getitem__, RuleBook()), list[Alert](), list[float]()
    for one in records(options.sites, options.steps, options.ranks, options.seed):
        begin = time.perf_counter()
        alerts += watch.judge(one, {}, world_size=options.ranks)
        took.append(time.perf_counter() - begin)
    found = incidents_of(by_identity(alerts).values(), known)
    print("| ranks | sites | records | ms a record, median | p99 | incidents | alerts |")
    print("|---|---|---|---|---|---|---|")
    print(
        f"| {options.ranks} | {options.sites} | {options.steps} | {1e3 * np.median(took):.2f} | "
        f"{1e3 * np.quantile(took, 0.99):.2f} | {len(found)} | {len(alerts)} |"
    )
    for one in found:
        print(f"{one.severity} {one.cause.rule}, step {one.first_step}: {one.cause.text}")


if __name__ == "__main__":
    main()
