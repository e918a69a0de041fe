"""How the Map of a very long run feels in a real browser: 2,000 sites x 100,000 records.

One stretch of the run (2,048 records) is written as any is, with its pyramid, and then all of its
chunks are put in the place of all others: so every question finds as much as it would in a run that
was written record by record. A sentinel looks at each step; each 16th is sketched.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import queries
from browsing import ARGUMENTS, load_s, memory_mb, p50_p95, report_clicks, row, served
from long_run import repeat

from rankscope.sketch import SketchTable, main_statistics, sketch_array
from rankscope.sketch.reference import glance_at
from rankscope.store import RankInfo, Record, RunWriter, SiteInfo, open_run
from rankscope.store.arrays import Arrays, resize
from rankscope.store.layout import ARRAYS, BLOCKS, PYRAMID, STRETCH, pyramid_path
from rankscope.store.state import State
from rankscope.viewer.follow import Follower
from rankscope.viewer.pages import Map, Visited
from rankscope.viewer.session import Session
from rankscope.viewer.state import Choice
from rankscope.viewer.views import CONTENTS

EVERY = 16
"""Records of which one is sketched."""
COMMIT = 128
PARTS = (
    *("norm1", "attn.q", "attn.k", "attn.v", "attn.proj", "attn", "norm2", "mlp.router"),
    *(f"mlp.experts.{n}" for n in range(10)),
    *("mlp", ""),
)
"""What is observed in a transformer's block."""
REPEATS = 5


def write_stretch(path: Path, blocks: int) -> None:
    """One stretch of records, neighbours of which differ."""
    names = [f"layers.{n}.{part}".strip(".") for n in range(blocks) for part in PARTS]
    dice = np.random.default_rng(0)
    tensors = [dice.standard_normal((len(names), 64)).astype(np.float32) for _ in range(3)]
    glances, sketches = (
        [SketchTable.concatenate([look(x) for x in some]) for some in tensors]
        for look in (glance_at, sketch_array)
    )
    spreads = {
        id(one): queries.spread_of_one(main_statistics(one)) for one in (*glances, *sketches)
    }
    with RunWriter.open(path, run="long") as writer:
        writer.catalog.attempt_of("launch")
        writer.catalog.set_attempt(0, 1, {"dp": 1}, [RankInfo(rank=0)])
        writer.catalog.add_sites(
            [SiteInfo(kind="activation", name=name, order=n) for n, name in enumerate(names)]
        )
        for first in range(0, STRETCH, COMMIT):
            records = list[Record]()
            for step in range(first, first + COMMIT):
                table = (glances if step % EVERY else sketches)[step % len(tensors)]
                records.append(
                    Record(
                        index=step, step=step, attempt=0, time_ns=step, ranks=(0,), complete=True,
                        partial=False, final=False, sites=np.arange(len(names)), merged=table,
                        spread=spreads[id(table)], by_rank={}, training={0: {"loss": 1.0}},
                        health={},
                    )
                )  # fmt: skip
            writer.commit(records, streams={"s": first})
            writer.compact_if_due()
        writer.finish()


def prolonged(arrays: Arrays, state: State, stretches: int) -> State:
    """The state in which the stretch came so many times, each record in a step of its own."""
    records = stretches * STRETCH
    for name in ARRAYS:
        array = arrays.at("history", name)
        resize(array, (records, *array.shape[1:]))
        repeat(array, STRETCH, stretches, [])
    facts = arrays.at("history", "records")
    rows = np.asarray(facts[:])
    rows[:, 0] = np.arange(records)
    facts[:] = rows
    for block, name in product(BLOCKS, PYRAMID):
        array = arrays.open(pyramid_path(block, name))
        rows = STRETCH // block
        resize(array, (records // block, *array.shape[1:]))
        if rows % array.chunks[0] == 0:
            repeat(array, rows, stretches, [])
        else:
            array[:] = np.tile(array[:rows], (stretches, *[1] * (array.ndim - 1)))
    ends = dict.fromkeys(state.history, records)
    return replace(state, records=records, recent=records, history=ends, stretches=stretches)


def report_server(path: Path) -> None:
    """What the server does for the whole run and for a tenth of it, without a browser."""
    run = open_run(path)
    choice = Choice(page="map", statistic="abs_max", kind="activation")
    begin = time.perf_counter()
    session = Session(Follower(run), choice, now=time.time)
    visited = Visited(session, {entry.name: entry.model for entry in CONTENTS})
    row("server, opening the map", f"{time.perf_counter() - begin:.2f} s", "")
    last = float(run.records()["step"].iloc[-1])
    for name, zoom in (("a tenth", 0.1), ("a hundredth", 0.01), ("a thousandth", 0.001)):
        taken = list[float]()
        for start in np.linspace(0, 0.8, REPEATS):
            begin = time.perf_counter()
            choice.zoom = (start * last, (start + zoom) * last)
            taken.append((time.perf_counter() - begin) * 1e3)
        row(f"server, a zoom to {name}, p50 / p95", p50_p95(taken), "")
    for fold in ("0", "1", "2"):
        choice.zoom = None
        begin = time.perf_counter()
        choice.fold = fold
        row(f"server, fold={fold}", f"{(time.perf_counter() - begin) * 1e3:.0f} ms", "")
        page = visited.page
        assert isinstance(page, Map)
        assert page.heatmap.grid is not None
        taken = list[float]()
        for column in range(10, 20):
            begin = time.perf_counter()
            page.select(0, column)
            taken.append((time.perf_counter() - begin) * 1e3)
        rows = len(page.heatmap.grid.names)
        row(f"server, a click of {rows} rows, p50 / p95", p50_p95(taken), "")


def main() -> None:
    """Print one row a figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=100)
    parser.add_argument("--stretches", type=int, default=49)
    parser.add_argument("--keep", type=Path, help="write the run here, or ask the one that is here")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path: Path = options.keep or Path(folder) / "bench"
        begin = time.perf_counter()
        if not path.exists():
            write_stretch(path, options.blocks)
            with RunWriter.open(path, run="long") as writer:
                writer._transact(  # pyright: ignore[reportPrivateUsage]
                    lambda arrays, state: prolonged(arrays, state, options.stretches), "Prolonged"
                )
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        count = len(PARTS) * options.blocks, options.stretches * STRETCH
        print(
            f"{count[0]} sites x {count[1]} records, {size / 2**30:.1f} GiB, written in "
            f"{time.perf_counter() - begin:.0f} s"
        )
        report_server(path)
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        with served(path) as (process, address):
            context = browser.new_context(viewport={"width": 1400, "height": 900})
            address += "?page=map&stat=abs_max"
            cold, page = load_s(context, address)
            page.close()  # a page in the background is painted once a second
            warm, page = load_s(context, address)
            row("load Map, cold / warm", f"{cold:.2f} / {warm:.2f} s", "")
            report_clicks(page, np.random.default_rng(0))
            row("memory of the server", f"{memory_mb(process.pid):.0f} MB", "")
        browser.close()


if __name__ == "__main__":
    main()
