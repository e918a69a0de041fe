"""All streams on the one connection upwards: hellos, frames, goodbyes, and whose an answer is.

A connection begins with a ping, so that a relay knows that it has one before it has a stream, and
where it leads. Others follow, for that may change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..sketch.errors import ProtocolError
from ..wire.codec import decode, encode
from ..wire.messages import MAX_LEVELS, MAX_MEMBERS, Message, Ping, Pong, Reject
from ..wire.sender import Put
from ..wire.via import unwrap, wrap
from .gather import Gatherer
from .member import LOST, Member
from .settings import RelaySettings
from .spool import Spool

HELLO_S = 15.0
"""A hello that is not answered for so long is said again."""
PING_S = 5.0
"""So often it asks which relays are above."""
SETTLE_S = 1.0
"""While those do not know it themselves, nothing is sent for so long: of relays in a ring one has
found that out by then."""
SOON_S = 0.1
"""So often it asks meanwhile."""
AWAY_S = 30.0
"""Who has not answered for so long is away; before that it may be started again just now."""
START_S = 5.0
"""When the relay has begun it waits so long for a first answer."""
UNKNOWN = ""
"""In place of the relays above one that does not know them, for there may be none."""
SILENCE_S = 30.0
"""Frames of a stream that are under way for so long without a word are sent again."""


class Upstream:
    """What is sent upwards, and in which order.

    Args:
        name: of this relay, as no other has it.
        members: the streams, by name; another may change them.
        touched: gets those of which something is new.
    """

    def __init__(
        self,
        name: str,
        settings: RelaySettings,
        spool: Spool,
        members: Mapping[str, Member],
        touched: dict[int, Member],
        now: float,
    ) -> None:
        self.is_connected = False
        self.lost = ""
        """Why there is no connection; empty where there is, or nobody has tried."""
        self._spool = spool
        self._members = members
        self._touched = touched
        self._name = name
        self._above: list[str] | None = None
        """Names of the relays above; None before the present connection has told."""
        self._next_ping = self._settled_at = 0.0
        self._answered_at = now - AWAY_S + START_S
        self._numbers: dict[int, Member] = {}
        """By number on the present connection."""
        self._next_number = 0
        self._signs: list[tuple[Member, bytes]] = []
        """Signs of life that are to go up."""
        self._first = 0
        """Whose turn it is to send first."""
        self._gatherer = Gatherer(settings.gather_s, merges=settings.merge)
        self._gathers = settings.merge or spool.has_joined
        """Whether frames go through the gatherer: where none are joined it is spared."""

    @property
    def joined(self) -> int:
        """Frames that went up merged with others."""
        return self._gatherer.joined

    @property
    def needs_new_connection(self) -> bool:
        """Whether the present one has no numbers left."""
        return self._next_number >= MAX_MEMBERS

    def is_there(self, now: float) -> bool:
        """Whether somebody takes frames, or did a moment ago and may be back soon."""
        return now - self._answered_at < AWAY_S

    @property
    def relays(self) -> list[str]:
        """Names of this relay and of those above it, as far as it knows."""
        above = [UNKNOWN] if self._above is None else self._above
        return [self._name, *above][:MAX_LEVELS]

    def expect_joined(self) -> None:
        """There are joined frames from now on."""
        self._gathers = True

    def connect(self, now: float) -> None:
        """There is a new connection: every stream is to say hello on it."""
        self._forget_numbers()
        self.is_connected, self._above, self._next_ping = True, None, now
        for member in self._members.values():
            member.hello_at = now

    def disconnect(self, why: str) -> None:
        """The connection is gone."""
        self.is_connected, self._above, self.lost = False, None, why
        self._forget_numbers()

    def part(self, member: Member) -> None:
        """A stream's number is of no use any more."""
        self._numbers.pop(member.number, None)
        member.disconnect()

    def read(self, parts: Sequence[bytes], now: float) -> tuple[Member | None, Message, bytes]:
        """Whom a message is for, if for anybody, the message, and its bytes.

        Raises:
            ProtocolError: it breaks the protocol: the connection is no good.
        """
        number, rest = unwrap(parts)
        if len(rest) != 1:
            raise ProtocolError(f"A message came in {len(rest)} parts.")
        message = decode(rest[0], "collector")
        if number is None and not isinstance(message, Pong):
            reason = message.reason if isinstance(message, Reject) else "it answers to no stream"
            raise ProtocolError(f"Upstream does not take streams of relays: {reason}.")
        if isinstance(message, Pong):
            self._hear_of_relays(message.relays, now)
        member = None if number is None else self._numbers.get(number)
        return member, message, rest[0]

    def _hear_of_relays(self, above: list[str], now: float) -> None:
        if self._name in above:
            raise ProtocolError("What is sent up comes back to this relay: say another `--to`.")
        if self._above is None:
            self._settled_at = now + SETTLE_S
        self._above, self._answered_at = above, now
        if not self._is_settled(now):
            self._next_ping = now + SOON_S

    def _is_settled(self, now: float) -> bool:
        """Whether it is known whom what is sent comes to, as far as it can be."""
        above = self._above
        return above is not None and (UNKNOWN not in above or now >= self._settled_at)

    def show(self, member: Member, sign: bytes) -> None:
        """Pass on a sign of life: late it is none, so it goes now or never."""
        if member.sender.welcome is not None:
            self._signs.append((member, sign))

    def send(self, now: float, put: Put) -> bool:
        """Hellos, signs of life, frames and goodbyes; False if the network takes no more."""
        if now >= self._next_ping and put([encode(Ping())]):
            self._next_ping = now + PING_S
        if not self._is_settled(now):
            return True
        signs, self._signs = self._signs, []
        for member, part in signs:
            if member.number != LOST:
                put(wrap(member.number, [part]))
        members = list(self._members.values())
        if self._gathers and not self._gather(members, now, put):
            return False
        for place in range(len(members)):
            member = members[(self._first + place) % len(members)]
            if not self._attend(member, now, put):
                self._first = (self._first + place) % len(members)
                return False
        return True

    def _forget_numbers(self) -> None:
        self._next_number = 0
        self._numbers.clear()
        for member in self._members.values():
            member.disconnect()

    def _gather(self, members: list[Member], now: float, put: Put) -> bool:
        before = {one.id: one.backlog.sent for one in members if one.is_connected}
        ready = [one for one in members if one.id in before]
        takes = self._gatherer.flush(ready, now, lambda one, parts: put(wrap(one.number, parts)))
        self._touched.update((one.id, one) for one in ready if one.backlog.sent != before[one.id])
        return takes

    def _attend(self, member: Member, now: float, put: Put) -> bool:
        if member.left or member.refused:
            return True
        if self._is_silent(member, now):
            self.part(member)
            member.hello_at = now
        if member.number == LOST:
            return now < member.hello_at or self._say_hello(member, now, put)
        before = member.backlog.sent

        def put_up(parts: Sequence[bytes]) -> bool:
            return put(wrap(member.number, parts))

        idle = self._gathers or before >= member.received
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
        if self.needs_new_connection or not put(wrap(self._next_number, [member.hello_part])):
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
