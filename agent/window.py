"""The frames that are not durable yet: bounded, in order, ready to be sent again.

Pure: no socket, no clock. Beyond its bounds frames fall out: the oldest while these were sent, for
they are in doubt then: such a frame becomes durable, or is lost if the collector ends before that,
which the next connection tells. So nothing is told as lost that is stored. Where none was sent,
those of least worth go, and are lost: what is left lies evenly over all steps, and has those that
matter. What is lost is told as a gap by the frame behind it, and again if that falls out itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from msgspec.structs import replace

from ..wire.codec import Packed, encode
from ..wire.gaps import joined
from ..wire.messages import Gap
from ..wire.worth import worth_of

MAX_DOUBTS = 65_536
"""Frames in doubt, of which a few numbers are kept; beyond it the oldest count as lost."""
OVERFLOW = "the window of unacknowledged frames was full"
FORSAKEN = "the window was full, and the collector ended before it had stored what it had received"


@dataclass(slots=True, kw_only=True)
class Entry:
    """One frame."""

    sequence: int
    packed: Packed
    size_bytes: int
    """Bytes on the wire."""
    gaps: tuple[Gap, ...] = ()
    """What it tells as lost, once it was sent."""

    @property
    def worth(self) -> int:
        """How much it would be missed."""
        return worth_of(self.packed[0])

    @property
    def parts(self) -> tuple[bytes, bytes]:
        """Header and blob, as they go."""
        header, blob = self.packed
        return encode(replace(header, gaps=list(self.gaps))), blob

    @property
    def step(self) -> int:
        """The step that it is about."""
        return self.packed[0].step

    @property
    def schema(self) -> bytes:
        """Hash of the schema that it needs."""
        return self.packed[0].schema


@dataclass(frozen=True, slots=True)
class Doubt:
    """A frame that fell out after it was sent."""

    sequence: int
    step: int
    schema: bytes
    size_bytes: int
    gaps: tuple[Gap, ...]


@dataclass(slots=True)
class Window:
    """A queue of entries by ascending sequence number, with a mark up to where they were sent."""

    max_bytes: int
    max_frames: int
    size_bytes: int = 0
    dropped_frames: int = 0
    dropped_bytes: int = 0
    _entries: deque[Entry] = field(default_factory=deque[Entry])
    _doubts: deque[Doubt] = field(default_factory=deque[Doubt])
    _gaps: list[Gap] = field(default_factory=list[Gap])
    _sent: int = 0
    """How many entries, from the oldest, were sent on this connection."""
    _received: int = -1

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def unsent(self) -> int:
        """How many entries wait for this connection."""
        return len(self._entries) - self._sent

    @property
    def in_doubt(self) -> int:
        """How many frames fell out after they were sent, and are neither durable nor lost."""
        return len(self._doubts)

    @property
    def is_under_way(self) -> bool:
        """Whether something was sent that the other side has not confirmed to have."""
        return self._under_way()[0] > 0

    def entries(self) -> tuple[Entry, ...]:
        """All entries, oldest first."""
        return tuple(self._entries)

    def schemas(self) -> set[bytes]:
        """Hashes of the schemas that the entries need."""
        return {entry.schema for entry in self._entries}

    def take_gaps(self) -> tuple[Gap, ...]:
        """What no frame has told as lost yet; the caller tells it."""
        gaps, self._gaps = tuple(self._gaps), []
        return gaps

    def push(self, entry: Entry) -> None:
        """Add the newest entry; others give way."""
        self._entries.append(entry)
        self.size_bytes += entry.size_bytes
        while len(self._entries) > 1 and self._is_full():
            if self._sent:
                self._drop_oldest()
            else:
                self._thin()

    def lose(self, step: int, size_bytes: int, cause: str) -> None:
        """A frame was lost before it got here."""
        self.dropped_frames += 1
        self.dropped_bytes += size_bytes
        self.note((Gap(first_step=step, last_step=step, frames=1, cause=cause),))

    def note(self, gaps: Sequence[Gap]) -> None:
        """Have gaps told by the next frame that goes out."""
        self._gaps = joined([*self._gaps, *gaps])

    def acknowledge(self, received: int, committed: int) -> int:
        """Let go of what is durable, and note what arrived; how many were let go of."""
        self._received = max(self._received, received)
        count = 0
        while self._doubts and self._doubts[0].sequence <= committed:
            self._doubts.popleft()
            count += 1
        while self._entries and self._entries[0].sequence <= committed:
            self._pop()
            count += 1
        return count

    def restart(self, received: int, committed: int) -> int:
        """On a new connection go on after what the other side has; how many are durable after all.

        Args:
            received: the highest sequence number that it has, durable or not.
            committed: the highest that is durable.
        """
        self._received = received
        count = self.acknowledge(received, committed)
        self._sent = sum(entry.sequence <= received for entry in self._entries)
        self._lose_doubts(received + 1)
        return count

    def rewind(self, schema: bytes) -> None:
        """The frames of this schema, and what was sent after them, were refused."""
        for doubt in self._doubts:
            if doubt.schema == schema and doubt.sequence > self._received:
                self._lose_doubts(doubt.sequence)
                break
        for place, entry in enumerate(self._entries):
            if entry.schema == schema and entry.sequence > self._received:
                self._sent = min(self._sent, place)
                return

    def next(self, credit_frames: int, credit_bytes: int) -> Entry | None:
        """The entry to send now, if the credit allows it; `advance` says that it was sent."""
        if self._sent >= len(self._entries):
            return None
        entry = self._entries[self._sent]
        frames, size_bytes = self._under_way()
        if frames and (frames >= credit_frames or size_bytes + entry.size_bytes > credit_bytes):
            return None
        if self._gaps:  # it is not received by this collector, so that it will tell them once
            self._gaps, own = [], self._gaps
            self.note(entry.gaps)
            self.note(own)
            entry.gaps = self.take_gaps()
        return entry

    def advance(self) -> None:
        """The entry that `next` gave was sent."""
        self._sent += 1

    def _under_way(self) -> tuple[int, int]:
        frames = size_bytes = 0
        sent = islice(reversed(self._entries), len(self._entries) - self._sent, None)
        for entry in chain(sent, reversed(self._doubts)):
            if entry.sequence <= self._received:
                break
            frames += 1
            size_bytes += entry.size_bytes
        return frames, size_bytes

    def _is_full(self) -> bool:
        return self.size_bytes > self.max_bytes or len(self._entries) > self.max_frames

    def _pop(self) -> Entry:
        entry = self._entries.popleft()
        self.size_bytes -= entry.size_bytes
        self._sent = max(self._sent - 1, 0)
        return entry

    def _thin(self) -> None:
        """Lose the frame of least worth, of such the oldest; never the newest frame."""
        place = min(range(len(self._entries) - 1), key=lambda place: self._entries[place].worth)
        entry, behind = self._entries[place], self._entries[place + 1]
        del self._entries[place]
        self.size_bytes -= entry.size_bytes
        self.dropped_frames += 1
        self.dropped_bytes += entry.size_bytes
        gap = Gap(first_step=entry.step, last_step=entry.step, frames=1, cause=OVERFLOW)
        # By this one and no other: whoever misses a number asks the frame that comes instead.
        behind.gaps = tuple(joined([*entry.gaps, gap, *behind.gaps], thinned=True))

    def _drop_oldest(self) -> None:
        """Of those that were sent."""
        entry = self._pop()
        doubt = Doubt(entry.sequence, entry.step, entry.schema, entry.size_bytes, entry.gaps)
        self._doubts.append(doubt)
        if len(self._doubts) > MAX_DOUBTS:
            self._lose(self._doubts.popleft(), OVERFLOW)

    def _lose_doubts(self, sequence: int) -> None:
        """From this number on the other side does not have them."""
        gone = [doubt for doubt in self._doubts if doubt.sequence >= sequence]
        for _ in gone:
            self._doubts.pop()
        for doubt in gone:
            self._lose(doubt, FORSAKEN)

    def _lose(self, doubt: Doubt, cause: str) -> None:
        self.note(doubt.gaps)
        self.lose(doubt.step, doubt.size_bytes, cause)
