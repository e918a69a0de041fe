"""One session: a page, the address that remembers it, and the keys that steer it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from urllib.parse import quote, urlencode

import panel as pn
from bokeh.document import Document
from bokeh.models import ColumnDataSource, CustomJS
from bokeh.server.callbacks import TimeoutCallback
from panel.io.state import set_curdoc

from . import layout
from .follow import Follower
from .page import Page
from .state import Choice

PAUSE_MS = 150
"""How long a zoom or a resize must rest before the store is asked."""

LISTEN = """
document.title = title;
window.addEventListener("keydown", (event) => {
  const at = event.composedPath()[0];
  const writes = /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName);
  if (event.ctrlKey || event.altKey || event.metaKey || writes) return;
  if (["ArrowLeft", "ArrowRight", "Escape"].includes(event.key)) {
    keys.data = {key: [event.key], count: [(keys.data.count[0] ?? 0) + 1]};
    event.preventDefault();
  }
});
"""


class App:
    """One session: a page, the widgets that steer it, and the address that remembers it."""

    def __init__(
        self,
        follower: Follower,
        *,
        document: Document,
        soon: Callable[[Callable[[], None]], object],
        run_key: str = "",
        query: dict[str, str],
    ) -> None:
        """Build the page that `query` asks for.

        Args:
            follower: the run, shared with other sessions.
            document: the session's document.
            soon: runs what it is given on the server's thread; may be called from any.
            run_key: the run's name in the address, where there are several.
            query: the address as it was opened.
        """
        self.document, self.soon, self.run_key = document, soon, run_key
        self.waiting: dict[str, TimeoutCallback] = {}
        self.told_already = False
        self.choice, self.problems = Choice.from_query(query)
        self.page = Page(
            follower, self.choice, now=time.time, later=self.later, index=bool(run_key)
        )
        self.leave: Callable[[], None] = lambda: None
        self.view = layout.page_view(self.page)
        self._listen_to_keys()
        self.choice.param.watch(lambda *_: self._write_address(), list(self._remembered()))

    @staticmethod
    def _remembered() -> list[str]:
        return [name for name in Choice.param if name != "name"]

    # Following the run.

    def start(self) -> None:
        """Follow the run; called once the browser shows the page."""
        self.leave = self.page.follower.listen(self._told)
        self._write_address()
        notifications = pn.state.notifications
        if notifications is not None:
            for problem in self.problems:
                notifications.warning(problem, duration=8000)

    def stop(self) -> None:
        """Stop following; called when the session is gone."""
        self.leave()

    def _told(self) -> None:
        # On the poller's thread. A page that is slower than the poller is asked once, not twice.
        if not self.told_already:
            self.told_already = True
            self.soon(self._tick_soon)

    def _tick_soon(self) -> None:
        # Bokeh destroys a document before it tells us that the session is gone.
        if self.document.session_context is not None:
            self.document.add_next_tick_callback(self._tick)

    def _tick(self) -> None:
        self.told_already = False
        with set_curdoc(self.document):
            self.page.tick()

    def later(self, call: Callable[[], None]) -> None:
        """Run `call` after a pause; the same call that waits already is replaced."""
        name = getattr(call, "__qualname__", repr(call))
        if name in self.waiting:
            self.document.remove_timeout_callback(self.waiting.pop(name))

        def run() -> None:
            self.waiting.pop(name, None)
            with set_curdoc(self.document):
                call()

        self.waiting[name] = self.document.add_timeout_callback(run, PAUSE_MS)

    def _write_address(self) -> None:
        query = ({"run": self.run_key} if self.run_key else {}) | self.choice.query()
        location = pn.state.location
        if location is not None:
            location.search = "?" + urlencode(query, safe=":.,[]", quote_via=quote) if query else ""

    def _listen_to_keys(self) -> None:
        title = f"{self.page.run.name} – rankscope"
        keys = ColumnDataSource({"key": [], "count": []}, name="keys")
        # A tag makes the source part of the document, so that its changes reach the server.
        self.page.heatmap.figure.tags = [keys]
        self.document.js_on_event(
            "document_ready", CustomJS(args={"keys": keys, "title": title}, code=LISTEN)
        )
        actions = {
            "ArrowLeft": partial(self.page.move, -1),
            "ArrowRight": partial(self.page.move, 1),
            "Escape": self.page.clear,
        }

        def pressed(attr: str, old: object, new: dict[str, list[str]]) -> None:
            actions[new["key"][0]]()

        keys.on_change("data", pressed)
