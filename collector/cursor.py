"""How far one stream has come: which of its frames arrived, and which are durable.

The one rule: `committed` never passes a frame that arrived and is not durable. On one connection
frames come in ascending order, so a sequence number that is jumped over will never come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cursor:
    """The state of one stream of frames."""

    received: int = -1
    """Highest sequence number that arrived, or that never will."""
    waiting: dict[int, int] = field(default_factory=dict[int, int])
    """Frames that arrived and are not durable: sequence number to bytes, ascending."""

    @property
    def committed(self) -> int:
        """Highest sequence number up to which every frame that will ever come is durable."""
        return next(iter(self.waiting)) - 1 if self.waiting else self.received

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the frames that are not durable yet."""
        return sum(self.waiting.values())

    def receive(self, sequence: int, size_bytes: int) -> int | None:
        """Note a frame; how many were jumped over before it, or None if it came before."""
        if sequence <= self.received:
            return None
        missing = sequence - self.received - 1
        self.received = sequence
        self.waiting[sequence] = size_bytes
        return missing

    def committed_after(self, released: Iterable[int]) -> int:
        """What `committed` will be once the frames `released` are durable too."""
        gone = set(released)
        return next((n - 1 for n in self.waiting if n not in gone), self.received)

    def release(self, released: Iterable[int]) -> None:
        """These frames are durable."""
        for sequence in released:
            self.waiting.pop(sequence, None)
