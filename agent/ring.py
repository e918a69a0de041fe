"""The ring: the last steps of a rank in full, which are sent when something goes wrong in one.

The schedule says which steps are sent; those that it leaves out are kept for a while, encoded.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ..wire.codec import Packed
from ..wire.messages import Gap

MAX_BYTES = 8 << 20
"""What the steps of a ring take together at most: the oldest leave it earlier then. It is half of
what an agent keeps until it is durable, for they all go there at once."""

NO_ROOM = "the ring of steps that were kept back was full"


@dataclass(slots=True)
class Ring:
    """Steps that were not sent, oldest first.

    Args:
        steps: how many.
    """

    steps: int
    dropped: int = 0
    """Steps that left it early, for want of room."""
    _kept: deque[Packed] = field(default_factory=deque[Packed])
    _number: int = 0
    """Of the step that came last."""
    _early: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    """Number and step of those that left it early and that it should still hold."""
    _size_bytes: int = 0

    def keep(self, one: Packed) -> None:
        """Add a step; the oldest leave."""
        self._kept.append(one)
        self._number += 1
        self._size_bytes += len(one[1])
        while len(self._kept) > self.steps or (
            self._size_bytes > MAX_BYTES and len(self._kept) > 1
        ):
            is_early = len(self._kept) <= self.steps
            place = self._number - len(self._kept)
            header, blob = self._kept.popleft()
            self._size_bytes -= len(blob)
            self.dropped += is_early
            if is_early:
                self._early.append((place, header.step))
        while self._early and self._early[0][0] < self._number - self.steps:
            self._early.popleft()

    def take(self) -> list[Packed]:
        """All that is in it; then it is empty."""
        kept = list(self._kept)
        self._kept.clear()
        self._size_bytes = 0
        return kept

    def take_lost(self) -> list[Gap]:
        """The steps that should be in it, and left it early."""
        steps = [step for _, step in self._early]
        self._early.clear()
        if not steps:
            return []
        return [Gap(first_step=steps[0], last_step=steps[-1], frames=len(steps), cause=NO_ROOM)]
