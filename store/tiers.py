"""In which tier and slot a record lies: arithmetic without I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .layout import RING, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Where the tiers of one array begin and end, in records."""

    history: int
    """Records 0 to this lie in the history."""
    recent: int
    """From there to this they lie in the recent tier."""
    records: int
    """And from there to this, the end, in the tail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of records that lie side by side."""

    tier: Tier
    first: int
    """The first of its records."""
    slots: slice
    """Where they lie on the first axis of that tier's array."""

    def __len__(self) -> int:
        return self.slots.stop - self.slots.start

    def within(self, first: int) -> slice:
        """Which rows of a block that begins with record `first` lie here."""
        return slice(self.first - first, self.first - first + len(self))


def pieces(bounds: Bounds, first: int, stop: int) -> Iterator[Piece]:
    """Where the records from `first` up to `stop` lie, in order."""
    limits: tuple[tuple[Tier, int, int], ...] = (
        ("history", 0, bounds.history),
        ("recent", bounds.history, bounds.recent),
        ("tail", bounds.recent, bounds.records),
    )
    for tier, start, end in limits:
        yield from ring_pieces(tier, max(first, start), min(stop, end))


def ring_pieces(tier: Tier, first: int, stop: int) -> Iterator[Piece]:
    """The slots of consecutive records in one tier: two pieces where they wrap around."""
    size = RING.get(tier)
    while first < stop:
        slot = first if size is None else first % size
        count = stop - first if size is None else min(stop - first, size - slot)
        yield Piece(tier=tier, first=first, slots=slice(slot, slot + count))
        first += count
