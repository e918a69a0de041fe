"""One session in a browser: its pages, the address that remembers them, the keys that steer."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from html import escape
from urllib.parse import parse_qsl, quote, urlencode

import panel as pn
from bokeh.document import Document
from bokeh.models import ColumnDataSource, CustomJS, Div
from bokeh.server.callbacks import TimeoutCallback
from panel.io.state import set_curdoc

from .follow import Follower
from .pages import Visited
from .pages.folds import Folds, WithFolds
from .pages.site_choice import WithSearch
from .pages.twins import WithTwins
from .session import Others, Session
from .state import Choice
from .views import CONTENTS, Shell

PAUSE_MS = 150
"""How long a zoom or a resize must rest before the store is asked."""
GATHER_MS = 15
"""How long the places of a slider that is dragged are gathered: the last one is shown."""

LISTEN = """
document.title = title;
const ask = (what, value) => {
  asked.data = {what: [what], value: [value], count: [(asked.data.count[0] ?? 0) + 1]};
};
const isSearch = (one) => one.host?.classList.contains("search");
window.addEventListener("keydown", (event) => {
  const at = event.composedPath()[0];
  const writes = /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName);
  if (event.key === "Escape" && writes && event.composedPath().some(isSearch)) {
    // What was sought is done with; a second Escape is of the page.
    at.value = "";
    at.dispatchEvent(new Event("input", {bubbles: true}));
    at.blur();
    event.stopPropagation();
  }
  if (event.ctrlKey || event.altKey || event.metaKey || writes) return;
  // Up and down are of a tensor alone, and of what has the focus.
  const goes = /[?&]page=tensor/.test(window.location.search)
    && !at.closest("a, button, summary, [role], [contenteditable]");
  if (/^Arrow(Up|Down)$/.test(event.key) && !goes) return;
  if (keys.includes(event.key)) {
    ask("key", event.key);
    event.preventDefault();
    // A slider that has the focus would move a second time.
    event.stopPropagation();
  }
}, true);
window.addEventListener("click", (event) => {
  const beside = event.composedPath().find((at) => at.dataset?.beside);
  if (beside !== undefined) return ask("beside", beside.dataset.beside);
  const row = event.composedPath().find((at) => at.dataset?.site);
  if (row !== undefined) return ask("choose", JSON.stringify({...row.dataset}));
  const module = event.composedPath().find((at) => at.dataset?.fold);
  if (module !== undefined) return ask("fold", module.dataset.fold);
  const link = event.composedPath().find((at) => at.dataset?.page);
  if (link === undefined || event.ctrlKey || event.metaKey || event.shiftKey) return;
  ask("page", link.dataset.page);
  event.preventDefault();
});
const save = (blob, name) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};
file.on_change(file.properties.data, () => {
  save(new Blob([file.data.text[0]], {type: "text/csv"}), `${file.data.name[0]}.csv`);
});
window.addEventListener("click", async (event) => {
  const {table, save: kind, plot} = event.composedPath().find((at) => at.dataset?.table
    || at.dataset?.save)?.dataset ?? {};
  if (table !== undefined) ask("table", table);
  if (kind === "csv") ask("csv", plot);
  if (kind !== "png" && kind !== "svg") return;
  const view = [...Bokeh.index.query((view) => view.model.name === plot)][0];
  save(await view.export(kind).to_blob(), `${plot}.${kind}`);
});
window.addEventListener("contextmenu", (event) => {
  const figure = event.composedPath().some((at) => /bk-(Canvas|Figure)/.test(at.className));
  if (!figure || !/[?&]page=tensor/.test(window.location.search)) return;
  ask("page", "map");
  event.preventDefault();
}, true);
window.addEventListener("popstate", () => ask("address", window.location.search));
"""
WRITE = """
const search = address.data.search[0] || window.location.pathname;
if (address.data.push[0]) window.history.pushState({}, "", search);
else window.history.replaceState({}, "", search);
"""


# A session that ended with its server is not resumed: the address holds all that it needs anew.
COME_BACK = """
const look = () => fetch("liveness", {cache: "no-store"})
  .then((answer) => { if (answer.ok) window.location.reload(); else later(); })
  .catch(() => later());
