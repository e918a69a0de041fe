"""What stands around the pages: the run's header, the links, the page that is visible."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import panel as pn
from bokeh.document import Document
from bokeh.models import Model
from jinja2 import Environment
from panel.io.notifications import NotificationAreaBase
from panel.io.resources import BASE_TEMPLATE, LOCAL_DIST
from panel.viewable import Viewable

from .. import markup
from ..figures.colours import LIGHT, THEMES
from ..pages import Visited
from .contents import CONTENTS, Entry
from .themes import root_css
from .widgets import button, column, text

PAGE = Environment(autoescape=True).from_string(
    Path(__file__).with_name("page.html").read_text(encoding="utf-8")
)


def prepare(document: Document, theme: str, hosts: Sequence[str]) -> None:
    """Set Panel up for a session, so that it fetches nothing from outside this machine.

    Args:
        document: the session's document.
        theme: a name of `THEMES`; light if it is none.
        hosts: `name:port`, whose pages may open a websocket; others say that they may not.
    """
    document.template = PAGE
    document.template_variables.update(
        base=BASE_TEMPLATE, hosts=list(hosts), app_favicon=f"{LOCAL_DIST}images/favicon.ico"
    )
    # Panel learns this from the first request; a session that a websocket makes anew has none,
    # and would send the browser to a content delivery network for its style sheets.
    document.template_variables["dist_url"] = LOCAL_DIST
    pn.extension(notifications=True, raw_css=[root_css(THEMES.get(theme, LIGHT))])


def forget(document: Document) -> None:
    """Let go of what Panel and Bokeh keep of a session that ended before a browser had loaded it.

    Panel's notification area would hold the whole page for ever (panel 1.9.4). A document that was
    destroyed still holds the models it never sent (bokeh 3.9), and is itself held for a while by
    the context of whatever ran last in it.
    """
    views: dict[str, Any] = pn.state._views  # pyright: ignore[reportPrivateUsage]  # no public door
    for key, (view, _, owner, _) in list(views.items()):
        if owner is document and isinstance(view, NotificationAreaBase):
            views.pop(key, None)
    document.models.flush_synced()


class Shell:
    """Shows the page that is chosen; one that was shown before is as it was left."""

    def __init__(self, visited: Visited, *, hidden: Model) -> None:
        """Put it together.

        Args:
            visited: the pages of the session.
            hidden: a model to keep in the document that shows nothing.
        """
        self.visited = visited
        self._entries: dict[str, Entry] = {entry.name: entry for entry in CONTENTS}
        self._mounted: dict[str, Viewable] = {}
        self._place = column()
        told = visited.told
        self.view = column(
            pn.FlexBox(
                text(told.param.header, sizing_mode=None),
                text(told.param.links, sizing_mode=None),
                self._steps(),
                self._doing(),
                gap="4px 12px",
                align_items="center",
            ),
            text(told.param.problem.rx.pipe(markup.problem), visible=told.param.problem.rx.bool()),
            self._place,
            pn.pane.Bokeh(hidden, visible=False),
        )
        told.param.watch(lambda *_: self._mount(), ["page"])
        self._mount()

    def _doing(self) -> pn.FlexBox:
        """How the run is doing, and the button that stops and goes on: these stay together."""
        told = self.visited.told.param
        return pn.FlexBox(
            text(told.chips, sizing_mode=None),
            button(
                told.pause,
                self.visited.pause_or_resume,
                visible=told.pause.rx.bool(),
                margin=0,
            ),
            gap="12px",
            align_items="center",
            flex_wrap="nowrap",
            sizing_mode=None,
            styles={"margin-left": "auto"},
        )

    def _steps(self) -> pn.widgets.Button:
        """Where the steps are zoomed: which are visible, and the way back to all."""
        session = self.visited.session
        zoom = session.choice.param.zoom
        label = zoom.rx.pipe(
            lambda ends: f"All steps ({ends[0]:g} to {ends[1]:g} shown)" if ends else ""
        )
        return button(label, session.show_all_steps, visible=zoom.rx.is_not(None), margin=0)

    def _mount(self) -> None:
        name = self.visited.told.page
        for other, view in self._mounted.items():
            view.visible = other == name
        if name not in self._mounted:
            self._mounted[name] = self._entries[name].view(self.visited.made[name])
            self._place.append(self._mounted[name])
