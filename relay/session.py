"""What a relay makes of each message, from below and from above. No sockets, no clock.

The one rule of this file: a stream keeps its name and its numbers on the way, so that whoever has
had a frame knows it again, whichever way it comes.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from importlib.metadata import version
from traceback import format_exc
from typing import Literal, assert_never

from ..sketch.errors import ProtocolError
from ..wire.codec import decode, encode
from ..wire.complaints import Complaints
from ..wire.messages import (
    MAX_NAME,
    PROTOCOL,
    RUN_NAME,
    Ack,
    Alerts,
    Control,
    FrameHeader,
    Goodbye,
    Hello,
    JoinedHeader,
    Message,
    NeedSchema,
    Ping,
    Pong,
    Reject,
    Schema,
    State,
    Welcome,
)
from ..wire.sender import REFUSED, Put
from ..wire.via import connection, is_shared
from .member import Member
from .settings import RelaySettings
from .shelf import Kept
from .spool import Spool
from .statistics import RelayStatistics
from .upstream import Upstream

logger = logging.getLogger(__name__)

BUSY_S = 5.0
"""Seconds after which an agent may ask again for a stream that is another's."""
FORGET_S = 300.0
"""A stream with nothing left to send is forgotten after so long a silence."""
PRUNE_S = 5.0
VERSION = version("rankscope")

Code = Literal["protocol", "run", "malformed", "oversized", "stream", "schema", "full"]
Refusal = tuple[Code, str, float | None]


