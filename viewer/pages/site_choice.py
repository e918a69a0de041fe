"""Choosing the site on the page itself: by what is typed, or the one before or after."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import param

from .. import site_lists
from ..session import Session
from .page import Drawn


class Told(param.Parameterized):
    """What can be chosen."""

    found = param.String(doc="HTML: what was found; empty while nothing is sought.")
    suggested = param.String(doc="HTML: what is often put beside the selected site.")


@runtime_checkable
class WithSearch(Protocol):
    """A page on which a site is sought."""

    @property
    def sites(self) -> SiteChoice:
        """What seeks."""
        ...


class SiteChoice:
    """Finds sites as one types."""

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, Told()
        self.text = ""
        self._site = session.choice.site
        self._drawn = Drawn()

    def look_for(self, text: str) -> None:
        """Tell which sites have these words in their labels."""
        self.text = text
        self.show()

    def forget(self) -> bool:
        """Seek nothing; whether something was sought."""
        sought, self.text = bool(self.text), ""
        self.show()
        return sought

    def take_first(self) -> None:
        """Select the first site that was found."""
        found, _ = self.session.choosing().search(self.text)
        if found:
            self.session.select_site(found[0])

    def show(self) -> None:
        """Bring it up to date; what was typed is done with once a site is selected."""
        site = self.session.choice.site
        if site != self._site:
            self._site, self.text = site, ""
        choosing, beside = self.session.choosing(), self.session.choice.beside
        facts = len(choosing.labels), *beside
        if self._drawn.due("found", self.text, *facts):
            labels, total = choosing.search(self.text)
            self.told.found = site_lists.found(labels, total, text=self.text, beside=beside)
        if self._drawn.due("suggested", site, *facts):
            some = choosing.suggestions(site)
            self.told.suggested = site_lists.suggested(some, beside=beside)
