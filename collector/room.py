"""How much a run has room for of what its ranks may name at will. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MOST_NAMES = 1024
"""Numbers of training, or counters, of a run, that have names of their own."""
MOST_NUMBERS = 1 << 20
"""The same times the ranks: a record has a number for each."""


class Names:
    """The names of the numbers that a run keeps for each rank and record.

    Args:
        known: those that it has already; they are kept, however many.
    """

    def __init__(self, known: Iterable[str]) -> None:
        self._known = set(known)

    def fit(self, numbers: Mapping[str, float], world_size: int) -> dict[str, float] | None:
        """The part of the numbers for which there is room; None: there is room for all."""
        new = [name for name in numbers if name not in self._known]
        if not new:
            return None
        most = min(MOST_NAMES, max(MOST_NUMBERS // world_size, 64))
        room = max(most - len(self._known), 0)
        self._known.update(new[:room])
        if len(new) <= room:
            return None
        return {name: number for name, number in numbers.items() if name in self._known}
