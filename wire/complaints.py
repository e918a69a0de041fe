"""Log lines about what peers do wrong: the first of each kind at once, then few, with a count."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

MOST = 2000
"""Characters of a complaint."""


@dataclass(slots=True)
class Complaints:
    """Says each kind of thing at most once per `every_s`."""

    logger: logging.Logger
    every_s: float = 10.0
    _said: dict[str, float] = field(default_factory=dict[str, float])
    _unsaid: dict[str, int] = field(default_factory=dict[str, int])

    def say(self, kind: str, text: str, now: float, trace: str = "") -> None:
        """Log `text`, unless something of this kind was logged a moment ago.

        Args:
            trace: of a fault of ours, on lines of its own.
        """
        last = self._said.get(kind)
        if last is not None and now - last < self.every_s:
            self._unsaid[kind] = self._unsaid.get(kind, 0) + 1
            return
        more = self._unsaid.pop(kind, 0)
        self._said[kind] = now
        also = f" ({more} more like this)" if more else ""
        self.logger.warning("%s%s%s", plain(text), also, f"\n{trace}" if trace else "")


def plain(text: str) -> str:
    """Without what would break a line of a log, or move a terminal's cursor."""
    return "".join(one if one.isprintable() else "?" for one in text[:MOST])
