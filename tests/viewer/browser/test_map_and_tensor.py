"""The map and a tensor: clicks, keys, the slider, what is painted, tables and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankscope.store import open_run
from rankscope.viewer import words

from .watching import COLOUR, FRAMES, SIZES


def test_a_click_shows_the_histogram_and_the_address_remembers_it(visit: Callable) -> None:
    first = visit()
    first.open("?kind=activation")
    first.sees("First non-finite values: activation:blocks.2.mlp.act on rank 2, step 40.")
    first.page.get_by_role("link", name="Map").click()
    first.sees("Click a cell of the heatmap")
    first.settle()

    first.page.mouse.click(*first.at("heatmap", 30, 5.5))
    first.sees("activation · step 30 · float16")
    first.settle()
    first.page.keyboard.press("ArrowRight")
    first.sees("activation · step 31 · float16")
    first.page.wait_for_url("**/*site=activation:blocks.0.mlp.act&step=31*")

    again = visit()
    again.open(first.page.url.removeprefix(first.address))
    again.sees("activation · step 31 · float16")
    again.page.keyboard.press("Escape")
    again.sees("Click a cell of the heatmap")


LINE = """() => {
  const one = (name) => [...Bokeh.index.query((view) => view.model.name === name)][0].model;
  return [one("training").center.map((part) => part.location).find((at) => at > 0) ?? null,
          document.getElementById("readout").textContent];
}"""


def test_the_line_under_the_mouse_snaps_to_steps_and_asks_the_server_nothing(
    visit: Callable, broken_job: Path
) -> None:
    sent = list[object]()
    page = visit()
    page.page.on("websocket", lambda socket: socket.on("framesent", lambda one: sent.append(one)))
    page.open("?page=map&site=activation:blocks.2.mlp.act")
    before = len(sent)

    for x in (20.1, 20.4, 30.7):
        page.page.mouse.move(*page.at("heatmap", x, x / 4))
        page.page.mouse.move(*page.at("ranks", x, 1))
    at, told = page.page.evaluate(LINE)

    run = open_run(broken_job)
    loss = run.training(steps=31).sel(name="loss").values.ravel()
    rms = float(run.scalar("rms", sites=["activation:blocks.2.mlp.act"], steps=31).item())
    assert at == 31
    assert told.startswith(f"step 31 · loss rank 0 {words.number(loss[0])} · rank 1 ")
    assert told.endswith(f" · rms of blocks.2.mlp.act (activation) {words.number(rms)}")
    assert len(sent) == before
    page.page.mouse.move(5, 5)
    assert page.page.evaluate(LINE)[1] == ""

    page.page.mouse.move(*page.at("ranks", 30.7, 1))
    assert page.page.evaluate(LINE)[1]
    page.page.get_by_role("link", name="Triage").focus()
    page.page.keyboard.press("Enter")
    page.sees("What is wrong")
    assert page.page.locator("#readout").text_content() == ""


TICKS = """([name, ...ticks]) => {
  const view = [...Bokeh.index.query((view) => view.model.name === name)][0];
  return view.model.left[0].formatter.doFormat(ticks, {loc: 0});
}"""


def test_heights_are_told_as_numbers_and_ticks_apart(visit: Callable, broken_job: Path) -> None:
    page, site = visit(), "activation:blocks.2.mlp.act"
    page.open(f"?page=map&site={site}&step=20")
    rms = float(open_run(broken_job).scalar("rms", sites=[site], steps=20, view=0).item())

    page.page.mouse.move(*page.at("ranks", 20, np.log2(rms)))

    page.sees(f"step 20 · {rms:#.4g} = 2^".replace("-", "−"))
    ticks = [-3.2805, -3.28, -3.2795, -3.279]
    told = page.page.evaluate(TICKS, ["ranks", *ticks])
    assert told == ["2⁻³·²⁸⁰⁵", "2⁻³·²⁸", "2⁻³·²⁷⁹⁵", "2⁻³·²⁷⁹"]
    assert page.page.evaluate(TICKS, ["ranks", -0.5, 0, 0.5]) == ["2⁻⁰·⁵", "2⁰", "2⁰·⁵"]
    large = page.page.evaluate(TICKS, ["training", 0, 1e5, 2.5e5])
    assert large == ["0", "1e5", "2.5e5"]
    assert page.page.evaluate(TICKS, ["training", 0.9, 1, 1.1]) == ["0.9", "1", "1.1"]


def test_what_is_not_finite_is_magenta_on_the_screen(visit: Callable) -> None:
    page = visit()
    page.open("?page=map")

    assert page.page.evaluate(COLOUR, [45, 17.5])[:3] == [0xD6, 0x00, 0x6C]
    assert page.page.evaluate(COLOUR, [20, 17.5])[:3] != [0xD6, 0x00, 0x6C]


def test_plots_have_tables_and_files(visit: Callable) -> None:
    page = visit()
    page.open("?page=map&step=40")
    line = page.page.locator("[data-of=heatmap]")

    line.get_by_role("button", name="Table").click()
    page.page.locator("table.twin caption").wait_for()
    assert page.page.locator("table.twin tbody tr").count() == 60
    for kind, begins in (("CSV", b"step,"), ("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with page.page.expect_download() as download:
            line.get_by_role("button", name=kind).click()
        assert download.value.suggested_filename == f"heatmap.{kind.lower()}"
        assert download.value.path().read_bytes().startswith(begins)


@pytest.mark.parametrize("size", SIZES)
def test_the_slider_and_the_keys_move_by_recorded_steps(
    visit: Callable, start: Callable, new_job: Callable, size: tuple[int, int]
) -> None:
    job = new_job(bad_step=None, every=10)
    job.commit(range(45))
    page = visit(start(job.path).address, size)
    page.open("?page=tensor&site=activation:blocks.0.norm1&step=20")
    page.sees("step 20 · 3 of 5")

    slider = page.page.get_by_role("slider")
    slider.focus()
    page.page.keyboard.press("ArrowRight")
    page.sees("step 30 · 4 of 5")
    page.settle()
    assert slider.get_attribute("aria-valuenow") == "3.0"
    box = slider.bounding_box()
    assert box is not None
    page.drag(
        (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2), (box["x"] - 2000, box["y"])
    )
    page.sees("step 0 · 1 of 5")


def test_a_site_is_found_put_beside_and_gone_on_from(visit: Callable) -> None:
    page = visit()
    browser = page.page
    page.open("?page=tensor&site=activation:blocks.2.mlp.act&step=20")

    browser.get_by_label("Find a site").press_sequentially("3 norm2")
    browser.get_by_role("button", name="Put beside activation:blocks.3.norm2").click()
    browser.wait_for_url("**/*beside=activation:blocks.3.norm2*")
    browser.get_by_label("Find a site").press("ArrowDown")
    browser.get_by_role("button", name="before it").click()
    browser.wait_for_url("**/*beside=activation:blocks.3.norm2%0Aactivation:blocks.2.mlp.up*")
    browser.keyboard.press("ArrowDown")
    assert "site=activation:blocks.2.mlp.act" in browser.url  # a button has the focus
    browser.get_by_role("heading", name="Exponents over steps").click()
    browser.keyboard.press("ArrowDown")
    page.sees("activation · step 20 · float16")
    browser.wait_for_url("**/*site=activation:blocks.3.norm1&*")
    page.settle()

    browser.get_by_label("Find a site").press_sequentially("0.mlp.up grad")
    browser.locator("button[data-site='weight_gradient:blocks.0.mlp.up']").first.wait_for()
    browser.get_by_label("Find a site").press("Enter")
    browser.wait_for_url("**/*site=weight_gradient:blocks.0.mlp.up&*")
    page.settle()
    assert browser.get_by_label("Find a site").input_value() == ""


@pytest.mark.parametrize("size", SIZES)
def test_a_tensor_is_seen_over_its_life_and_by_its_alerts(
    visit: Callable, start: Callable, judged_job: Path, size: tuple[int, int]
) -> None:
    page = visit(start(judged_job).address, size)
    page.open("?page=tensor&site=activation:blocks.2.mlp.act&step=5")
    assert page.page.evaluate(COLOUR.replace("heatmap", "life"), [50, 0.5])[:3] == [0xD6, 0, 0x6C]

    page.page.get_by_role("button", name="alert ▶|").click()
    page.page.wait_for_url("**/*step=40*")
    page.page.mouse.click(*page.at("life", 12, 5.5))
    page.sees("step 12 · 13 of 60")
    page.page.get_by_role("button", name="Show all statistics").click()
    page.page.wait_for_function(
        """() => [...Bokeh.index.query((view) => view.model.name === "facet_l2")].length > 0"""
    )
    page.page.wait_for_url("**/*more=scalars*")
    page.page.reload()
    page.settle()
    heights = page.page.evaluate(FRAMES, ["life", "tensor_training", "facet_l2"])
    assert min(heights) > 40
