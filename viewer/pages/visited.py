"""The pages of one session: made on the first visit, brought up to date while visible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import param

from ...sketch.errors import RankscopeError
from .. import markup, words
from ..pipeline import is_late
from ..session import Session
from .page import Page, WithOthers
from .readout import Readout

Pages = Mapping[str, Callable[[Session], Page]]
"""By its name, what makes a page."""


class Told(param.Parameterized):
    """The texts around the page, each as HTML unless said otherwise."""

    page = param.String(doc="Plain text: the name of the page that is shown.")
    header = param.String(doc="Which run this is.")
    chips = param.String(doc="How it is doing.")
    links = param.String(doc="To the pages.")
    pause = param.String(
        doc="Plain text: what the button does that stops and goes on; empty: none."
    )
    problem = param.String(doc="Plain text: what cannot be shown, and why.")


class Visited:
    """Shows the page that is chosen, and leaves alone those that nobody sees."""

    def __init__(self, session: Session, pages: Pages) -> None:
        """Make the chosen page; the first one where the choice names none that there is."""
        self.session, self.told = session, Told()
        self._kinds = pages
        self._readout = Readout(session)
        self.made: dict[str, Page] = {}
        """The pages that were visited."""
        self._version = session.follower.version
        if session.choice.page not in pages:
            session.choice.page = next(iter(pages))
        session.choice.param.watch(self._changed, [n for n in session.choice.param if n != "name"])
        with session.follower.lock:
            self._tell_header()
            self._show()

    @property
    def page(self) -> Page:
        """The page that is visible."""
        name = self.session.choice.page
        if name not in self.made:
            self.made[name] = self._kinds[name](self.session)
        return self.made[name]

    def tick(self) -> None:
        """Show what is new; the age of the last step in any case."""
        with self.session.follower.lock:
            others_moved = isinstance(page := self.page, WithOthers) and page.look()
            if self._version != self.session.follower.version:
                self._version = self.session.follower.version
                self.session.defaults()
                self._show()
            elif others_moved:
                self._show()
            self._tell_header()

    def pause_or_resume(self) -> None:
        """Stand still at the present snapshot, or follow the run again."""
        if self.session.paused:
            self.session.resume()
        else:
            self.session.pause()
        self.tick()

    def tell_links(self, pages: Sequence[tuple[str, str, str]], *, other: tuple[str, str]) -> None:
        """Tell where the pages are.

        Args:
            pages: name, title and address of each.
            other: name of the other theme, and the address of the same in it.
        """
        self.told.links = markup.links(pages, shown=self.session.choice.page, other=other)

    def _changed(self, *events: param.parameterized.Event) -> None:
        changed = {event.name for event in events}
        if "page" in changed and self.session.choice.page not in self._kinds:
            return
        if changed & {"page", *self.page.watched, *Readout.watched}:
            with self.session.follower.lock:
                self._show()

    def _show(self) -> None:
        problem = ""
        if self.told.page != self.session.choice.page:
            self.session.crosshair.leave()
        try:
            self.page.show()
            self._readout.show()
        except RankscopeError as error:
            problem = str(error)
        self.told.param.update(page=self.session.choice.page, problem=problem)

    def _tell_header(self) -> None:
        session = self.session
        records = session.live.records()
        # The one appended last: after a rewind that is not the highest step.
        last = records.loc[records.index.max()] if len(records) else None
        age_s = 0.0 if last is None else max(session.now() - last["time"].timestamp(), 0.0)
        attempts = len(session.live.attempts())
        waiting = len(records) - len(session.follower.records())
        finished = bool(session.live.run.finished)
        pause = "Go on" if session.paused else "" if finished else "Pause"
        self.told.pause = pause
        self.told.header = markup.header(
            session.run.name,
            folder=words.place(session.run.path.parent),
            index=session.index,
            theme=session.choice.theme,
        )
        self.told.chips = markup.chips(
            attempt=attempts - 1 if last is None else int(last["attempt"]),
            ending=session.live.ending(),
            finished=finished,
            waiting=waiting if session.paused else None,
            step=None if last is None else int(last["step"]),
            age_s=age_s,
            late=not finished and is_late(age_s, session.interval_s()),
            present=0 if last is None else int(last["ranks"]),
            missing=[] if last is None else last["missing"],
        )