const later = () => setTimeout(look, 1000);
look();
"""


class App:
    """One session: its pages, the browser's address, keys and Back, and what is new in the run."""

    def __init__(
        self,
        follower: Follower,
        *,
        document: Document,
        soon: Callable[[Callable[[], None]], object],
        run_key: str = "",
        query: dict[str, str],
        others: Others | None = None,
    ) -> None:
        """Build the page that `query` asks for.

        Args:
            follower: the run, shared with other sessions.
            document: the session's document.
            soon: runs what it is given on the server's thread; may be called from any.
            run_key: the run's name in the address, where there are several.
            query: the address as it was opened.
            others: the runs that it can be compared with.
        """
        self.document, self.soon, self.run_key = document, soon, run_key
        self.waiting: dict[object, TimeoutCallback] = {}
        self.told_already = False
        self.choice, self.problems = Choice.from_query(query)
        self.session = Session(
            follower,
            self.choice,
            now=time.time,
            later=self.later,
            gather=self.gather,
            index=bool(run_key),
            others=others,
        )
        self.visited = Visited(self.session, {entry.name: entry.model for entry in CONTENTS})
        self.leave: Callable[[], None] = lambda: None
        # Of a model that is in the document whichever page is shown, tags are so, too.
        self._asked = ColumnDataSource({"what": [], "value": [], "count": []}, name="asked")
        self._address = ColumnDataSource({"search": [], "push": []}, name="address")
        self._file = ColumnDataSource({"name": [], "text": []}, name="file")
        self._written = self._place()
        self.view = Shell(self.visited, hidden=self._listener()).view
        self._tell_links()
        self.choice.param.watch(lambda *_: self._write_address(), list(self._remembered()))

    @staticmethod
    def _remembered() -> list[str]:
        return [name for name in Choice.param if name != "name"]

    # Following the run.

    def start(self) -> None:
        """Follow the run; called once the browser shows the page."""
        self.leave = self.session.live.listen(self._told)
        self._write_address()
        notifications = pn.state.notifications
        if notifications is not None:
            for problem in self.problems:
                notifications.warning(escape(problem), duration=8000)  # which takes HTML

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
            self.visited.tick()

    def later(self, call: Callable[[], None]) -> None:
        """Run `call` after a pause; the same call that waits already is replaced."""
        key = _key(call)
        if key in self.waiting:
            self.document.remove_timeout_callback(self.waiting.pop(key))
        self._run_in(PAUSE_MS, key, call)

    def gather(self, call: Callable[[], None]) -> None:
        """Run `call` soon; the same call that waits already is enough."""
        key = _key(call)
        if key not in self.waiting:
            self._run_in(GATHER_MS, key, call)

    def _run_in(self, wait_ms: int, key: object, call: Callable[[], None]) -> None:
        def run() -> None:
            self.waiting.pop(key, None)
            with set_curdoc(self.document):
                call()

        self.waiting[key] = self.document.add_timeout_callback(run, wait_ms)

    # The address.

    def _search(self, **other: str) -> str:
        """The address of what is chosen, or of that with some other parts."""
        query = ({"run": self.run_key} if self.run_key else {}) | self.choice.query(**other)
        return "?" + urlencode(query, safe=":.,[]", quote_via=quote) if query else ""

    def _place(self) -> tuple[str, str]:
        """What Back goes back to: the page and the tensor, not each step or zoom."""
        return self.choice.page, self.choice.site

    def _write_address(self) -> None:
        push, self._written = self._place() != self._written, self._place()
        self._address.data = {"search": [self._search()], "push": [push]}
        self._tell_links()

    def _tell_links(self) -> None:
        pages = [(one.name, one.title, self._search(page=one.name)) for one in CONTENTS]
        other = "light" if self.choice.theme == "dark" else "dark"
        self.visited.tell_links(pages, other=(other.title(), self._search(theme=other)))

    def _read_address(self, search: str) -> None:
        """Show what the browser's Back or Forward has gone to."""
        choice, _ = Choice.from_query(dict(parse_qsl(search.removeprefix("?"))))
        self._written = choice.page, choice.site
        self.choice.param.update(**{name: getattr(choice, name) for name in self._remembered()})

    # What the browser asks.

    def _toggle_table(self, plot: str) -> None:
        page = self.visited.page
        if isinstance(page, WithTwins):
            with self.session.follower.lock:
                page.twins.toggle(plot)

    def _save_table(self, plot: str) -> None:
        page = self.visited.page
        if isinstance(page, WithTwins):
            self._file.data = {"name": [plot], "text": [page.twins.csv(plot)]}

    def _on_folds(self, does: Callable[[Folds], None]) -> None:
        page = self.visited.page
        if isinstance(page, WithFolds):
            with self.session.follower.lock:
                does(page.folds)

    def _escape(self) -> None:
        page = self.visited.page
        if not (isinstance(page, WithSearch) and page.sites.forget()):
            self.session.back()

    def _listener(self) -> Div:
        title = f"{self.session.title} – rankscope"
        self._address.js_on_change("data", CustomJS(args={"address": self._address}, code=WRITE))
        keys: dict[str, Callable[[], None]] = {
            "ArrowLeft": partial(self.session.move, -1),
            "ArrowRight": partial(self.session.move, 1),
            "ArrowUp": partial(self.session.move_site, -1),
            "ArrowDown": partial(self.session.move_site, 1),
            "Escape": self._escape,
            "p": self.visited.pause_or_resume,
            "+": lambda: self._on_folds(Folds.unfold),
            "-": lambda: self._on_folds(Folds.fold),
        }
        args = {"asked": self._asked, "title": title, "keys": list(keys)}
        args["file"] = self._file
        self.document.js_on_event("document_ready", CustomJS(args=args, code=LISTEN))
        self.document.js_on_event("connection_lost", CustomJS(code=COME_BACK))
        actions: dict[str, Callable[[str], None]] = {
            "key": lambda key: keys[key](),
            "page": self.session.visit,
            "choose": self.session.choose,
            "beside": self.session.put_beside,
            "address": self._read_address,
            "fold": lambda path: self._on_folds(lambda folds: folds.toggle(path)),
            "table": self._toggle_table,
            "csv": self._save_table,
        }

        def asked(attr: str, old: object, new: dict[str, list[str]]) -> None:
            actions[new["what"][0]](new["value"][0])

        self._asked.on_change("data", asked)
        return Div(visible=False, tags=[self._asked, self._address, self._file])


def _key(call: Callable[[], None]) -> object:
    """What is the same for two calls that do the same; methods of two objects do not."""
    return call if hasattr(call, "__self__") else getattr(call, "__qualname__", call)
