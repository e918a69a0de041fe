"""The frames of one stream that wait for upstream, in the order in which they go.

What goes up next is decided here and nowhere else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .shelf import Row
from .spool import Spool


@dataclass(slots=True)
class Backlog:
    """A stream's frames in the spool, with a mark up to where they were sent."""

    spool: Spool
    member: int
    sent: int = -1
    """Highest sequence number that was sent, or that upstream has."""
    _flight: deque[tuple[int, int, bytes]] = field(default_factory=deque[tuple[int, int, bytes]])
    """Sequence number, bytes and schema of what was sent and is not confirmed."""
    _flight_bytes: int = 0
    _next: Row | None = None
    _found: tuple[int, int] | None = None
    """Its number and size, as the spool says: one that is rewritten there has grown."""

    def __len__(self) -> int:
        return self.spool.count(self.member)

    @property
    def unsent(self) -> int:
        """1 if some wait for this connection, else 0."""
        return int(self.spool.after(self.member, self.sent) is not None)

    @property
    def is_under_way(self) -> bool:
        """Whether something was sent that upstream has not confirmed to have."""
        return bool(self._flight)

    def has_arrived(self, sequence: int) -> bool:
        """Whether upstream has that one, or will never be sent it."""
        return sequence <= self.sent and all(sequence != sent[0] for sent in self._flight)

    def next(self, credit_frames: int, credit_bytes: int) -> Row | None:
        """The frame to send now, if the credit allows it; `advance` says that it was sent."""
        found = self.spool.after(self.member, self.sent)
        if found is None:
            return None
        sequence, size_bytes = found
        full = len(self._flight) >= credit_frames or self._flight_bytes + size_bytes > credit_bytes
        if self._flight and full:
            return None
        if self._next is None or found != self._found:
            self._next = self.spool.row(self.member, sequence, after=self.sent)
            self._found = found
        return self._next

    def advance(self) -> None:
        """The frame that `next` gave was sent."""
        row = self._next
        assert row is not None
        self._flight.append((row.sequence, row.size_bytes, row.schema))
        self._flight_bytes += row.size_bytes
        self.sent, self._next = row.sequence, None

    def acknowledge(self, received: int, committed: int) -> int:
        """Let go of what is durable, and note what arrived; how many were let go of."""
        while self._flight and self._flight[0][0] <= received:
            self._flight_bytes -= self._flight.popleft()[1]
        return self.spool.let_go(self.member, committed)

    def restart(self, received: int, committed: int) -> int:
        """On a new connection go on after what upstream has; how many are durable after all."""
        self._flight.clear()
        self._next = None
        self._flight_bytes, self.sent = 0, received
        return self.spool.let_go(self.member, committed)

    def rewind(self, schema: bytes) -> None:
        """The frames of this schema, and what was sent after them, were refused."""
        places = [place for place, sent in enumerate(self._flight) if sent[2] == schema]
        if places:
            self.sent = self._flight[places[0]][0] - 1
            while len(self._flight) > places[0]:
                self._flight_bytes -= self._flight.pop()[1]
