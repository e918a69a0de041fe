"""Milliseconds that a record takes on its way to sinks: handed over, summed up, written."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankscope.sinks import (
    Numbers,
    Sink,
    Sinks,
    Stored,
    exponents_of,
    numbers_of,
    open_sinks,
    table_of,
)
from rankscope.sinks.json_lines import JsonLines
from rankscope.sinks.prometheus import Prometheus
from rankscope.sinks.tensorboard import TensorBoard
from rankscope.sketch import MAIN, SketchTable, sketch_array
from rankscope.store import Record, SiteInfo

KINDS = "activation", "activation_gradient", "weight", "weight_gradient", "optimizer_state"
SLOTS = "exp_avg", "exp_avg_sq"


def sites_and_record(count: int) -> tuple[list[SiteInfo], Record]:
    """So many sites of five kinds, of 1,000 elements each."""
    rng = np.random.default_rng(0)
    sites = [
        SiteInfo(kind=kind, name=f"layers.{at}", slot=SLOTS[at % 2] if kind == KINDS[-1] else "")
        for at, kind in zip(range(count), KINDS * count, strict=False)
    ]
    arrays = rng.standard_normal((count, 1000)).astype(np.float32)
    record = Record(
        index=0,
        step=0,
        attempt=0,
        time_ns=time.time_ns(),
        ranks=(0,),
        complete=True,
        partial=False,
        final=False,
        sites=np.arange(count),
        merged=SketchTable.concatenate([sketch_array(array) for array in arrays]),
        spread=np.full((count, len(MAIN), 4), np.nan, np.float32),
        by_rank={},
        training={0: {"loss": 1.0}},
        health={0: {}},
    )
    return sites, record


def median_ms(work: Callable[[], object], repeats: int) -> float:
    """Of so many times."""
    work()
    taken: list[float] = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return 1000 * statistics.median(taken)


def rows(count: int, repeats: int, folder: Path) -> dict[str, float]:
    """By what is done the milliseconds that it takes."""
    sites, record = sites_and_record(count)
    stored = Stored(run="demo", launch="one", record=record, sites=sites)
    sinks: Sinks = open_sinks(["prometheus"])[0]
    found = {"handed over": median_ms(lambda: sinks.stored(stored), repeats)}
    sinks.close()
    news = Numbers(
        run="demo",
        attempt=0,
        launch="one",
        record=0,
        step=0,
        time_ns=record.time_ns,
        values=numbers_of(record, sites),
        exponents=exponents_of(record, sites),
    )
    found["summed up"] = median_ms(
        lambda: (numbers_of(record, sites), exponents_of(record, sites)), repeats
    )
    prometheus = Prometheus()
    opened: dict[str, Sink] = {
        "JSON lines": JsonLines(folder / f"{count}.jsonl"),
        "TensorBoard": TensorBoard(folder / str(count)),
        "Prometheus": prometheus,
    }
    with_table = replace(news, table=table_of(record, sites))
    for name, sink in opened.items():
        found[name] = median_ms(lambda sink=sink: sink.take(news), repeats)
        found[f"{name}, with its table"] = median_ms(lambda sink=sink: sink.take(with_table), 5)
        sink.close()
    found["answer to /metrics"] = median_ms(prometheus.render, repeats)
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[100, 2000])
    parser.add_argument("--repeats", type=int, default=30)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [rows(count, asked.repeats, Path(folder)) for count in asked.sites]
    print(f"| ms a record | {' | '.join(f'{count} sites' for count in asked.sites)} |")
    print("|---" * (1 + len(found)) + "|")
    for name in found[0]:
        print(f"| {name} | {' | '.join(f'{one[name]:.3g}' for one in found)} |")


if __name__ == "__main__":
    main()
