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
    MAX_MEMBERS,
    PROTOCOL,
    RUN_NAME,
    Ack,
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
from ..wire.sender import Put
from ..wire.via import unwrap, wrap
from .gather import Gatherer
from .member import LOST, Member
from .settings import RelaySettings
from .shelf import Kept
from .spool import Spool
from .statistics import RelayStatistics

logger = logging.getLogger(__name__)

HELLO_S = 15.0
"""A hello that upstream does not answer for so long is said again."""
SILENCE_S = 30.0
"""Frames of a stream that are under way for so long without a word are sent again."""
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
        self._numbers: dict[int, Member] = {}
        """By number upstream, on the present connection."""
        self._next_number = 0
        self._connected = self._heard = False
        self._sent_before = 0
        """Frames of streams that are forgotten."""
        self._touched: dict[int, Member] = {}
        """Streams of which something is new: it is to be kept, and their peers may be told."""
        self._signs: list[tuple[Member, bytes]] = []
        """Signs of life that are to go up."""
        self._first = 0
        """Whose turn it is to send first."""
        self._gatherer = Gatherer(settings.gather_s) if settings.merge else None
        self._complaints = Complaints(logger)
        self._counts = RelayStatistics()
        self._next_prune = now + PRUNE_S
        for kept in spool.members():
            self._add(Member.make(spool, kept, decode(kept.hello, "agent")), now)
        if self._members:
            logger.info("%d frames are left in the spool and will be sent.", spool.frames)

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
            if len(parts) != 1 + isinstance(message, FrameHeader):
                raise ProtocolError(f"A message came in {len(parts)} parts.")
        except ProtocolError as error:
            self._counts.malformed += 1
            self._complaints.say("malformed", f"{_who(member)}: {error}", now)
            if member is None:
                self._reject(peer, "malformed", str(error))
            return
        if isinstance(message, Ping):
            pong = Pong(protocol=PROTOCOL, version=VERSION, time_ns=time.time_ns())
            self.outgoing.append((peer, encode(pong)))
        elif isinstance(message, Hello):
            self._hello(peer, message, parts[0], now, user)
        elif member is None:
            self._reject(peer, "stream", "This relay does not know you: say hello.", 0.2)
        else:
            member.seen = now
            self._dispatch(member, message, parts)

    def _dispatch(
        self,
        member: Member,
        message: Schema | FrameHeader | JoinedHeader | State | Goodbye,
        parts: Sequence[bytes],
    ) -> None:
        match message:
            case Schema():
                self._learn(member, message, parts[0])
            case FrameHeader():
                self._frame(member, message, (parts[0], parts[1]))
            case JoinedHeader():
                text = "This relay does not take joined frames: join at the last one."
                self._dismiss(member, "protocol", text, None)
            case State():
                # Late, a sign of life is none: it goes now or never.
                if member.sender.welcome is not None:
                    self._signs.append((member, parts[0]))
            case Goodbye():
                member.goodbye = message
                member.received = max(member.received, message.last)
                member.told = (-2, -2)
                self._touched[member.id] = member
            case _:
                assert_never(message)

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
            self._add(member, now)
        if member.refused:  # it asks again, and so do we
            member.refused, member.hello_at = "", now
        if member.peer is not None:
            self._peers.pop(member.peer, None)
        self._peers[peer] = member
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
        )
        member.awaits_welcome, member.told = False, (-2, -2)
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

    # From above ----------------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """There is a new connection upstream: every stream is to say hello on it."""
        self.disconnected()
        self._connected = True
        self._counts.connections += 1
        for member in self._members.values():
            member.hello_at = now

    def disconnected(self) -> None:
        """The connection upstream is gone."""
        self._connected, self._next_number = False, 0
        self._numbers.clear()
        for member in self._members.values():
            member.disconnect()

    def answer(self, parts: Sequence[bytes], now: float) -> None:
        """Take in one message from upstream.

        Raises:
            ProtocolError: it breaks the protocol: the connection is no good.
        """
        number, rest = unwrap(parts)
        if len(rest) != 1:
            raise ProtocolError(f"A message came in {len(rest)} parts.")
        message = decode(rest[0], "collector")
        if number is None:
            reason = message.reason if isinstance(message, Reject) else "it answers to no stream"
            raise ProtocolError(f"Upstream does not take streams of relays: {reason}.")
        member = self._numbers.get(number)
        if member is not None:
            member.heard = now
            self._take(member, message, rest[0], now)

    def _take(self, member: Member, message: Message, part: bytes, now: float) -> None:
        self._touched[member.id] = member
        match message:
            case Welcome():
                member.sender.take(message)
                member.received = max(member.received, message.committed)
                self._welcome(member)
            case Ack() | NeedSchema():
                member.sender.take(message)
            case Control():
                member.control = part
                if member.peer is not None and not member.awaits_welcome:
                    self.outgoing.append((member.peer, part))
            case Reject():
                self._refused(member, message, part, now)
            case _:
                pass

    def _refused(self, member: Member, reject: Reject, part: bytes, now: float) -> None:
        """Upstream refuses a stream: for now, which is our business, or for good."""
        self._numbers.pop(member.number, None)
        member.disconnect()
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
        if self._spool.commit(now, self._sent, self._used):  # what was in memory is on disk now
            self._touched = dict(self._by_id)
        self._acknowledge()
        takes = not self._connected or self._send_up(now, put)
        if now >= self._next_prune:
            self._next_prune = now + PRUNE_S
            self._forget(now)
        return takes

    def _acknowledge(self) -> None:
        generous = self._spool.memory_bytes <= self.settings.memory_bytes
        for member in self._touched.values():
            if member.peer is None or member.awaits_welcome:
                continue
            committed = member.committed
            received = max(member.received if generous else member.told[0], committed)
            silent = member.goodbye is not None and not member.is_answered
            if (received, committed) != member.told and not silent:
                member.told = received, committed
                self._say(member, Ack(received=received, committed=committed))
        self._touched = {}

    def _send_up(self, now: float, put: Put) -> bool:
        """Hellos, signs of life, frames and goodbyes; False if the network takes no more."""
        signs, self._signs = self._signs, []
        for member, part in signs:
            if member.number != LOST:
                put(wrap(member.number, [part]))
        members = list(self._members.values())
        if self._gatherer is not None and not self._gather(self._gatherer, members, now, put):
            return False
        for place in range(len(members)):
            member = members[(self._first + place) % len(members)]
            if not self._attend(member, now, put):
                self._first = (self._first + place) % len(members)
                return False
        return True

    def _gather(self, gatherer: Gatherer, members: list[Member], now: float, put: Put) -> bool:
        before = {one.id: one.backlog.sent for one in members if one.is_connected}
        ready = [one for one in members if one.id in before]
        takes = gatherer.flush(ready, now, lambda one, parts: put(wrap(one.number, parts)))
        moved = (one for one in ready if one.backlog.sent != before[one.id])
        self._touched |= {one.id: one for one in moved}
        return takes

    def _attend(self, member: Member, now: float, put: Put) -> bool:
        if member.left or member.refused:
            return True
        if self._is_silent(member, now):
            self._numbers.pop(member.number, None)
            member.disconnect()
            member.hello_at = now
        if member.number == LOST:
            return now < member.hello_at or self._say_hello(member, now, put)
        before = member.backlog.sent

        def put_up(parts: Sequence[bytes]) -> bool:
            return put(wrap(member.number, parts))

        idle = self._gatherer is not None or before >= member.received
        takes = idle or member.sender.flush(put_up)
        if member.backlog.sent != before:
            self._touched[member.id] = member
        goodbye = member.goodbye
        if takes and goodbye is not None and member.sender.take_leave(put_up, lambda: goodbye):
            member.left = True
            self._spool.forget(member.id)
            self._touched[member.id] = member
        return takes

    def _say_hello(self, member: Member, now: float, put: Put) -> bool:
        if self._next_number >= MAX_MEMBERS or not put(
            wrap(self._next_number, [member.hello_part])
        ):
            return False
        member.number, member.heard = self._next_number, now
        self._numbers[member.number] = member
        self._next_number += 1
        return True

    def _is_silent(self, member: Member, now: float) -> bool:
        if member.number == LOST:
            return False
        if member.sender.welcome is None:
            return now - member.heard > HELLO_S
        waits = member.backlog.is_under_way or member.goodbye is not None
        return waits and now - member.heard > SILENCE_S

    @property
    def has_said_hello(self) -> bool:
        """Whether upstream owes an answer on the present connection."""
        return self._next_number > 0

    def needs_new_connection(self) -> bool:
        """Whether the present one has no numbers left."""
        return self._next_number >= MAX_MEMBERS

    # Work left -----------------------------------------------------------------------------------

    def is_drained(self) -> bool:
        """Whether all that came is durable upstream, and every goodbye was passed on."""
        return not self._spool.frames and all(
            member.left or member.refused or member.goodbye is None
            for member in self._members.values()
        )

    def is_done(self, now: float) -> bool:
        """Whether every stream has left or is gone, and all is durable upstream."""
        if not self._heard:
            return now - self._started > self.settings.first_hello_s
        return all(
            member.left or member.refused or self._is_gone(member, now)
            for member in self._members.values()
        )

    def statistics(self) -> RelayStatistics:
        """What was done so far."""
        counts, spool = self._counts, self._spool
        counts.streams = len(self._members)
        counts.sent = self._sent_before + sum(
            member.sender.sent for member in self._members.values()
        )
        counts.joined = 0 if self._gatherer is None else self._gatherer.joined
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
        self._heard = True

    def _sent(self, id_: int) -> int:
        member = self._by_id.get(id_)
        return -1 if member is None else member.backlog.sent

    def _used(self) -> set[bytes]:
        return {name for member in self._members.values() for name in member.schemas}

    def _is_gone(self, member: Member, now: float) -> bool:
        """Whether a stream without goodbye is silent, and has nothing left."""
        silent = now - member.seen > self.settings.lost_after_s
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
                self._numbers.pop(member.number, None)
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
