"""What is to be told of an attempt beside its records, until a batch takes it."""

from __future__ import annotations

from dataclasses import replace

from ..store.record import Event
from ..wire.messages import Gap

MAX_EVENTS = 4096
"""Of one batch; what more there was is counted."""


class Telling:
    """The events of one attempt."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt
        self._events: list[Event] = []
        self._untold = 0
        """Events for which there was no room."""

    def tell(self, kind: str, rank: int, step: int, text: str) -> None:
        """Have an event in the next batch."""
        if len(self._events) >= MAX_EVENTS:
            self._untold += 1
            return
        self.add(self.event(kind, rank, step, text))

    def add(self, *events: Event) -> None:
        """Have these in the next batch."""
        self._events += events

    def take(self, events: list[Event]) -> list[Event]:
        """These, those that wait, and how many more there were than a batch may tell.

        Gaps have room before all others.
        """
        events, self._events = [*events, *self._events], []
        untold, self._untold = self._untold + max(len(events) - MAX_EVENTS, 0), 0
        if not untold:
            return events
        events = sorted(events, key=lambda event: event.kind != "gap")[:MAX_EVENTS]
        text = f"{untold} more events came at once, and were left out."
        return [*events, self.event("events-lost", -1, -1, text)]

    def event(self, kind: str, rank: int, step: int, text: str, time_ns: int = 0) -> Event:
        """One of the attempt; it is told by whoever asked."""
        return Event(
            kind=kind, attempt=self._attempt, rank=rank, step=step, text=text, time_ns=time_ns
        )

    def gap(self, rank: int, gap: Gap) -> Event:
        """The event of what was lost; of a record where `rank` is negative."""
        first, last = gap.first_step, gap.last_step
        who = "A record" if rank < 0 else f"Rank {rank}"
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        frames = "1 frame" if gap.frames == 1 else f"{gap.frames} frames"
        text = f"{who} lost {frames} of {steps}: {gap.cause}."
        return replace(
            self.event("gap", rank, gap.first_step, text),
            last_step=gap.last_step,
            frames=gap.frames,
            cause=gap.cause,
        )
