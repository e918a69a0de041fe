"""Runs that are unlike others: every page tells what there is, and none fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rankscope.viewer.views import CONTENTS

SITE = "activation:blocks.2.mlp.act"


@pytest.mark.parametrize("size", [(1366, 768)])
def test_every_page_of_an_empty_run_says_that_it_is_empty(
    visit: Callable, start: Callable, new_job: Callable, size: tuple[int, int]
) -> None:
    page = visit(start(new_job().path).address, size)
    for entry in CONTENTS:
        page.open(f"?page={entry.name}")
        assert page.page.get_by_role("link", name=entry.title).get_attribute("aria-current")
        # An empty frame with numbers at its axes would look like a plot.
        assert page.page.locator("[data-plot=rank_map], [data-plot=heatmap]").locator(
            "visible=true"
        ).count() == 0  # fmt: skip


def test_one_step_is_enough_for_every_page(
    visit: Callable, start: Callable, new_job: Callable
) -> None:
    job = new_job(bad_step=None, watched=True)
    job.commit(range(7, 8))
    page = visit(start(job.path).address)
    page.open()
    page.sees("over step 7")
    page.open(f"?page=map&site={SITE}&step=7")
    page.sees("activation · step 7 · float16")
    page.open(f"?page=tensor&site={SITE}&step=7")
    page.sees("step 7 · 1 of 1")
    page.open(f"?page=ranks&site={SITE}&step=7")
    page.sees("furthest from the median of its peers")
    page.open("?page=formats")
    page.sees("step 7")


def test_where_all_is_nan_every_page_says_so(
    visit: Callable, start: Callable, new_job: Callable
) -> None:
    job = new_job(bad_step=None, watched=True, all_nan=True)
    job.commit(range(3))
    page = visit(start(job.path).address)
    page.open()
    page.sees("holds 2,048 NaN of 2,048 elements.")
    page.open("?page=map&kind=activation&step=1")
    page.sees("non-finite values in 24 rows, from step 0")
    page.open(f"?page=tensor&site={SITE}&step=1")
    page.sees("No element is finite and not zero: nothing can be lost.")
    page.sees("no element is in a bin; not finite from step 0")
    page.sees("No rms: no element is finite on ranks 0–3 from step 0.")
    page.open(f"?page=ranks&site={SITE}&step=1")
    page.sees("no rank has a number to compare; not finite on ranks 0–3, from step 0")
