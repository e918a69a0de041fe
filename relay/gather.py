"""What goes up where frames are merged, or came merged: those of one step together.

Each stream's frames stay in order. A step goes once all who are there have it. A frame that says
more than numbers goes alone and as it came, and so does one of a step that nobody else has. A
joined frame goes, as it is or merged further, once it is the turn of all its streams: upstream says
in its welcome what it has already, so that it is taken as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ..sketch.errors import ProtocolError, RankscopeError
from ..wire.codec import MAX_BLOB_BYTES, MAX_HEADER_BYTES, decode, encode, open_frame
from ..wire.joined import MAX_HOLDERS, JoinedFrame, open_joined
from ..wire.messages import MAX_JOINED, FrameHeader, JoinedHeader, JoinedMember
from ..wire.sender import Sendable
from .book import Book, Opened
from .member import Member
from .riders import Rider, Said, open_header

SILENT_S = 6.0
"""Who has said nothing for so long is not waited for; agents say something every two seconds."""

Step = tuple[int, bool]
"""Step and whether it is the final one."""
Unit = list[Member]
"""The streams that a frame is of: one; or those of a joined one, in the order of its members."""
Put = Callable[[Member, Sequence[bytes]], bool]
"""Hands a message of a stream to the network; False if that takes no more."""


@dataclass(slots=True)
class _Head:
    """The frame of a stream that goes next."""

    row: Sendable
    came: float
    step: Step | None
    """None where it is not merged."""
    said: Said


@dataclass(slots=True)
class _Group:
    """The streams of one start of a job."""

    book: Book
    streams: dict[str, Member] = field(default_factory=dict[str, Member])
    """Those that upstream has welcomed, by name."""
    heads: dict[int, _Head] = field(default_factory=dict[int, _Head])
    """By stream."""
    last: dict[int, Step] = field(default_factory=dict[int, Step])
    """The step that each sent last."""
    vain: set[int] = field(default_factory=set[int])
    """Who was waited for in vain, and has sent nothing since."""

    def keep(self, members: list[Member]) -> None:
        """Let go of all who are not among these."""
        ids = {member.id for member in members}
        self.streams = {member.hello.stream: member for member in members}
        self.last = {id_: step for id_, step in self.last.items() if id_ in ids}
        self.heads = {id_: head for id_, head in self.heads.items() if id_ in ids}
        self.vain &= ids


class Gatherer:
    """Sends frames of streams that belong together.

    Args:
        wait_s: how long a step waits for a stream that is there and has not come to it.
        merges: whether frames are merged, or only sent as they came.
    """

    def __init__(self, wait_s: float, *, merges: bool) -> None:
        self.joined = 0
        """Frames that went up merged with others."""
        self._wait_s = wait_s
        self._merges = merges
        self._groups: dict[tuple[str, str], _Group] = {}

    def flush(self, members: Iterable[Member], now: float, put: Put) -> bool:
        """Send what may go of streams that upstream has welcomed; False if the network is full."""
        by_group = dict[tuple[str, str], list[Member]]()
        for member in members:
            by_group.setdefault((member.hello.run, member.hello.launch), []).append(member)
        self._groups = {key: group for key, group in self._groups.items() if key in by_group}
        for key, some in by_group.items():
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = _Group(Book(some[0].hello))
            group.keep(some)
            if not self._flush(group, some, now, put):
                return False
        return True

    def _flush(self, group: _Group, members: list[Member], now: float, put: Put) -> bool:
        while True:
            for member in members:
                if not self._apart(group, member, now, put):
                    return False
            units = self._ready(group, members, now)
            if not units:
                return True
            if not self._together(group, units, put):
                return False

    def _apart(self, group: _Group, member: Member, now: float, put: Put) -> bool:
        """Send what goes as it came, up to what is merged."""
        while (head := self._head(group, member, now)) is not None and head.step is None:
            unit = self._unit(group, member, head, now)
            if not unit:
                return True
            if not self._send(group, unit, put):
                return False
        return True

    def _head(self, group: _Group, member: Member, now: float) -> _Head | None:
        row = member.sender.next()
        known = group.heads.get(member.id)
        if row is None:
            group.heads.pop(member.id, None)
            return None
        if known is None or known.row is not row:
            said = open_header(row.schema, row.parts[0])
            step = self._step(group, member, row, said)
            came = now
            if known is not None and known.row.sequence == row.sequence:
                came = known.came
            known = group.heads[member.id] = _Head(row, came, step, said)
        return known

    def _step(self, group: _Group, member: Member, row: Sendable, said: Said) -> Step | None:
        """The step with which a frame is merged; None if it is not."""
        may = self._merges
        if isinstance(said, FrameHeader):
            welcome = member.sender.welcome
            may = may and welcome is not None and welcome.joins
            may = may and not (
                said.partial
                or said.kept
                or said.alarming
                or said.gaps
                or said.reports
                or said.series
            )
        if not isinstance(said, Rider):
            may = may and group.book.fits(member, row.schema)
        return (said.step, said.final) if may else None

    # Units ---------------------------------------------------------------------------------------

    def _unit(self, group: _Group, member: Member, head: _Head, now: float) -> Unit:
        """The streams that the next frame of `member` is of, if it is the turn of all; else none.

        A frame that goes with a joined one is that one's.
        """
        if isinstance(head.said, FrameHeader):
            return [member]
        if isinstance(head.said, JoinedHeader):
            found = [self._rider(group, said, member, head, now) for said in head.said.members[1:]]
            riders = [one for one in found if one is not None]
            if len(riders) == len(found):
                return [member, *riders]
        if now - head.came > self._wait_s:
            self._mend(group, member, head)
        return []

    def _rider(
        self, group: _Group, said: JoinedMember, carrier: Member, head: _Head, now: float
    ) -> Member | None:
        """The stream of a joined frame's member, if it is its turn."""
        member = group.streams.get(said.stream)
        own = None if member is None else self._head(group, member, now)
        if own is None or not isinstance(own.said, Rider):
            return None
        mine = own.said.carrier, own.said.sequence
        return member if mine == (carrier.id, head.row.sequence) else None

    def _mend(self, group: _Group, member: Member, head: _Head) -> None:
        """Give a joined frame up if upstream has some of its frames, and so takes it no more.

        That can be where a stream came to the collector on two ways.
        """
        own = member.id, head.row.sequence
        if isinstance(head.said, JoinedHeader):
            pairs = [(group.streams.get(one.stream), one.sequence) for one in head.said.members]
            known = [(one, number) for one, number in pairs if one is not None]
            lost = [(one.id, n) for one, n in known if not one.backlog.has_arrived(n)]
            torn = len(known) == len(pairs) and len(lost) < len(pairs)
        else:
            assert isinstance(head.said, Rider)
            carrier, number, lost = head.said.carrier, head.said.sequence, [own]
            torn = any(
                one.id == carrier and one.backlog.has_arrived(number)
                for one in group.streams.values()
            )
        if torn:
            member.spool.give_up(*own, lost)
            group.heads.clear()

    def _ready(self, group: _Group, members: list[Member], now: float) -> list[Unit]:
        """The frames of the earliest step that are to go now."""
        by_step = dict[Step, list[Member]]()
        for one in members:
            head = group.heads.get(one.id)
            if head is not None and head.step is not None:
                by_step.setdefault(head.step, []).append(one)
        for step in sorted(by_step):
            here = [one for one in by_step[step] if one.id in group.heads]
            if not here:
                continue
            late = now - min(group.heads[one.id].came for one in here) > self._wait_s
            found = [
                self._unit(group, one, group.heads[one.id], now)
                for one in here
                if one.id in group.heads
            ]
            units = [unit for unit in found if unit]
            is_whole = sum(map(len, units)) == len(here)
            awaited = {
                one.id
                for one in members
                if one.id not in group.heads and group.last.get(one.id, (step[0] - 1, False)) < step
                if one.goodbye is None and now - one.seen < SILENT_S
            }
            if late:
                group.vain |= awaited
            if units or not late:
                return units if awaited <= group.vain and (is_whole or late) else []
            # All that there is of this step belongs to joined frames whose streams are not all
            # there: the others go on.
        return []

    # Sending -------------------------------------------------------------------------------------

    def _together(self, group: _Group, units: list[Unit], put: Put) -> bool:
        if len(units) == 1:
            return self._send(group, units[0], put)
        joined = self._join(group, units)
        if joined is None:  # too much for one; or one of them is the reason
            half = len(units) // 2
            return all(self._together(group, some, put) for some in (units[:half], units[half:]))
        first, schema, *frame = joined
        carrier = group.streams[first]
        if not carrier.sender.put_schema(
            group.book.hash, schema, lambda parts: put(carrier, parts)
        ):
            return False
        if not put(carrier, frame):
            return False
        self._went(group, [member for unit in units for member in unit])
        return True

    def _join(self, group: _Group, units: list[Unit]) -> tuple[str, bytes, bytes, bytes] | None:
        """Carrier, schema, header and blob of the joined frame; None where they do not merge."""
        frames, said = list[Opened](), dict[int, JoinedMember]()
        count = sum(map(len, units))
        if count > MAX_JOINED:
            return None
        try:
            for unit in units:
                opened = _open(group, unit)
                if opened is None:  # the book was begun anew meanwhile
                    return None
                frames.append(opened)
                said |= _what_is_said(unit, opened)
            if len(said) < count:  # two streams of one rank
                return None
            header, blob = group.book.join(frames, said)
            if (header.rows + header.copies) * count > MAX_HOLDERS:
                return None
            part = encode(header)
            decode(part, "agent")  # whether it is within all bounds
        except (ProtocolError, RankscopeError):
            return None
        if len(blob) > MAX_BLOB_BYTES or len(part) > MAX_HEADER_BYTES:
            return None
        return header.members[0].stream, group.book.body, part, blob

    def _send(self, group: _Group, unit: Unit, put: Put) -> bool:
        """Send a frame as it came."""
        carrier = unit[0]
        row = group.heads[carrier.id].row
        if not carrier.sender.send(row, lambda parts: put(carrier, parts)):
            return False
        self._went(group, unit)
        return True

    def _went(self, group: _Group, members: list[Member]) -> None:
        self.joined += len(members) if len(members) > 1 else 0
        for member in members:
            head = group.heads.pop(member.id)
            member.sender.advance(head.row)
            group.vain.discard(member.id)
            group.last[member.id] = (head.said.step, head.said.final)


def _open(group: _Group, unit: Unit) -> Opened | None:
    """The frame of a unit; None if its schema is not known.

    Raises:
        ProtocolError: it is damaged.
    """
    head = group.heads[unit[0].id]
    schema, blob, said = group.book.schema(head.row.schema), head.row.parts[1], head.said
    if schema is None or isinstance(said, Rider):
        return None
    if isinstance(said, FrameHeader):
        return Opened(unit, head.row.schema, open_frame(said, blob, schema))
    return Opened(unit, head.row.schema, open_joined(said, blob, schema))


def _what_is_said(unit: Unit, opened: Opened) -> dict[int, JoinedMember]:
    """By rank what is not merged of a frame."""
    if isinstance(opened.frame, JoinedFrame):
        pairs = zip(unit, opened.frame.header.members, strict=True)
        return {member.hello.rank: said for member, said in pairs}
    header = opened.frame.header
    assert isinstance(header, FrameHeader)
    alone = JoinedMember(
        stream=unit[0].hello.stream,
        sequence=header.sequence,
        time_ns=header.time_ns,
        training=header.training,
        health=header.health,
    )
    return {unit[0].hello.rank: alone}
