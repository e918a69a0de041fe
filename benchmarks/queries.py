"""How long the queries of a viewer take on a long run: 1,000 sites x 10,000 steps, or more.

"Cold" is a process of its own that opens the run and asks once, without its imports; what the
kernel has cached of the disk stays. `--dense` reads the same answers from the records, without the
pyramid.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankscope.sketch import SketchTable, main_statistics, sketch_array
from rankscope.sketch.table import Floats
from rankscope.store import RankInfo, Record, Run, RunWriter, SiteInfo, columns, open_run

COMMIT = 64
"""Records in one commit."""
TABLES = 5
"""Tables that differ."""

Query = Callable[[Run, str, int], object]
"""A question about a run, a site and a step."""
QUERIES: dict[str, Query] = {
    "one site, all steps": lambda run, site, step: run.scalar("rms", sites=[site]),
    "one step, all sites": lambda run, site, step: run.scalar("rms", steps=(step, step)),
    "heatmap, 1200 x 600": lambda run, site, step: run.heatmap("rms", width=1200, height=600),
    "exponents of one cell": lambda run, site, step: run.exponents(sites=[site], steps=step),
    "exponents, 1200 sums": lambda run, site, step: run.exponents(sites=[site], width=1200),
}


def write(path: Path, sites: int, steps: int) -> None:
    """A run of one rank; neighbouring records differ."""
    rng = np.random.default_rng(0)
    tables = [
        SketchTable.concatenate(
            [sketch_array(rng.standard_normal(64).astype(np.float32)) for _ in range(sites)]
        )
        for _ in range(TABLES)
    ]
    spreads = [spread_of_one(main_statistics(table)) for table in tables]
    with RunWriter.open(path, run="bench") as writer:
        attempt = writer.catalog.attempt_of("launch")
        writer.catalog.set_attempt(attempt, 1, {"dp": 1}, [RankInfo(rank=0)])
        writer.catalog.add_sites(
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
                    merged=tables[step % TABLES],
                    spread=spreads[step % TABLES],
                    by_rank={},
                    training={0: {"loss": 1.0}},
                    health={},
                )
                for step in range(first, min(first + COMMIT, steps))
            ]
            writer.commit(records, streams={"s": first})
            writer.compact_if_due()


def spread_of_one(numbers: Floats) -> NDArray[np.float32]:
    """float32 [sites, len(MAIN), 4]: what one rank makes of extremes over ranks."""
    ranks = np.where(np.isnan(numbers), np.nan, 0.0)
    return np.stack([numbers, numbers, ranks, ranks], axis=-1).astype(np.float32)


def ask(path: Path, name: str, dense: bool, repeats: int = 5) -> tuple[float, float, float]:
    """Milliseconds to open and ask once, to ask then, and the best of the next calls."""
    begin = time.perf_counter()
    run = open_run(path)
    if dense:
        columns.BLOCKS = ()  # pyright: ignore[reportAttributeAccessIssue]
    sites, steps = run.sites(), run.records()["step"]
    site, step = str(sites.index[len(sites) // 2]), int(steps.iloc[len(steps) // 2])
    opened = time.perf_counter() - begin
    taken: list[float] = []
    for _ in range(repeats + 1):
        before = time.perf_counter()
        QUERIES[name](run, site, step)
        taken.append(time.perf_counter() - before)
    return (opened + taken[0]) * 1e3, taken[0] * 1e3, min(taken[1:]) * 1e3


def report(path: Path, names: list[str], *, dense: bool = False) -> None:
    """Print one row a query, each from a process of its own."""
    print("| query | cold ms | first ms | warm ms |\n|---|---|---|---|")
    for name in names:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            cold, first, warm = pool.submit(ask, path, name, dense).result()
        print(f"| {name} | {cold:.0f} | {first:.1f} | {warm:.1f} |", flush=True)


def main() -> None:
    """Print one row a query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--keep", type=Path, help="write the run here, or ask the one that is here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path: Path = options.keep or Path(folder) / "bench"
        begin = time.perf_counter()
        if not path.exists():
            write(path, options.sites, options.steps)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        print(
            f"{options.sites} sites x {options.steps} steps, written in "
            f"{time.perf_counter() - begin:.0f} s, {size / 2**20:.0f} MiB"
        )
        report(path, list(QUERIES), dense=options.dense)


if __name__ == "__main__":
    main()
