"""Log lines about what peers do wrong: the first of each kind at once, then few, with a count."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

MOST = 2000
"""Characters of a complaint."""
LONGEST_S = 600.0


@dataclass(slots=True)
class _Kind:
    """What was said of one kind of thing, and what was not."""

    said: float
    heard: float
    wait_s: float
    unsaid: int = 0


@dataclass(slots=True)
class Complaints:
    """Says each kind of thing at most once per `every_s`, and what goes on ever more rarely."""

    logger: logging.Logger
    every_s: float = 10.0
    _kinds: dict[str, _Kind] = field(default_factory=dict[str, _Kind])

    def say(self, kind: str, text: str, now: float, trace: str = "") -> bool:
        """Log `text`, unless something of this kind was logged a moment ago.

        Args:
            trace: of a fault of ours, on lines of its own.

        Returns:
            Whether it was logged.
        """
        before = self._kinds.get(kind)
        if before is not None and now - before.said < before.wait_s:
            before.heard, before.unsaid = now, before.unsaid + 1
            return False
        goes_on = before is not None and now - before.heard < before.wait_s
        wait_s = min(2 * before.wait_s, LONGEST_S) if before and goes_on else self.every_s
        more = before.unsaid if before else 0
        self._kinds[kind] = _Kind(said=now, heard=now, wait_s=wait_s)
        also = f" ({more} more like this)" if more else ""
        self.logger.warning("%s%s%s", plain(text), also, f"\n{trace}" if trace else "")
        return True


def plain(text: str) -> str:
    """Without what would break a line of a log, or move a terminal's cursor."""
    return "".join(one if one.isprintable() else "?" for one in text[:MOST])
