"""The page in a real browser: clicks, keys, zoom, new steps, the address."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rankscope.rules import why
from rankscope.store import Alert, open_run
from rankscope.viewer import Server, serve
from rankscope.viewer.views import CONTENTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

IDLE = """() => window.Bokeh !== undefined
  && Bokeh.documents.length > 0 && Bokeh.documents[0].is_idle
  && [...Bokeh.index.query((view) => /training$/.test(view.model.name))].length > 0"""
PIXEL = """([name, x, y]) => {
  const view = [...Bokeh.index.query((view) => view.model.name === name)][0];
  const box = view.el.getBoundingClientRect();
  return [box.left + view.frame.x_scale.compute(x), box.top + view.frame.y_scale.compute(y)];
}"""
RANGE = """() => {
  const {x_range} = [...Bokeh.index.query((view) => view.model.name === "heatmap")][0].model;
  return [x_range.start, x_range.end];
}"""
STEPS = """() => Math.max(...[...Bokeh.index.query((view) => view.model.name === "training")][0]
  .model.renderers[0].data_source.data.step)"""
COLOUR = """([x, y]) => {
  const view = [...Bokeh.index.query((view) => view.model.name === "heatmap")][0];
  const {ctx} = view.canvas_view.primary, ratio = view.canvas_view.primary.pixel_ratio ?? 1;
  const at = [view.frame.x_scale.compute(x), view.frame.y_scale.compute(y)];
  return [...ctx.getImageData(Math.round(at[0] * ratio), Math.round(at[1] * ratio), 1, 1).data];
}"""

SIZES = [(1920, 1080), (1366, 768)]
"""Of a desktop's screen, and of a laptop's."""


@pytest.fixture(scope="module")
def server(broken_job: Path) -> Iterator[Server]:
    server = serve(broken_job)
    yield server
    server.stop()


class Visit:
    """A browser's page, with all that it asked for and all that went wrong."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.foreign: list[str] = []
        self.errors: list[str] = []
        page.on("request", self.note)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console", lambda line: self.errors.append(line.text) if line.type == "error" else None
        )

    def note(self, request: Request) -> None:
        url = request.url.removeprefix("blob:")
        if not url.startswith((self.address, "data:", self.address.replace("http", "ws", 1))):
            self.foreign.append(request.url)

    def open(self, query: str = "") -> None:
        self.page.goto(self.address + query)
        self.settle()

    def settle(self) -> None:
        """Wait until nothing is on its way any more."""
        self.page.wait_for_function(IDLE, timeout=30_000)
        self.page.evaluate("() => new Promise((done) => setTimeout(done, 400))")
        self.page.wait_for_function(IDLE, timeout=30_000)

    def at(self, figure: str, x: float, y: float) -> tuple[float, float]:
        left, top = self.page.evaluate(PIXEL, [figure, x, y])
        return left, top

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A drag with the mouse, which zooms."""
        mouse = self.page.mouse
        mouse.move(*start)
        mouse.down()
        mouse.move((start[0] + end[0]) / 2, end[1])
        mouse.move(*end)
        mouse.up()

    def sees(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for(timeout=15_000)


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Starts servers for one test; its pages are closed before they stop."""
    servers: list[Server] = []

    # `Any`: what `serve` takes.
    def new(path: Path, **settings: Any) -> Server:
        servers.append(serve(path, **settings))
        return servers[-1]

    yield new
    for one in servers:
        one.stop()


@pytest.fixture
def visit(
    browser: Browser, server: Server, start: Callable[..., Server]
) -> Iterator[Callable[..., Visit]]:
    """Opens pages; at the end none has asked elsewhere and none has failed."""
    visits: list[Visit] = []

    def new(address: str = server.address, size: tuple[int, int] = (1400, 1100)) -> Visit:
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        visits.append(Visit(page, address))
        return visits[-1]

    yield new
    for one in visits:
        one.page.close()
    assert [url for one in visits for url in one.foreign] == []
    assert [error for one in visits for error in one.errors] == []


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


def test_the_index_leads_to_a_run(visit: Callable, start: Callable, broken_job: Path) -> None:
    server = start(broken_job.parent)
    page = visit(server.address)
    page.page.goto(server.address)

    page.page.get_by_role("link", name="gpt-small").click()

    page.settle()
    assert page.page.title() == "gpt-small – rankscope"
    page.page.wait_for_url("**/?run=broken&kind=activation&site=*")


def test_a_click_on_a_finding_selects_its_site_and_step(
    visit: Callable, start: Callable, judged_job: Path
) -> None:
    page = visit(start(judged_job).address)
    page.open("?kind=weight_gradient&name=qkv")
    page.sees("1 incident.")

    [found] = why(open_run(judged_job)).findings
    page.page.get_by_role("button", name=found.what).click()

    page.sees(f"activation · step {found.first_step} · float16")
    page.page.wait_for_url(
        f"**/?page=tensor&kind=activation&site={found.site}&step={found.first_step}*"
    )


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


