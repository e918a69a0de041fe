"""What an overloaded collector asks of its agents: to measure less often, until it keeps up.

The step of the ladder between credit and loss. Credit alone lets agents keep what they may not
send, which lasts for seconds; then they would have to drop it. No I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..wire.messages import MAX_STRETCH

PATIENCE_S = 5.0
"""Memory must have been full for so long; and so long again for the next stretch."""
CALM_S = 60.0
"""And less than half full for so long before agents may measure more often again."""


@dataclass(slots=True)
class Overload:
    """The stretch that the collector's memory asks for, of all runs alike."""

    stretch: int = 1
    _since: float = 0.0
    """Since when memory has been as it is."""
    _was: str = "between"

    def look(self, held_bytes: int, bound_bytes: int, now: float) -> bool:
        """Whether the stretch changes; to be called now and then.

        Args:
            held_bytes: what frames take in memory.
            bound_bytes: above it memory is full.
            now: seconds, on any steady clock.
        """
        is_full, is_calm = held_bytes > bound_bytes, held_bytes < bound_bytes // 2
        state = "full" if is_full else "calm" if is_calm else "between"
        if state != self._was:
            self._was, self._since = state, now
        wanted = self.stretch
        if is_full and now - self._since >= PATIENCE_S:
            wanted = min(2 * self.stretch, MAX_STRETCH)
        elif is_calm and now - self._since >= CALM_S:
            wanted = max(self.stretch // 2, 1)
        if wanted == self.stretch:
            return False
        self.stretch, self._since = wanted, now
        return True
