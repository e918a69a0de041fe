"""The frames that are not durable yet: bounded, in order, ready to be sent again.

Pure: no socket, no clock. Beyond its bounds the oldest frames fall out, and are told as gaps with
the next frame; a gap that was told by a frame that fell out itself is told again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from ..wire.messages import Gap

MAX_GAPS = 256
"""As many as one frame may tell; more are joined into the last."""
OVERFLOW = "the window of unacknowledged frames was full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One frame, encoded."""

    sequence: int
    step: int
    schema: bytes
    """Hash of the schema that it needs."""
    parts: tuple[bytes, bytes]
    """Header and blob."""
    gaps: tuple[Gap, ...] = ()
    """What its header tells as lost."""

    @property
    def size_bytes(self) -> int:
        """Bytes on the wire."""
        return len(self.parts[0]) + len(self.parts[1])


@dataclass(slots=True)
class Window:
    """A queue of entries by ascending sequence number, with a mark up to where they were sent."""

    max_bytes: int
    max_frames: int
    size_bytes: int = 0
    dropped_frames: int = 0
    dropped_bytes: int = 0
    _entries: deque[Entry] = field(default_factory=deque[Entry])
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
        """What the next frame has to tell as lost."""
        gaps, self._gaps = tuple(self._gaps), []
        return gaps

    def push(self, entry: Entry) -> None:
        """Add the newest entry; the oldest give way."""
        self._entries.append(entry)
        self.size_bytes += entry.size_bytes
        while len(self._entries) > 1 and self._is_full():
            self._drop_oldest()

    def lose(self, step: int, size_bytes: int, cause: str, gaps: Sequence[Gap] = ()) -> None:
        """A frame was lost before it got here."""
        self.dropped_frames += 1
        self.dropped_bytes += size_bytes
        self._note([*gaps, Gap(first_step=step, last_step=step, frames=1, cause=cause)])

    def acknowledge(self, received: int, committed: int) -> int:
        """Let go of what is durable, and note what arrived; how many were let go of."""
        self._received = max(self._received, received)
        count = 0
        while self._entries and self._entries[0].sequence <= committed:
            self._pop()
            count += 1
        return count

    def restart(self, committed: int) -> int:
        """On a new connection all that is left is to be sent; how many are durable after all."""
        count = self.acknowledge(committed, committed)
        self._received, self._sent = committed, 0
        return count

    def rewind(self, schema: bytes) -> None:
        """The frames of this schema, and what was sent after them, were refused."""
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
        return entry

    def advance(self) -> None:
        """The entry that `next` gave was sent."""
        self._sent += 1

    def _under_way(self) -> tuple[int, int]:
        frames = size_bytes = 0
        for entry in islice(reversed(self._entries), len(self._entries) - self._sent, None):
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

    def _drop_oldest(self) -> None:
        entry = self._pop()
        self.lose(entry.step, entry.size_bytes, OVERFLOW, entry.gaps)

    def _note(self, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            last = self._gaps[-1] if self._gaps else None
            joins = last and last.cause == gap.cause and gap.first_step >= last.first_step
            if last and (joins or len(self._gaps) >= MAX_GAPS):
                self._gaps[-1] = Gap(
                    first_step=min(last.first_step, gap.first_step),
                    last_step=max(last.last_step, gap.last_step),
                    frames=last.frames + gap.frames,
                    cause=last.cause,
                )
            else:
                self._gaps.append(gap)
