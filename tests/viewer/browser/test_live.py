"""A run that is being written, and sessions that come and go."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rankscope.viewer import serve

from .watching import IDLE, RANGE, STEPS

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_advice_stays_unfolded_while_findings_come_in(
    visit: Callable, start: Callable, new_job: Callable
) -> None:
    job = new_job(bad_step=4, bad_rank=1, watched=True)
    job.commit(range(3))
    page = visit(start(job.path, interval_s=0.1).address)
    page.open()
    page.sees("Healthy, as far as it was observed")
    job.commit(range(3, 6))
    page.sees("1 incident.")
    page.page.get_by_text("What it means, and what to try").click()
    page.sees("In numbers:")

    job.commit(range(6, 12))

    page.sees("nonfinite (12)")
    page.settle()
    assert page.page.get_by_text("In numbers:").is_visible()


def test_a_paused_page_waits_until_it_goes_on(
    visit: Callable, start: Callable, new_job: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(5))
    page = visit(start(job.path, interval_s=0.1).address)
    page.open("?page=map&kind=activation")
    page.page.get_by_role("button", name="Pause").click()
    page.sees("paused")

    job.commit(range(5, 8))
    page.sees("paused, 3 newer records")
    page.settle()
    assert page.page.evaluate(RANGE) == [-0.5, 4.5]

    page.page.get_by_role("button", name="Go on").click()
    page.page.wait_for_function(f"String(({RANGE})()) === '-0.5,7.5'")


def test_new_steps_arrive_and_zoom_and_selection_stay(
    visit: Callable, start: Callable, new_job: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(20))
    page = visit(start(job.path, interval_s=0.1).address)
    page.open("?page=map&kind=activation")
    assert page.page.evaluate(RANGE) == [-0.5, 19.5]
    job.commit(range(20, 21))
    page.page.wait_for_function(f"({STEPS})() === 20")
    page.page.wait_for_function(f"String(({RANGE})()) === '-0.5,20.5'")  # a message of its own

    page.page.mouse.click(*page.at("heatmap", 7, 5.5))
    page.sees("activation · step 7 · float16")
    page.settle()
    page.drag(page.at("heatmap", 4, 8), page.at("heatmap", 12, 12))
    page.page.wait_for_url("**/*zoom=*")
    page.settle()
    zoomed, address = page.page.evaluate(RANGE), page.page.url
    assert zoomed == pytest.approx([4, 12], abs=0.3)

    for step in range(21, 24):
        job.commit(range(step, step + 1))
    page.page.wait_for_function(f"({STEPS})() === 23")
    page.settle()
    assert (page.page.evaluate(RANGE), page.page.url) == (zoomed, address)
    page.sees("activation · step 7 · float16")

    page.page.get_by_role("button", name="All steps").click()
    page.page.wait_for_function(f"({RANGE})()[1] === 23.5")


def test_a_session_is_freed_after_its_page_is_closed(
    visit: Callable, start: Callable, broken_job: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(broken_job, forget_s=4.0, interval_s=0.002)
    page = visit(server.address)
    page.open("?page=map")
    page.page.get_by_role("link", name="Triage").click()
    page.sees("What is wrong")
    freed = weakref.ref(server.open[0].visited.page)
    assert len(server.open) == 1
    assert server.runs.only.listeners == 1

    page.page.close()

    deadline = time.monotonic() + 40
    while freed() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.1)  # the server frees by its own clock
    assert server.open == []
    assert server.runs.only.listeners == 0
    assert freed() is None
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_page_comes_back_with_its_state_when_the_server_does(
    browser: Browser, broken_job: Path
) -> None:
    first = serve(broken_job)
    page = browser.new_page()
    page.goto(f"{first.address}?page=map&kind=activation&step=7")
    page.wait_for_function(IDLE, timeout=60_000)
    page.evaluate("() => { window.before = true }")
    first.stop()
    again = serve(broken_job, port=int(first.address.rstrip("/").rpartition(":")[2]))
    try:
        page.wait_for_function("() => window.before === undefined", timeout=60_000)
        page.wait_for_function(IDLE, timeout=60_000)
        assert "step=7" in page.url
        assert again.open
    finally:
        page.close()
        again.stop()
