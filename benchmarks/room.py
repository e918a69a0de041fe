"""Bytes on disk for a site and record of a finished run, by array; and how long commits take.

The sites are tensors whose scale and shape of distribution drift, each with its own dtype's grain,
so that all digits are as noisy as those of training. With several ranks each holds its own samples
of them, as data-parallel ranks do. `--of` looks at a run that is there already.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from zarr.core.sync import sync

from rankscope.merge.over_ranks import spread_over_ranks
from rankscope.sketch import MAIN, SketchTable, main_statistics, sketch_array
from rankscope.sketch.distribution import RANKED, RankDistribution
from rankscope.store import RankInfo, Record, RunWriter, SiteInfo, open_run

ELEMENTS = 4096


def tables(rng: np.random.Generator, sites: int, records: int, dtype: Any) -> list[SketchTable]:
    """Sketches of one rank, a table a record."""
    size = np.exp2(rng.integers(-12, 4, sites))
    made: list[SketchTable] = []
    for _ in range(records):
        size *= np.exp2(rng.normal(0, 0.02, sites))
        values = rng.standard_normal((sites, ELEMENTS)) * size[:, None]
        values[::3] = np.maximum(values[::3], 0)  # after a ReLU
        made.append(SketchTable.concatenate([sketch_array(row) for row in values.astype(dtype)]))
    return made


def record_of(index: int, of_ranks: list[SketchTable], kept: bool) -> Record:
    """The record that the ranks' tables make up."""
    merged = of_ranks[0]
    for table in of_ranks[1:]:
        merged = merged.merge(table)
    ranks = list(range(len(of_ranks)))
    numbers = np.stack([main_statistics(table).astype(np.float32) for table in of_ranks])
    some = [MAIN.index(name) for name in RANKED]
    over = RankDistribution.of(numbers[:, :, some].reshape(len(ranks), -1), ranks).summary()
    peers = over.reshape(1, len(merged), len(some), -1)
    return Record(
        index=index,
        step=index,
        attempt=0,
        time_ns=1_700_000_000_000_000_000 + index * 10**8,
        ranks=tuple(ranks),
        complete=True,
        partial=False,
        final=False,
        sites=np.arange(len(merged)),
        merged=merged,
        spread=spread_over_ranks(numbers, ranks),
        by_rank=dict(enumerate(numbers)) if kept else {},
        training={0: {"loss": 1.0 / (index + 1)}},
        health={},
        distribution=peers if len(ranks) > 1 else peers[:0],
    )


def stored(path: Path) -> Counter[str]:
    """Bytes of the chunks of each array."""
    store = open_run(path).zarr().store

    async def sizes() -> Counter[str]:
        found: Counter[str] = Counter()
        async for key in store.list():
            place, _, chunk = key.partition("/c/")
            if chunk:
                found[place] += await store.getsize(key)
        return found

    return sync(sizes())


def show(path: Path) -> None:
    """Print the table of a run."""
    run = open_run(path)
    rows = len(run.sites()) * len(run.records())
    print("| array | bytes a site and record |\n|---|---|")
    found = stored(path)
    for name, size in found.most_common():
        print(f"| `{name}` | {size / rows:.1f} |")
    print(f"| all | {found.total() / rows:.1f} |")


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=64)
    parser.add_argument("--records", type=int, default=2048)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--keep-ranks", action="store_true", help="main statistics by rank, too")
    parser.add_argument("--of", type=Path, help="a finished run")
    options = parser.parse_args()
    if options.of:
        show(options.of)
        return
    dtype = ml_dtypes.bfloat16 if options.dtype == "bfloat16" else np.float32
    made = [
        tables(np.random.default_rng(rank), options.sites, options.records, dtype)
        for rank in range(options.ranks)
    ]
    taken: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench"
        with RunWriter.open(path, run="bench") as writer:
            attempt = writer.catalog.attempt_of("launch")
            ranks = [RankInfo(rank=rank) for rank in range(options.ranks)]
            writer.catalog.set_attempt(attempt, options.ranks, {"dp": options.ranks}, ranks)
            writer.catalog.add_sites(
                [SiteInfo(kind="activation", name=f"layers.{i}") for i in range(options.sites)]
            )
            for index, tables_of in enumerate(zip(*made, strict=True)):
                record = record_of(index, list(tables_of), options.keep_ranks)
                begin = time.perf_counter()
                writer.commit([record], streams={"s": index})
                taken.append(time.perf_counter() - begin)
                writer.compact_if_due()
            writer.finish()
        print(f"{options.ranks} ranks, {options.sites} sites x {options.records}, {options.dtype}")
        show(path)
    half, most = np.percentile(np.array(taken[16:]) * 1e3, [50, 99])
    print(f"Commits of one record: median {half:.1f} ms, 99th percentile {most:.1f} ms.")


if __name__ == "__main__":
    main()
