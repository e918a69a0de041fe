"""A viewer in a process of its own, a page of it in a real browser, and rows of figures.

The server is apart from the browser so that its time and memory are told apart.
"""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

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
