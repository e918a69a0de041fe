"""How the viewer feels on a long run, in a real browser: 1,000 sites x 10,000 steps by default.

The server is a process of its own, so that its time and memory are told apart from the browser's.
Each row is one figure beside what is aimed at; needs Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import queries
from browsing import (
    ARGUMENTS,
    CLICKS,
    IDLE,
    cpu_s,
    load_s,
    memory_mb,
    p50_p95,
    report_clicks,
    row,
    served,
)

from rankscope.sketch import SketchTable, main_statistics, sketch_array
from rankscope.store import RankInfo, Record, RunWriter, SiteInfo, open_run
from rankscope.viewer.follow import Follower
from rankscope.viewer.pages import Visited
from rankscope.viewer.session import Session
from rankscope.viewer.state import Choice
from rankscope.viewer.views import CONTENTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SESSIONS = 20
REST_S = 10.0
"""How long the processor is watched."""


def report_loads(browser: Browser, path: Path, pages: list[str]) -> None:
    """From a server that has just started, and again."""
    for name in pages:
        with served(path) as (_, address):
            context = browser.new_context(viewport={"width": 1400, "height": 900})
            cold, _ = load_s(context, f"{address}?page={name}")
            warm = [load_s(context, f"{address}?page={name}")[0] for _ in range(5)]
            row(
                f"load {name}, cold / warm",
                f"{cold:.2f} / {statistics.median(warm):.2f} s",
                "2.0 / 1.4",
            )
            context.close()


def report_server(path: Path) -> None:
    """What the server does for a selection and for a step, without a browser."""
    run = open_run(path)
    labels, steps = run.sites().index.tolist(), run.records()["step"].tolist()
    session = Session(Follower(run), Choice(page="map"), now=time.time)
    visited = Visited(session, {entry.name: entry.model for entry in CONTENTS})
    dice = np.random.default_rng(1)
    for name, aim in (("map", "60 ms"), ("tensor", "60 ms")):
        session.choice.page = name
        taken = list[float]()
        for _ in range(CLICKS):
            site, step = str(dice.choice(labels)), int(dice.choice(steps))
            begin = time.perf_counter()
            session.choice.param.update(site=site, step=step)
            taken.append((time.perf_counter() - begin) * 1e3)
        row(f"server, a selection on {name}, p50 / p95", p50_p95(taken), aim)
    middle = len(steps) // 2
    taken = []
    for step in steps[middle : middle + CLICKS]:
        begin = time.perf_counter()
        session.choice.step = int(step)
        taken.append((time.perf_counter() - begin) * 1e3)
    row("server, a step of scrubbing, p50 / p95", p50_p95(taken), "10 ms")
    assert visited.page


def report_sessions(browser: Browser, process: int, address: str) -> None:
    """Memory of many pages, while they are open and after."""
    begin, closed = memory_mb(process), list[float]()
    for turn in range(3):
        contexts = [browser.new_context() for _ in range(SESSIONS)]
        for context in contexts:
            load_s(context, f"{address}?page=map")
        if not turn:
            each = (memory_mb(process) - begin) / SESSIONS
            row(f"memory of a session, of {SESSIONS}", f"{each:.1f} MB", "3 MB")
        for context in contexts:
            context.close()
        time.sleep(40)
        closed.append(memory_mb(process))
    # An allocator keeps what was freed for the next ones: so a leak is what the next ones add.
    row(f"more after the next {2 * SESSIONS} were closed", f"{closed[-1] - closed[0]:.1f} MB", "0")


def report_rest(page: Page, process: int, address: str) -> None:
    """The processor while nobody does anything."""
    for what in ("an idle page", "a page, and a plain HTTP client"):
        if "plain" in what:
            urllib.request.urlopen(address).read()
        begin, used = time.perf_counter(), cpu_s(process)
        page.wait_for_timeout(REST_S * 1000)
        share = (cpu_s(process) - used) / (time.perf_counter() - begin)
        row(f"processor, {what}", f"{share:.1%}", "10%")


def report_live(browser: Browser, folder: Path, sites: int) -> None:
    """A run that grows while the map is open: bytes and time of a step."""
    path = folder / "live"
    rng = np.random.default_rng(0)
    table = SketchTable.concatenate(
        [sketch_array(rng.standard_normal(64).astype(np.float32)) for _ in range(sites)]
    )
    spread = queries.spread_of_one(main_statistics(table))
    infos = [SiteInfo(kind="activation", name=f"layers.{i}", order=i) for i in range(sites)]

    def record(step: int) -> Record:
        return Record(
            index=step, step=step, attempt=0, time_ns=time.time_ns(), ranks=(0,), complete=True,
            partial=False, final=False, sites=np.arange(sites), merged=table,
            spread=spread, by_rank={},
            training={0: {"loss": 1.0 + 1.0 / (1 + step)}}, health={},
        )  # fmt: skip

    with RunWriter.open(path, run="live") as writer:
        writer.catalog.attempt_of("launch")
        writer.catalog.set_attempt(0, 1, {"dp": 1}, [RankInfo(rank=0)])
        writer.catalog.add_sites(infos)
        writer.commit([record(step) for step in range(200)], streams={})
        follower = Follower(open_run(path))
        session = Session(follower, Choice(page="map"), now=time.time)
        visited = Visited(session, {entry.name: entry.model for entry in CONTENTS})
        heard = [0]
        with served(path) as (_, address):
            page = browser.new_page(viewport={"width": 1400, "height": 900})

            def count(payload: str | bytes) -> None:
                heard[0] += len(payload)

            page.on("websocket", lambda socket: socket.on("framereceived", count))
            page.goto(f"{address}?page=map")
            page.wait_for_function(IDLE, timeout=60_000)
            page.wait_for_timeout(2500)
            looked, taken, sizes = list[float](), list[float](), list[int]()
            for step in range(200, 215):
                heard[0] = 0
                writer.commit([record(step)], streams={})
                begin = time.perf_counter()
                follower.look()
                looked.append((time.perf_counter() - begin) * 1e3)
                begin = time.perf_counter()
                visited.tick()
                taken.append((time.perf_counter() - begin) * 1e3)
                page.wait_for_timeout(1500)
                sizes.append(heard[0])
            page.close()
    row("poller, a look for all pages, p50 / p95", p50_p95(looked), "")
    row("server, a live step, p50 / p95", p50_p95(taken), "10 ms")
    row("sent for a live step, p50 / p95", p50_p95([size / 1e3 for size in sizes], "kB"), "20 kB")


def report_restart(browser: Browser, path: Path) -> None:
    """How long a page needs to be alive again, with its state, after the server's end."""
    with served(path) as (_, address):
        port = int(address.rstrip("/").rpartition(":")[2])
        page = browser.new_page()
        page.goto(f"{address}?page=map&step=7")
        page.wait_for_function(IDLE, timeout=60_000)
        page.evaluate("() => { window.before = true }")
    with served(path, port):
        begin = time.perf_counter()
        page.wait_for_function("() => window.before === undefined", timeout=60_000)
        page.wait_for_function(IDLE, timeout=60_000)
        kept = "step=7" in page.url
        seconds = time.perf_counter() - begin
        row(
            "alive again after a restart",
            f"{seconds:.1f} s",
            "state kept" if kept else "STATE LOST",
        )
        page.close()


def main() -> None:
    """Print one row a figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="write the run here, or ask the one that is here")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path: Path = options.keep or Path(folder) / "bench"
        if not path.exists():
            queries.write(path, options.sites, options.steps)
            with RunWriter.open(path, run="bench") as writer:
                writer.finish()  # as a collector leaves a run that has ended
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        print(f"{options.sites} sites x {options.steps} steps, {browser.version}")
        report_server(path)
        report_loads(browser, path, ["triage", "map", "tensor"])
        with served(path) as (process, address):
            foreign = list[str]()
            context = browser.new_context(viewport={"width": 1400, "height": 900})
            context.on("request", lambda one: foreign.append(one.url))
            _, page = load_s(context, f"{address}?page=map")
            report_clicks(page, np.random.default_rng(0))
            report_rest(page, process.pid, address)
            context.close()
            outside = [url for url in foreign if not url.startswith((address, "blob:", "data:"))]
            row("requests to other machines", str(len(outside)), "0")
            report_sessions(browser, process.pid, address)
        report_live(browser, Path(folder), options.sites)
        report_restart(browser, path)
        browser.close()


if __name__ == "__main__":
    main()