def test_what_a_hostile_job_says_is_shown_as_text(
    visit: Callable, start: Callable, new_job: Callable
) -> None:
    bad = "<img src=/gone onerror=alert(1)>"
    job = new_job(bad_step=None)
    told = Alert(
        rule=bad, severity=bad, attempt=0, site=f"weight:{bad}", ranks=(1,), first_step=1,
        last_step=None, value=1.0, threshold=0.0, text=f"It is {bad}.", time_ns=1,
        evidence={bad: 1.0},
    )  # fmt: skip
    job.commit(range(3), alerts=(told,))
    page = visit(start(job.path).address)

    page.open()

    page.sees(f"It is {bad}.")
    assert page.page.locator("img").count() == 0
    page.page.get_by_role("button", name="It is <img").click()
    page.sees("This run has no site")
    assert page.page.locator("img").count() == 0


@pytest.mark.parametrize("size", SIZES)
def test_back_returns_to_the_page_and_tensor_before(
    visit: Callable, broken_job: Path, size: tuple[int, int]
) -> None:
    page = visit(size=size)
    page.open()
    browser = page.page
    browser.get_by_role("button", name="elements that are not finite").click()
    page.sees("rms on each rank")
    browser.wait_for_url("**/?page=tensor&*step=40*")
    page.settle()
    browser.keyboard.press("ArrowLeft")
    browser.wait_for_url("**/?page=tensor&*step=39*")
    browser.get_by_role("link", name="Map").click()
    browser.wait_for_url("**/?page=map&*step=39*")
    page.settle()

    browser.go_back()
    browser.get_by_role("link", name="Tensor").and_(browser.locator("[aria-current]")).wait_for()
    page.sees("activation · step 39 · float16")
    browser.go_back()
    browser.get_by_role("link", name="Triage").and_(browser.locator("[aria-current]")).wait_for()
    browser.get_by_role("button", name="elements that are not finite").wait_for()
    browser.go_forward()
    page.sees("activation · step 39 · float16")
    assert "page=tensor" in browser.url


@pytest.mark.parametrize("size", SIZES)
def test_each_page_fits_the_width_of_the_screen(visit: Callable, size: tuple[int, int]) -> None:
    page = visit(size=size)
    for entry in CONTENTS:
        page.open(f"?page={entry.name}")
        shown = page.page.get_by_role("link", name=entry.title)
        assert shown.get_attribute("aria-current") == "page"
        assert page.page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_the_other_theme_is_a_link_that_keeps_what_is_chosen(visit: Callable) -> None:
    page = visit()
    page.open("?page=map&step=40")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.page.evaluate(ground) == "rgb(244, 246, 248)"

    page.page.get_by_role("link", name="Dark").click()

    page.page.wait_for_url("**/?page=map&theme=dark&*step=40*")
    page.settle()
    assert page.page.evaluate(ground) == "rgb(14, 19, 24)"
    assert page.page.evaluate(COLOUR, [45, 17.5])[:3] == [0xE8, 0x20, 0x7F]
    page.page.get_by_role("link", name="Light").click()
    page.page.wait_for_url("**/?page=map&kind*step=40*")


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


def test_a_right_click_leads_from_a_tensor_back_to_the_map(visit: Callable) -> None:
    page = visit()
    page.open("?page=tensor&site=activation:blocks.2.mlp.act&step=40")

    page.page.mouse.click(*page.at("life", 12, 5.5), button="right")

    page.page.wait_for_url("**/?page=map&*step=40*")


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


def test_what_is_not_finite_is_magenta_on_the_screen(visit: Callable) -> None:
    page = visit()
    page.open("?page=map")

    assert page.page.evaluate(COLOUR, [45, 17.5])[:3] == [0xD6, 0x00, 0x6C]
    assert page.page.evaluate(COLOUR, [20, 17.5])[:3] != [0xD6, 0x00, 0x6C]


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


def test_two_runs_of_a_folder_are_compared(
    visit: Callable, start: Callable, new_job: Callable, tmp_path: Path
) -> None:
    for name, spike in (("one", {}), ("other", {(7, "activation:blocks.1.mlp.up"): 16.0})):
        job = new_job(name, bad_step=None)
        job.commit(range(12), spike=spike)
    page = visit(start(tmp_path).address)

    page.open("?run=one&page=compare&kind=activation")
    page.sees("Numbers part in step 7 at activation:blocks.1.mlp.up")
    page.page.get_by_role("button", name="blocks.1.mlp.up activation").click()
    page.page.wait_for_url("**step=7*")
    page.settle()
    page.page.get_by_role("button", name="Open the tensor").click()
    page.sees("activation · step 7 · float16")


def test_a_page_comes_back_with_its_state_when_the_server_does(
    browser: Browser, broken_job: Path
) -> None:
    first = serve(broken_job)
    page = browser.new_page()
    page.goto(f"{first.address}?page=map&kind=activation&step=7")
    page.wait_for_function(IDLE, timeout=30_000)
    page.evaluate("() => { window.before = true }")
    first.stop()
    again = serve(broken_job, port=int(first.address.rstrip("/").rpartition(":")[2]))
    try:
        page.wait_for_function("() => window.before === undefined", timeout=30_000)
        page.wait_for_function(IDLE, timeout=30_000)
        assert "step=7" in page.url
        assert again.open
    finally:
        page.close()
        again.stop()
