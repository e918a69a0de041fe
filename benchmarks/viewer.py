"""How the viewer feels on a long run, in a real browser: 1,000 sites x 10,000 steps by default.

The server is a process of its own, so that its time and memory are told apart from the browser's.
Each row is one figure beside what is aimed at; needs Chromium.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import queries

from rankscope.sketch import SketchTable, main_statistics, sketch_array
from rankscope.store import RankInfo, Record, RunWriter, SiteInfo, open_run
from rankscope.viewer.follow import Follower
from rankscope.viewer.pages import Visited
from rankscope.viewer.session import Session
from rankscope.viewer.state import Choice
from rankscope.viewer.views import CONTENTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
IDLE = """() => window.Bokeh !== undefined && Bokeh.documents.length > 0
  && Bokeh.documents[0].is_idle && [...Bokeh.index.query((view) => view.model.name)].length > 0"""
CLICKED = """async ([x, y]) => {
  const view = [...Bokeh.index.query((view) => view.model.name === "heatmap")][0];
  const box = view.el.getBoundingClientRect(), frame = view.frame;
  const at = (fraction, scale, start, end) => scale.compute(start + fraction * (end - start));
  const {x_range, y_range} = view.model;
  return [box.left + at(x, frame.x_scale, x_range.start, x_range.end),
          box.top + at(y, frame.y_scale, y_range.end, y_range.start)];
}"""
PAINTED = """async (before) => {
  const begin = performance.now();
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  while (window.location.search === before && performance.now() - begin < 5000) await frame();
  while (!Bokeh.documents[0].is_idle) await frame();
  await frame(); await frame();
  return performance.now();
}"""
CLICKS = 40
SESSIONS = 20
REST_S = 10.0
"""How long the processor is watched."""


@contextmanager
def served(path: Path, port: int = 0) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A viewer of a run, and its address."""
    command = [sys.executable, "-m", "rankscope", "view", str(path), "--no-open"]
    process = subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        yield process, found[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def memory_mb(process: int) -> float:
    """What a process has in memory."""
    return psutil.Process(process).memory_info().rss / 2**20


def cpu_s(process: int) -> float:
    """Processor time of a process so far."""
    times = psutil.Process(process).cpu_times()
    return times.user + times.system


def row(what: str, measured: str, aim: str) -> None:
    """Print a figure."""
    print(f"{what:<44} {measured:>22}   {aim}", flush=True)


def p50_p95(values: list[float], unit: str = "ms") -> str:
    """Median and 95th percentile."""
    high = float(np.quantile(values, 0.95))
    return f"{statistics.median(values):.0f} / {high:.0f} {unit}"


def load_s(context: BrowserContext, address: str) -> tuple[float, Page]:
    """Open a page until it is idle."""
    page = context.new_page()
    begin = time.perf_counter()
    page.goto(address)
    page.wait_for_function(IDLE, timeout=60_000)
    return time.perf_counter() - begin, page


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


def report_clicks(page: Page, dice: np.random.Generator) -> None:
    """A click in the map until the address and all pictures are new."""
    taken = list[float]()
    for x, y in dice.uniform(0.02, 0.98, (CLICKS, 2)).tolist():
        left, top = page.evaluate(CLICKED, [x, y])
        before = page.evaluate("() => window.location.search")
        begin = page.evaluate("() => performance.now()")
        page.mouse.click(left, top)
        painted = page.evaluate(PAINTED, before)
        if page.evaluate("() => window.location.search") != before:  # not the same cell again
            taken.append(painted - begin)
    row("click to painted, p50 / p95", p50_p95(taken), "250 / 500 ms")


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
            taken, sizes = list[float](), list[int]()
            for step in range(200, 215):
                heard[0] = 0
                writer.commit([record(step)], streams={})
                follower.look()
                begin = time.perf_counter()
                visited.tick()
                taken.append((time.perf_counter() - begin) * 1e3)
                page.wait_for_timeout(1500)
                sizes.append(heard[0])
            page.close()
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
