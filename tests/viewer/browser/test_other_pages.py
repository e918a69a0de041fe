"""Ranks, formats and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .watching import COLOUR, SIZES


@pytest.mark.parametrize("size", SIZES)
def test_ranks_are_seen_beside_their_peers_and_a_row_selects(
    visit: Callable, start: Callable, judged_job: Path, size: tuple[int, int]
) -> None:
    page = visit(start(judged_job).address, size)
    page.open("?page=ranks&site=activation:blocks.2.mlp.act&step=38")
    page.sees("furthest from the median of its peers is rank 2 (dp=2)")
    colour = COLOUR.replace("heatmap", "rank_map")
    assert page.page.evaluate(colour, [50, 2.5])[:3] == [0xD6, 0x00, 0x6C]
    red, _, blue, _ = page.page.evaluate(colour, [36, 2.5])
    assert blue > red + 60  # far above its peers
    assert min(page.page.evaluate(colour, [36, 1.5])) > 225  # which are near their median

    page.page.mouse.click(*page.at("rank_map", 30, 0.5))
    page.page.wait_for_url("**/?page=ranks&*step=30*")
    page.page.get_by_role("button", name="Open the tensor").click()
    page.sees("activation · step 30 · float16")


@pytest.mark.parametrize("size", SIZES)
def test_formats_tell_what_breaks_and_the_address_remembers_the_question(
    visit: Callable, size: tuple[int, int]
) -> None:
    page = visit(size=size)
    page.open("?page=formats&step=39&formats=e4m3,e5m2&of=activation")
    page.sees("Of 24 sites, step 39")
    page.page.locator("td.breaks", has_text="↑").first.wait_for()

    box = page.page.get_by_label("Formats", exact=True)
    box.fill("e4m3,e2m1")
    box.press("Enter")
    page.page.wait_for_url("**/?page=formats&*formats=e4m3,e2m1*")
    page.page.get_by_role("button", name="Best by site").click()
    page.page.wait_for_url("**/?page=formats&*times=site*")
    page.page.locator("td", has_text="↑").first.wait_for(state="detached")

    page.page.get_by_role("button", name="blocks.1.norm1 activation").click()
    page.page.wait_for_url("**/?page=formats&*site=activation:blocks.1.norm1&step=39*")
    page.page.locator("tr.chosen").get_by_text("blocks.1.norm1").wait_for()
    for label, name, begins in (
        ("Table as CSV", "formats.csv", "site,format,verdict"),
        ("Recipe as JSON", "recipe.json", "{\n"),
    ):
        with page.page.expect_download() as waiting:
            page.page.get_by_text(label).click()
        assert waiting.value.suggested_filename == name
        assert Path(waiting.value.path()).read_text().startswith(begins)


def test_runs_of_a_folder_are_compared(
    visit: Callable, start: Callable, new_job: Callable, tmp_path: Path
) -> None:
    site = "activation:blocks.1.mlp.up"
    for name, spike in (("one", {}), ("third", {(9, site): 4.0}), ("other", {(7, site): 16.0})):
        job = new_job(name, bad_step=None)
        job.commit(range(12), spike=spike)
    page = visit(start(tmp_path).address)

    page.open("?run=one&page=compare&kind=activation&with=other")
    page.sees("Numbers part in step 7 at activation:blocks.1.mlp.up")
    page.page.get_by_placeholder("further runs").click()
    page.page.locator(".choices__item", has_text="third").first.click()
    page.sees("third: ")
    page.page.wait_for_url("**also=third*")
    page.page.get_by_label("Show", exact=True).select_option("each run")
    page.page.wait_for_url("**maps=each*")
    page.settle()
    page.page.get_by_label("Show", exact=True).select_option("how far apart")
    page.settle()
    page.page.get_by_role("button", name="blocks.1.mlp.up activation").click()
    page.page.wait_for_url("**step=7*")
    page.settle()
    page.page.get_by_role("button", name="Open the tensor").click()
    page.sees("activation · step 7 · float16")


@pytest.mark.parametrize("size", SIZES[1:])
def test_quantities_are_lines_and_vectors_maps(
    visit: Callable, start: Callable, derived_job: Path, size: tuple[int, int]
) -> None:
    page = visit(start(derived_job).address, size)
    page.open("?page=quantities")
    page.sees("▲ step 20: dead_neurons of blocks.1.mlp.act is 0.95, above 0.9.")
    page.page.get_by_label("Quantity", exact=True).select_option("input_cov_spectrum")
    page.page.wait_for_url("**quantity=input_cov_spectrum*")
    page.settle()
    page.page.mouse.click(*page.at("quantity_map", 6, 2.5))
    page.page.wait_for_url("**step=6*")
    page.sees("at step 6 from 0.006836 to 7.")
    page.page.get_by_role("button", name="blocks.1.mlp.act").click()
    page.page.get_by_role("button", name="Open the tensor").click()
    page.sees("activation · step 6 · float16")
