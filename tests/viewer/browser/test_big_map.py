"""The map of 2,000 sites and 10,240 steps: what is planted in one of them is on the screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .big_run import BLOCK, write_big_run
from .watching import COLOUR

STEP, NAME = 7321, "layers.61.mlp.experts.7"
ROWS = """(rows) => [...Bokeh.index.query((view) => view.model.name === "heatmap")][0]
  .model.y_range.start === rows"""


@pytest.fixture(scope="module")
def big_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "big"
    write_big_run(path, blocks=100, times=20, spikes={(STEP, NAME): 2.0**100})
    return path


def test_one_step_of_one_site_is_on_the_screen_and_a_click_finds_it(
    visit: Callable, start: Callable, big_run: Path
) -> None:
    page = visit(start(big_run).address)
    page.open("?page=map&stat=abs_max")
    page.sees("2 000 sites in 100 rows, steps 0–10239; abs_max from 2")
    page.sees("to 2¹⁰⁰; all values finite.")

    place = 61 * len(BLOCK) + BLOCK.index("mlp.experts.7")
    for fold, rows, row in (("", 100, 61), ("0", 400, place // 5)):
        if fold:
            page.open(f"?page=map&stat=abs_max&fold={fold}")
        page.page.wait_for_function(ROWS, arg=rows)
        page.settle()
        spike, beside = (page.page.evaluate(COLOUR, [at, row + 0.5]) for at in (STEP, STEP - 150))
        assert sum(spike[:3]) < sum(beside[:3]) - 150, "dark on the light ramp"
        page.page.mouse.click(*page.at("heatmap", STEP, row + 0.5))
        page.page.wait_for_url(f"**/*site=activation:{NAME}&step={STEP}*")


def test_modules_fold_by_mouse_and_by_keys(visit: Callable, start: Callable, big_run: Path) -> None:
    page = visit(start(big_run).address)
    page.open(f"?page=map&stat=abs_max&site=activation:{NAME}&step={STEP}")
    module = page.page.get_by_role("button", name="layers.61: 20 sites")

    for fold, rows in (("layers.61", 104), ("layers.61,layers.61.mlp", 106)):
        page.page.keyboard.press("+")
        page.page.wait_for_url(f"**/*fold=2,{fold}&*")
        page.page.wait_for_function(ROWS, arg=rows)
        page.settle()
        box = module.bounding_box()
        ends = [page.at("heatmap", STEP, row)[1] for row in (61, 61 + rows - 99)]
        assert [box["y"], box["y"] + box["height"]] == pytest.approx(ends, abs=1)
    page.page.keyboard.press("-")
    page.page.wait_for_url("**/*fold=2,layers.61&*")
    page.page.mouse.click(*page.at("heatmap", 100, 3.5))
    page.page.wait_for_url("**/*site=activation:layers.3.*")
    page.settle()

    module.click()
    page.page.wait_for_url("**/*fold=2&site=activation:layers.3.*")
    page.page.get_by_role("combobox", name="Modules").select_option("layers, … (1 row)")
    page.page.wait_for_url("**/*fold=1&*")
    page.page.get_by_role("button", name="layers: 2 000 sites").focus()
    page.page.keyboard.press("Enter")
    page.page.wait_for_url("**/*fold=1,layers&*")
    page.page.go_back()
    page.page.wait_for_url(f"**/*fold=2,layers.61&site=activation:{NAME}&step={STEP}*")
    page.page.wait_for_function(ROWS, arg=104)
