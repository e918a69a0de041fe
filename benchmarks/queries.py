"""How long the three queries of a viewer take on a long run: 1,000 sites x 10,000 steps."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rankscope.sketch import MAIN, SketchTable, sketch_array
from rankscope.store import RankInfo, Record, RunWriter, SiteInfo, open_run

COMMIT = 64
"""Records in one commit."""


def write(path: Path, sites: int, steps: int) -> None:
    """A run of one rank."""
    rng = np.random.default_rng(0)
    table = SketchTable.concatenate(
        [sketch_array(rng.standard_normal(64).astype(np.float32)) for _ in range(sites)]
    )
    spread = rng.standard_normal((sites, len(MAIN), 4)).astype(np.float32)
    with RunWriter.open(path, run="bench") as writer:
        attempt = writer.attempt_of("launch")
        writer.set_attempt(attempt, 1, {"dp": 1}, [RankInfo(rank=0)])
        writer.add_sites(
            [SiteInfo(kind="activation", name=f"layers.{i}", order=i) for i in range(sites)]
        )
        for first in range(0, steps, COMMIT):
            records = [
                Record(
                    index=step,
                    step=step,
                    attempt=attempt,
                    time_ns=step,
                    ranks=(0,),
                    complete=True,
                    partial=False,
                    final=False,
                    sites=np.arange(sites),
                    merged=table,
                    spread=spread,
                    by_rank={},
                    training={0: {"loss": 1.0}},
                    health={},
                )
                for step in range(first, min(first + COMMIT, steps))
            ]
            writer.commit(records, streams={"s": first})
            writer.compact_if_due()


def timed(query: Callable[[], object], repeats: int = 5) -> tuple[float, float]:
    """Milliseconds of the first call, and of the best of the others."""
    taken: list[float] = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        query()
        taken.append((time.perf_counter() - begin) * 1e3)
    return taken[0], min(taken[1:])


def main() -> None:
    """Print one row a query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench"
        begin = time.perf_counter()
        write(path, options.sites, options.steps)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        print(
            f"{options.sites} sites x {options.steps} steps, written in "
            f"{time.perf_counter() - begin:.0f} s, {size / 2**20:.0f} MiB"
        )
        run = open_run(path)
        site = str(run.sites().index[options.sites // 2])
        step = options.steps // 2
        queries: dict[str, Callable[[], object]] = {
            "one site, all steps": lambda: run.scalar("rms", sites=[site]),
            "one step, all sites": lambda: run.scalar("rms", steps=(step, step)),
            "heatmap, 1200 x 600": lambda: run.heatmap("rms", width=1200, height=600),
            "exponents of one cell": lambda: run.exponents(sites=[site], steps=(step, step)),
        }
        print("| query | first ms | warm ms |\n|---|---|---|")
        for name, query in queries.items():
            first, warm = timed(query)
            print(f"| {name} | {first:.1f} | {warm:.1f} |", flush=True)


if __name__ == "__main__":
    main()
