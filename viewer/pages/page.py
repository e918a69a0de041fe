"""What a page is, to those who show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable


class Page(Protocol):
    """The figures and texts of one page, for the one `Choice` of its session.

    It is made from a `Session` when it is first visited. It knows no Panel.
    """

    name: ClassVar[str]
    """As the address says it."""
    title: ClassVar[str]
    """As its link says it."""
    watched: ClassVar[Sequence[str]]
    """The parts of `Choice` that change what it shows."""

    def show(self) -> None:
        """Bring everything up to date.

        Called with the follower's lock held and only while the page is visible: when it is entered,
        when one of `watched` changes, and with each new snapshot.
        """
        ...


@runtime_checkable
class WithOthers(Protocol):
    """A page that shows other runs, too."""

    def look(self) -> bool:
        """Look at them, as once a tick; whether one of them has moved."""
        ...


class Drawn:
    """Remembers for what each part of a page was drawn, so that none is drawn for nothing."""

    def __init__(self) -> None:
        self._facts: dict[str, tuple[object, ...]] = {}

    def due(self, part: str, *facts: object) -> bool:
        """Whether a part was drawn for other facts, or never; it counts as drawn for these now."""
        due = self._facts.get(part) != facts
        self._facts[part] = facts
        return due

    def forget(self, part: str) -> None:
        """Draw a part again in any case."""
        self._facts.pop(part, None)
