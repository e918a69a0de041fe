"""A page in a real browser, and what to ask it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request

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

FRAMES = """(names) => names.map((name) =>
  [...Bokeh.index.query((view) => view.model.name === name)][0].frame.bbox.height)"""

SIZES = [(1920, 1080), (1366, 768)]
"""Of a desktop's screen, and of a laptop's."""


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
        own = self.address, self.address.replace("http", "ws", 1), "data:"
        # What a page makes itself has the name of its host, without a path.
        made = "blob:" + self.address[: self.address.index("/", len("http://"))]
        if not request.url.startswith((*own, made)):
            self.foreign.append(request.url)

    def open(self, query: str = "") -> None:
        self.page.goto(self.address + query)
        self.settle()

    def settle(self) -> None:
        """Wait until nothing is on its way any more."""
        self.page.wait_for_function(IDLE, timeout=60_000)
        self.page.evaluate("() => new Promise((done) => setTimeout(done, 400))")
        self.page.wait_for_function(IDLE, timeout=60_000)

    def at(self, figure: str, x: float, y: float) -> tuple[float, float]:
        left, top = self.page.evaluate(PIXEL, [figure, x, y])
        return left, top

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A drag with the mouse, which zooms."""
        mouse = self.page.mouse
        mouse.move(*start)
        mouse.down()
        # In several steps, as a hand does, each of which the page hears: of those that come within
        # one of its frames it makes a single one, and of that a click.
        for part in range(1, 5):
            mouse.move(*(a + (b - a) * part / 4 for a, b in zip(start, end, strict=True)))
            self.page.evaluate("() => new Promise(requestAnimationFrame)")
        mouse.up()

    def sees(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for(timeout=60_000)
