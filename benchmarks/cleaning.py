"""What cleaning costs the commits beside it: expiry of snapshots and deletion of what they needed.

With `--url s3://…` on an object store. Cleaning is made due after every 16 transactions here; a
collector waits for a minute.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace

import numpy as np

from rankscope.sketch import MAIN, SketchTable, sketch_array
from rankscope.store import Record, RunWriter, SiteInfo, cleaning
from rankscope.store.place import place_of
from rankscope.store.repository import open_repository


def record(sites: int) -> Record:
    """Of one rank."""
    rng = np.random.default_rng(0)
    one = sketch_array(rng.standard_normal(64).astype(np.float32))
    return Record(
        index=0,
        step=0,
        attempt=0,
        time_ns=0,
        ranks=(0,),
        complete=True,
        partial=False,
        final=False,
        sites=np.arange(sites),
        merged=SketchTable.concatenate([one] * sites),
        spread=rng.standard_normal((sites, len(MAIN), 4)).astype(np.float32),
        by_rank={},
        training={0: {"loss": 1.0}},
        health={},
    )


def commits(url: str, sites: int, records: int) -> list[float]:
    """Milliseconds of each commit of one record."""
    taken: list[float] = []
    one = record(sites)
    with RunWriter.open(url, run="bench") as writer:
        writer.catalog.attempt_of("launch")
        writer.catalog.add_sites(
            [SiteInfo(kind="activation", name=f"layers.{i}", order=i) for i in range(sites)]
        )
        for index in range(records):
            began = time.perf_counter()
            writer.commit([replace(one, index=index, step=index)], streams={})
            taken.append((time.perf_counter() - began) * 1000)
            writer.compact_if_due()
    return taken


def main() -> None:
    """Commit with and without cleaning beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=200)
    parser.add_argument("--records", type=int, default=600)
    parser.add_argument("--url", default="", help="a folder or URL; default: a temporary folder")
    options = parser.parse_args()
    cleaning.EVERY_COMMITS, cleaning.RETENTION_S = 16, 5.0
    print(f"{options.records} commits of one record of {options.sites} sites, in ms")
    for name, every_s in (("no cleaning", 1e9), ("cleaning", 0.0)):
        cleaning.EVERY_S = every_s
        with tempfile.TemporaryDirectory() as folder:
            place = f"{options.url or folder}/{time.time_ns()}"
            taken = commits(place, options.sites, options.records)
            began = time.perf_counter()
            cleaning.Cleaner(open_repository(place_of(place))).clean(0.0)
            last_s = time.perf_counter() - began
        low, high, most = np.percentile(taken, [50, 99, 100])
        print(f"{name:>12}: median {low:.1f}, p99 {high:.1f}, longest {most:.1f}", end="")
        print(f"; what is left is cleaned in {last_s:.2f} s")


if __name__ == "__main__":
    main()
