"""What goes up when frames are merged: those of one step together, once all who are there have it.

Each stream's frames stay in order. A frame that says more than numbers goes alone and as it came,
and so does one of a step that nobody else has. Upstream says in its welcome what it has already, so
that a joined frame is taken as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ..sketch.errors import ProtocolError, RankscopeError
from ..wire.codec import MAX_BLOB_BYTES, MAX_HEADER_BYTES, PackedFrame, decode, encode, open_frame
from ..wire.joined import MAX_HOLDERS
from ..wire.messages import FrameHeader, JoinedMember
from ..wire.sender import Sendable
from .book import Book
from .member import Member

MOST = 4096
"""Frames that are merged into one."""
SILENT_S = 6.0
"""Who has said nothing for so long is not waited for; agents say something every two seconds."""

Step = tuple[int, bool]
"""Step and whether it is the final one."""
Put = Callable[[Member, Sequence[bytes]], bool]
"""Hands a message of a stream to the network; False if that takes no more."""


@dataclass(slots=True)
class _Head:
    """The frame of a stream that goes next."""

    row: Sendable
    came: float
    step: Step | None
    """None where it goes alone."""
    header: FrameHeader


@dataclass(slots=True)
class _Group:
    """The streams of one start of a job."""

    book: Book
    heads: dict[int, _Head] = field(default_factory=dict[int, _Head])
    """By stream."""
    last: dict[int, Step] = field(default_factory=dict[int, Step])
    """The step that each sent last."""
    vain: set[int] = field(default_factory=set[int])
    """Who was waited for in vain, and has sent nothing since."""


class Gatherer:
    """Merges frames of streams that belong together.

    Args:
        wait_s: how long a step waits for a stream that is there and has not come to it.
    """

    def __init__(self, wait_s: float) -> None:
        self.joined = 0
        """Frames that went up merged with others."""
        self._wait_s = wait_s
        self._groups: dict[tuple[str, str], _Group] = {}

    def flush(self, members: Iterable[Member], now: float, put: Put) -> bool:
        """Send what may go; False if the network takes no more."""
        by_group = dict[tuple[str, str], list[Member]]()
        for member in members:
            by_group.setdefault((member.hello.run, member.hello.launch), []).append(member)
        self._groups = {key: group for key, group in self._groups.items() if key in by_group}
        for key, some in by_group.items():
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = _Group(Book(some[0].hello))
            if not self._flush(group, some, now, put):
                return False
        return True

    def _flush(self, group: _Group, members: list[Member], now: float, put: Put) -> bool:
        ids = {member.id for member in members}
        group.last = {id_: step for id_, step in group.last.items() if id_ in ids}
        group.vain &= ids
        group.heads = {id_: head for id_, head in group.heads.items() if id_ in ids}
        while True:
            for member in members:
                if not self._alone(group, member, now, put):
                    return False
            ready = self._ready(group, members, now)
            if not ready:
                return True
            if not self._together(group, ready, put):
                return False

    def _alone(self, group: _Group, member: Member, now: float, put: Put) -> bool:
        """Send what goes alone, up to what is merged."""
        while (head := self._head(group, member, now)) is not None and head.step is None:
            if not self._send(group, member, head, put):
                return False
        return True

    def _head(self, group: _Group, member: Member, now: float) -> _Head | None:
        row = member.sender.next()
        known = group.heads.get(member.id)
        if row is None:
            group.heads.pop(member.id, None)
            return None
        if known is None or known.row is not row:
            header: FrameHeader = decode(row.parts[0], "agent")
            says_more = header.partial or header.kept or header.gaps or header.reports
            step = (header.step, header.final)
            welcome = member.sender.welcome
            may = welcome is not None and welcome.joins and not says_more
            may = may and group.book.fits(member, row.schema)
            came = now
            if known is not None and known.row.sequence == row.sequence:
                came = known.came
            known = _Head(row, came, step if may else None, header)
            group.heads[member.id] = known
        return known

    def _ready(self, group: _Group, members: list[Member], now: float) -> list[Member]:
        """Those whose frames of the earliest step are to go now."""
        heads = group.heads
        steps = [heads[one.id].step for one in members if one.id in heads]
        first = min((step for step in steps if step is not None), default=None)
        if first is None:
            return []
        ready = [one for one in members if one.id in heads and heads[one.id].step == first]
        late = now - min(heads[one.id].came for one in ready) > self._wait_s
        awaited = {
            one.id
            for one in members
            if one.id not in heads and group.last.get(one.id, (first[0] - 1, False)) < first
            if one.goodbye is None and now - one.seen < SILENT_S
        }
        if late:
            group.vain |= awaited
        return ready[:MOST] if awaited <= group.vain else []

    def _together(self, group: _Group, members: list[Member], put: Put) -> bool:
        heads = [group.heads[member.id] for member in members]
        if len(members) == 1:
            return self._send(group, members[0], heads[0], put)
        parts = self._join(group, members, heads)
        if parts is None:  # too much for one; or one of them is the reason
            half = len(members) // 2
            return all(
                self._together(group, some, put) for some in (members[:half], members[half:])
            )
        schema, *frame = parts
        first = members[0]
        if not first.sender.put_schema(group.book.hash, schema, lambda parts: put(first, parts)):
            return False
        if not put(first, frame):
            return False
        self.joined += len(members)
        for member, head in zip(members, heads, strict=True):
            self._went(group, member, head)
        return True

    def _join(
        self, group: _Group, members: list[Member], heads: list[_Head]
    ) -> tuple[bytes, bytes, bytes] | None:
        """Schema, header and blob of the joined frame; None where they cannot be merged."""
        frames = dict[int, tuple[Member, PackedFrame]]()
        said = dict[int, JoinedMember]()
        try:
            for member, head in zip(members, heads, strict=True):
                schema = group.book.schema(head.row.schema)
                if schema is None:  # the book was begun anew meanwhile
                    return None
                rank, header = member.hello.rank, head.header
                frames[rank] = member, open_frame(header, head.row.parts[1], schema)
                said[rank] = JoinedMember(
                    stream=member.hello.stream,
                    sequence=header.sequence,
                    time_ns=header.time_ns,
                    training=header.training,
                    health=header.health,
                )
            if len(frames) < len(members):  # two streams of one rank
                return None
            header, blob = group.book.join(frames, said)
            if (header.rows + header.copies) * len(members) > MAX_HOLDERS:
                return None
            part = encode(header)
            decode(part, "agent")  # whether it is within all bounds
        except (ProtocolError, RankscopeError):
            return None
        if len(blob) > MAX_BLOB_BYTES or len(part) > MAX_HEADER_BYTES:
            return None
        return group.book.body, part, blob

    def _send(self, group: _Group, member: Member, head: _Head, put: Put) -> bool:
        if not member.sender.send(head.row, lambda parts: put(member, parts)):
            return False
        self._went(group, member, head)
        return True

    def _went(self, group: _Group, member: Member, head: _Head) -> None:
        member.sender.advance(head.row)
        group.vain.discard(member.id)
        group.last[member.id] = (head.header.step, head.header.final)
        del group.heads[member.id]
