"""Log lines about what peers do wrong: the first of each kind at once, then few, with a count."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field


@dataclass(slots=True)
class Complaints:
    """Says each kind of thing at most once per `every_s`."""

    logger: logging.Logger
    every_s: float = 10.0
    _said: dict[str, float] = field(default_factory=dict[str, float])
    _unsaid: dict[str, int] = field(default_factory=dict[str, int])

    def say(self, kind: str, text: str, now: float) -> None:
        """Log `text`, unless something of this kind was logged a moment ago."""
        last = self._said.get(kind)
        if last is not None and now - last < self.every_s:
            self._unsaid[kind] = self._unsaid.get(kind, 0) + 1
            return
        more = self._unsaid.pop(kind, 0)
        self._said[kind] = now
        self.logger.warning("%s%s", text, f" ({more} more like this)" if more else "")