class Relay:
    """Streams and their dialogue on both sides.

    Args:
        spool: keeps their frames; the streams in it go on.
        first_id: streams get numbers in the spool from this one on; new in each process.
        now: seconds, on the clock of all other calls.
    """

    def __init__(self, settings: RelaySettings, spool: Spool, first_id: int, now: float) -> None:
        self.settings = settings
        self.outgoing: list[tuple[bytes, bytes]] = []
        """Peer and message: what is to be sent downwards."""
        self._spool = spool
        self._next_id = first_id
        self._started = now
        self._members: dict[str, Member] = {}
        self._by_id: dict[int, Member] = {}
        self._peers: dict[bytes, Member] = {}
        self._heard = False
        """Whether anybody has come since the relay began."""
        self._sent_before = 0
        """Frames of streams that are forgotten."""
        self._touched: dict[int, Member] = {}
        """Streams of which something is new: it is to be kept, and their peers may be told."""
        name = f"{first_id:x}"  # no two relays begin in the same nanosecond
        self.upstream = Upstream(name, settings, spool, self._members, self._touched, now)
        self._complaints = Complaints(logger)
        self._counts = RelayStatistics()
        self._next_prune = now + PRUNE_S
        for kept in spool.members():
            self._add(Member.make(spool, kept, decode(kept.hello, "agent")), now)
        if spool.frames:
            logger.info("%d frames are left in the spool and will be sent.", spool.frames)
        elif settings.spool is not None and not settings.first_hello_s:
            logger.warning("The spool %s is empty: there is nothing to send.", settings.spool)

    # From below ----------------------------------------------------------------------------------

    def receive(self, peer: bytes, parts: Sequence[bytes], now: float, user: str = "") -> None:
        """Take in one message of an agent, or of a relay; answers are in `outgoing`.

        Args:
            user: public key of the peer; empty where there are no keys.
        """
        try:
            self._receive(peer, parts, now, user)
        except Exception:  # a fault of ours: one peer's message must not end what serves all
            self._fault(now)

    def _receive(self, peer: bytes, parts: Sequence[bytes], now: float, user: str) -> None:
        member = self._peers.get(peer)
        try:
            message = decode(parts[0] if parts else b"", "agent")
            if len(parts) != 1 + isinstance(message, FrameHeader | JoinedHeader):
                raise ProtocolError(f"A message came in {len(parts)} parts.")
        except ProtocolError as error:
            self._counts.malformed += 1
            self._complaints.say("malformed", f"{_who(member)}: {error}", now)
            if member is None:
                self._reject(peer, "malformed", str(error))
            else:
                self._unread(member, str(error), is_frame=len(parts) > 1)
            return
        if isinstance(message, Ping):
            self.outgoing.append((peer, encode(self._pong())))
        elif isinstance(message, Hello):
            self._hello(peer, message, parts[0], now, user)
        elif member is None and isinstance(message, JoinedHeader):
            self._joined(peer, None, message, (parts[0], parts[1]), now)
        elif member is None:
            self._reject(peer, "stream", "This relay does not know you: say hello.", 0.2)
        else:
            member.seen = now
            self._dispatch(peer, member, message, parts, now)

    def _pong(self) -> Pong:
        lost = self.upstream.lost[:1000]
        return Pong(
            protocol=PROTOCOL,
            version=VERSION,
            time_ns=time.time_ns(),
            party="relay",
            lost=lost,
            relays=self.upstream.relays,
        )

    def _dispatch(
        self,
        peer: bytes,
        member: Member,
        message: Schema | FrameHeader | JoinedHeader | State | Goodbye,
        parts: Sequence[bytes],
        now: float,
    ) -> None:
        match message:
            case Schema():
                self._learn(member, message, parts[0])
            case FrameHeader():
                self._frame(member, message, (parts[0], parts[1]))
            case JoinedHeader():
                self._joined(peer, member, message, (parts[0], parts[1]), now)
            case State():
                member.unread_after = None
                self.upstream.show(member, parts[0])
            case Goodbye() if member.needs_schema:  # frames before it were refused, and come again
                self._dismiss(member, "stream", "Frames before the goodbye were refused.", 0.2)
            case Goodbye():
                self._end(member, message)
            case _:
                assert_never(message)

    def _end(self, member: Member, goodbye: Goodbye) -> None:
        """Nothing more will come of it."""
        member.goodbye = goodbye
        member.received = max(member.received, goodbye.last)
        member.told = (-2, -2)
        self._touched[member.id] = member

    def _unread(self, member: Member, reason: str, *, is_frame: bool) -> None:
        """It sent what cannot be read: as in a collector, it comes again, or is given up."""
        again = member.unread_after == member.received
        member.unread_after = member.received
        if not again:
            self._dismiss(member, "malformed", reason, 0.2)
        elif not is_frame:
            self._end(
                member, Goodbye(last=member.received, reason=f"{REFUSED}: {reason}"[:MAX_NAME])
            )
            self._dismiss(member, "malformed", reason, None)

    def _hello(self, peer: bytes, hello: Hello, part: bytes, now: float, user: str) -> None:
        member = self._members.get(hello.stream)
        refusal = self._refusal(hello, member, user)
        if refusal:
            self._reject(peer, *refusal)
            self._complaints.say("hello", f"A hello was refused: {refusal[1]}", now)
            return
        if member is None:
            kept = Kept(member=self._next_id, hello=part, received=-1, sent=-1, goodbye=None)
            self._next_id += 1
            member = Member.make(self._spool, kept, hello)
            if not any(one.hello.run == hello.run for one in self._members.values()):
                logger.info("Run %r has come: rank %d is the first here.", hello.run, hello.rank)
            self._add(member, now)
        if hello.durable > max(member.committed, member.hello.durable):
            # Some of it lies in another relay's spool: who is above is to know.
            member.hello, member.hello_part, member.hello_at = hello, part, now
            self.upstream.part(member)
        if member.refused:  # it asks again, and so do we
            member.refused, member.hello_at = "", now
        if member.peer is not None:
            self._peers.pop(member.peer, None)
        self._peers[peer] = member
        self._heard = True
        member.peer, member.seen, member.user = peer, now, user
        member.needs_schema, member.awaits_welcome = False, True
        member.schemas.clear()
        self._touched[member.id] = member
        self._welcome(member)

    def _welcome(self, member: Member) -> None:
        if not (member.awaits_welcome and member.may_be_welcomed and member.peer):
            return
        upstream = member.sender.welcome
        welcome = Welcome(
            protocol=PROTOCOL,
            attempt=0 if upstream is None else upstream.attempt,
            committed=member.committed,
            received=member.received,
            credit_frames=self.settings.credit_frames,
            credit_bytes=self.settings.credit_bytes,
            joins=upstream is not None and upstream.joins,
        )
        member.awaits_welcome, member.told = False, (-2, -2)
        member.told_joins = welcome.joins
        self.outgoing.append((member.peer, encode(welcome)))
        if member.control is not None:
            self.outgoing.append((member.peer, member.control))

    def _learn(self, member: Member, schema: Schema, part: bytes) -> None:
        if self._is_overfull():
            self._dismiss(member, "full", "Memory is full.", 2.0)
            return
        self._spool.learn(schema.hash, part)
        member.schemas[schema.hash] = None
        member.needs_schema = False
        while len(member.schemas) > self.settings.max_schemas:
            member.schemas.popitem(last=False)

    def _frame(self, member: Member, header: FrameHeader, parts: tuple[bytes, bytes]) -> None:
        self._touched[member.id] = member
        if member.needs_schema:
            return
        if header.sequence <= member.received:
            self._counts.duplicates += 1
            member.told = (-2, -2)
        elif header.schema not in member.schemas:
            member.needs_schema = True
            self._say(member, NeedSchema(hash=header.schema))
        elif self._is_overfull():
            self._dismiss(member, "full", "Upstream is behind and memory is full.", 2.0)
        else:
            self._counts.frames += 1
            self._counts.frame_bytes += len(parts[0]) + len(parts[1])
            member.received = header.sequence
            self._spool.put(member.id, header, parts)

    def _joined(
        self,
        peer: bytes,
        first: Member | None,
        header: JoinedHeader,
        parts: tuple[bytes, bytes],
        now: float,
    ) -> None:
        """Take in what a relay below has joined of frames of `first` and other streams of its."""
        members = [] if first is None else self._members_of(first, header)
        if first is None or header.schema not in first.schemas or not members:
            # They say hello again, are told what arrived, and send the rest again.
            self._dismiss_members(peer, header, "stream", "Not all of these are known.", 0.2)
            return
        pairs = list(zip(members, header.members, strict=True))
        arrived = [said.sequence <= one.received for one, said in pairs]
        for one in members:
            one.seen = now
            self._touched[one.id] = one
        if all(arrived):
            self._counts.duplicates += len(members)
            for one in members:
                one.told = (-2, -2)
        elif any(arrived):
            self._dismiss_members(peer, header, "stream", "Some of these came before.", 0.2)
        elif self._is_overfull():
            self._dismiss_members(peer, header, "full", "Memory is full.", 2.0)
        else:
            self._counts.frames += len(members)
            self._counts.frame_bytes += len(parts[0]) + len(parts[1])
            for one, said in pairs:
                one.received = said.sequence
            self._spool.put_joined([one.id for one in members], header, parts)
            self.upstream.expect_joined()

    def _members_of(self, first: Member, header: JoinedHeader) -> list[Member]:
        """The streams that a joined frame is of, if each may send a frame now; else none."""
        found = [self._members.get(said.stream) for said in header.members]
        members = [one for one in found if one is not None and self._may_send(one, first)]
        ranks = {one.hello.rank for one in members}
        is_whole = len(ranks) == len(header.members) and members[0] is first
        return members if is_whole else []

    def _may_send(self, member: Member, first: Member) -> bool:
        return (
            member.peer is not None
            and first.peer is not None
            and connection(member.peer) == connection(first.peer)
            and _whose(member.hello)[:2] == _whose(first.hello)[:2]
            and not member.needs_schema
            and member.goodbye is None
        )

    def _dismiss_members(
        self, peer: bytes, header: JoinedHeader, code: Code, reason: str, retry_s: float
    ) -> None:
        """Refuse all streams that a joined frame is of, for what some sent is not taken."""
        is_known = peer in self._peers
        for said in header.members:
            member = self._members.get(said.stream)
            own = None if member is None else member.peer
            if member is not None and own is not None and connection(own) == connection(peer):
                self._dismiss(member, code, reason, retry_s)
        if not is_known:
            self._reject(peer, code, reason, retry_s)

    # From above ----------------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """There is a new connection upstream: every stream is to say hello on it."""
        self.upstream.connect(now)
        self._counts.connections += 1

    def answer(self, parts: Sequence[bytes], now: float) -> None:
        """Take in one message from upstream.

        Raises:
            ProtocolError: it breaks the protocol: the connection is no good.
        """
        member, message, part = self.upstream.read(parts, now)
        self.upstream.lost = ""
        if member is not None:
            member.heard = now
            self._take(member, message, part, now)

    def _take(self, member: Member, message: Message, part: bytes, now: float) -> None:
        self._touched[member.id] = member
        match message:
            case Welcome():
                member.sender.take(message)
                member.received = max(member.received, message.committed)
                self._welcome(member)
                self._tell_whether_it_joins(member, message)
            case Ack():
                member.sender.take(message)
                member.failing = message.failing
            case NeedSchema():
                member.sender.take(message)
            case Control():
                member.control = part
                if member.peer is not None and not member.awaits_welcome:
                    self.outgoing.append((member.peer, part))
            case Alerts():
                if member.peer is not None and not member.awaits_welcome:
                    self.outgoing.append((member.peer, part))
            case Reject():
                self._refused(member, message, part, now)
            case _:
                pass

    def _tell_whether_it_joins(self, member: Member, welcome: Welcome) -> None:
        """A relay below was welcomed before it was known: it is to say hello again."""
        peer = member.peer
        told = member.awaits_welcome or member.told_joins == welcome.joins
        if peer is not None and is_shared(peer) and not told:
            text = "It is known now whether frames of this stream may be joined."
            self._dismiss(member, "stream", text, 0.2)

    def _refused(self, member: Member, reject: Reject, part: bytes, now: float) -> None:
        """Upstream refuses a stream: for now, which is our business, or for good."""
        self.upstream.part(member)
        if reject.retry_s is not None:
            member.hello_at = now + max(reject.retry_s, 0.05) * random.uniform(1.0, 1.3)
            return
        member.refused = reject.reason
        text = f"{_who(member)} is refused upstream, and what is held of it stays: {reject.reason}"
        self._complaints.say("refused", text, now)
        if member.peer is not None:
            self.outgoing.append((member.peer, part))
            self._peers.pop(member.peer, None)
            member.peer = None

    # The clock -----------------------------------------------------------------------------------

    def tick(self, now: float, put: Put) -> bool:
        """Make durable what came, say so, and send upstream what may be sent.

        Returns:
            Whether the network upstream takes more.
        """
        try:
            return self._tick(now, put)
        except Exception:  # a fault of ours, again and again perhaps: it goes on with the rest
            self._fault(now)
            return True

    def _tick(self, now: float, put: Put) -> bool:
        for member in self._touched.values():
            if not member.left:
                self._spool.keep(member.kept())
        # What was in memory may be on disk now.
        if self._spool.commit(now, lambda id_: self._stays(id_, now), self._used):
            self._touched.update(self._by_id)
        self._acknowledge(now)
        takes = not self.upstream.is_connected or self.upstream.send(now, put)
        if now >= self._next_prune:
            self._next_prune = now + PRUNE_S
            self._forget(now)
        return takes

    def _acknowledge(self, now: float) -> None:
        generous = self._spool.memory_bytes <= self.settings.memory_bytes
        held = dict[int, Member]()
        for member in self._touched.values():
            if member.peer is None or member.awaits_welcome:
                continue
            if self._is_to_wait(member, now):
                held[member.id] = member
                continue
            committed = member.committed
            received = max(member.received if generous else member.told[0], committed)
            failing = "" if self._spool.is_durable else member.failing
            silent = member.goodbye is not None and not (member.is_answered or failing)
            told = *member.told, member.told_failing
            if (received, committed, failing) != told and not silent:
                member.told, member.told_failing = (received, committed), failing
                left = member.goodbye is not None and member.is_answered
                ack = Ack(received=received, committed=committed, failing=failing, left=left)
                self._say(member, ack)
        self._touched.clear()
        self._touched.update(held)

    # Work left -----------------------------------------------------------------------------------

    def is_drained(self) -> bool:
        """Whether all that came is durable upstream, and every goodbye was passed on."""
        return not self._spool.frames and all(
            member.left or member.refused or member.goodbye is None
            for member in self._members.values()
        )

    def is_done(self, now: float, *, connected: bool, nobody_comes: bool = False) -> bool:
        """Whether every stream has left or is gone, and all is durable upstream.

        Streams of an earlier process, which are in the spool, do not tell that nobody will come.

        Args:
            connected: somebody is, and may still say hello.
            nobody_comes: whoever is not connected is gone.
        """
        deserted = nobody_comes and not connected
        in_time = connected or now - self._started < self.settings.first_hello_s
        if not self._heard and in_time and not deserted:
            return False
        return all(
            member.left or member.refused or self._is_gone(member, now, deserted=deserted)
            for member in self._members.values()
        )

    def forget_gone(self) -> None:
        """It is done, and ends: streams that are gone leave nothing in the spool."""
        for member in self._members.values():
            if not (member.left or member.refused):
                self._spool.forget(member.id)

    def statistics(self) -> RelayStatistics:
        """What was done so far."""
        counts, spool = self._counts, self._spool
        counts.streams = len(self._members)
        counts.sent = self._sent_before + sum(
            member.sender.sent for member in self._members.values()
        )
        counts.joined = self.upstream.joined
        counts.memory_bytes = spool.memory_bytes
        counts.held_frames, counts.spool_frames = spool.frames, spool.disk_frames
        counts.spool_bytes, counts.oldest_s = spool.disk_bytes, spool.oldest_s()
        counts.dropped, counts.dropped_bytes = dict(spool.dropped), spool.dropped_bytes
        counts.damaged_files, counts.disk_failures = spool.damaged_files, spool.failures
        return counts

    # Inside --------------------------------------------------------------------------------------

    def _add(self, member: Member, now: float) -> None:
        member.seen = member.hello_at = now
        self._members[member.hello.stream] = self._by_id[member.id] = member

    def _stays(self, id_: int, now: float) -> int:
        """Up to which number nothing of a stream gives way.

        What upstream is about to take need not be lost because there is no room to keep it.
        """
        member = self._by_id.get(id_)
        if member is None:
            return -1
        sent = member.backlog.sent
        if not self._goes_up(member, now):
            return sent
        # What its agent may have under way, and as much again after a new welcome.
        return self._spool.ahead(id_, sent, 2 * self.settings.credit_frames)

    def _is_to_wait(self, member: Member, now: float) -> bool:
        """Whether its agent is to send no more than goes up: there is no room to keep any."""
        is_full = self._spool.is_full and member.goodbye is None
        return is_full and self._goes_up(member, now) and member.backlog.unsent > 0

    def _goes_up(self, member: Member, now: float) -> bool:
        """Whether upstream takes its frames, as far as is known."""
        return self.upstream.is_there(now) and not (member.refused or member.left)

    def _used(self) -> set[bytes]:
        return {name for member in self._members.values() for name in member.schemas}

    def _is_gone(self, member: Member, now: float, *, deserted: bool = False) -> bool:
        """Whether a stream without goodbye is silent, and has nothing left."""
        silent = deserted or now - member.seen > self.settings.lost_after_s
        return silent and member.goodbye is None and not len(member.backlog)

    def _is_overfull(self) -> bool:
        return self._spool.memory_bytes > 2 * self.settings.memory_bytes

    def _forget(self, now: float) -> None:
        """Let go of streams that have left, or are empty and were silent for long."""
        for member in list(self._members.values()):
            silent_s = now - member.seen
            over = member.left and silent_s > PRUNE_S
            if over or (silent_s > FORGET_S and self._is_gone(member, now)):
                self._sent_before += member.sender.sent
                del self._members[member.hello.stream], self._by_id[member.id]
                self.upstream.part(member)
                if member.peer is not None:
                    self._peers.pop(member.peer, None)
                if not member.left:
                    self._spool.forget(member.id)

    def _refusal(self, hello: Hello, member: Member | None, user: str) -> Refusal | None:
        if not hello.protocol_min <= PROTOCOL <= hello.protocol_max:
            theirs = f"{hello.protocol_min} to {hello.protocol_max}"
            text = f"This relay speaks protocol {PROTOCOL}, the agent {theirs}: update one."
            return "protocol", text, None
        if not RUN_NAME.fullmatch(hello.run):
            text = f"A run's name is letters, digits and ._+=@ -, not {hello.run[:100]!r}."
            return "run", text, None
        if member is None and len(self._members) >= self.settings.max_streams:
            return "full", f"This relay holds {self.settings.max_streams} streams already.", 30.0
        if member is not None and _whose(member.hello) != _whose(hello):
            text = f"Stream {hello.stream} belongs to rank {member.hello.rank} already."
            return "stream", text, None
        if member is not None and member.user not in (None, user):
            text = f"Stream {hello.stream} belongs to an agent with another key."
            return "stream", text, BUSY_S
        return None

    def _dismiss(self, member: Member, code: Code, reason: str, retry_s: float | None) -> None:
        """Refuse a stream on this connection; it may come back after `retry_s`."""
        if member.peer is not None:
            self._reject(member.peer, code, reason, retry_s)
            self._peers.pop(member.peer, None)
            member.peer = None

    def _reject(self, peer: bytes, code: Code, reason: str, retry_s: float | None = None) -> None:
        self._counts.refused += 1
        part = encode(Reject(code=code, reason=reason[:1000], retry_s=retry_s))
        self.outgoing.append((peer, part))

    def _say(self, member: Member, message: Message) -> None:
        if member.peer is not None:
            self.outgoing.append((member.peer, encode(message)))

    def _fault(self, now: float) -> None:
        self._counts.faults += 1
        self._complaints.say("fault", "Something could not be handled.", now, format_exc())


def _whose(hello: Hello) -> tuple[str, str, int]:
    return hello.run, hello.launch, hello.rank


def _who(member: Member | None) -> str:
    if member is None:
        return "An unknown peer"
    return f"Rank {member.hello.rank} of run {member.hello.run!r}"
