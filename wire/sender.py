"""The sending side of one stream: what to say next, and what the answers mean. No socket, no clock.

The one rule: a frame is let go of only when the other side has said that it is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .codec import encode
from .messages import Ack, Goodbye, NeedSchema, Welcome

REFUSED = "twice it sent what cannot be read"
"""Why a stream is ended whose words are none."""

Put = Callable[[Sequence[bytes]], bool]
"""Hands one message to the network without waiting; False if it cannot be taken now."""


class Sendable(Protocol):
    """One frame, encoded."""

    @property
    def sequence(self) -> int: ...
    @property
    def schema(self) -> bytes:
        """Hash of the schema that it needs."""
        ...

    @property
    def parts(self) -> tuple[bytes, bytes]:
        """Header and blob."""
        ...

    @property
    def size_bytes(self) -> int: ...


class Pending(Protocol):
    """The frames of a stream that are not durable yet, by ascending sequence number."""

    def __len__(self) -> int: ...
    @property
    def unsent(self) -> int:
        """How many wait for this connection."""
        ...

    @property
    def is_under_way(self) -> bool:
        """Whether something was sent that the other side has not confirmed to have."""
        ...

    def next(self, credit_frames: int, credit_bytes: int) -> Sendable | None:
        """The frame to send now, if the credit allows it; `advance` says that it was sent."""
        ...

    def advance(self) -> None:
        """The frame that `next` gave was sent."""
        ...

    def acknowledge(self, received: int, committed: int) -> int:
        """Let go of what is durable, and note what arrived; how many were let go of."""
        ...

    def restart(self, received: int, committed: int) -> int:
        """On a new connection go on after what the other side has; how many are durable after all.

        Args:
            received: the highest sequence number that it has, durable or not.
            committed: the highest that is durable.
        """
        ...

    def rewind(self, schema: bytes) -> None:
        """The frames of this schema, and what was sent after them, were refused."""
        ...


class Sender:
    """One stream, from its hello to its goodbye.

    Args:
        pending: its frames.
        schema: the encoded schema of a hash, None if it is not there.
    """

    def __init__(self, pending: Pending, schema: Callable[[bytes], bytes | None]) -> None:
        self.welcome: Welcome | None = None
        """Of the present connection; None before it comes."""
        self.committed = -1
        """Highest sequence number that the other side has called durable."""
        self.sent = self.sent_bytes = self.resent = self.acknowledged = 0
        self._pending = pending
        self._schema = schema
        self._known: set[bytes] = set()
        self._highest = -1
        self._told: Welcome | None = None
        """The welcome of the connection on which goodbye was said."""
        self._answered = False
        self._last = -1
        """What goodbye said there."""

    def disconnect(self) -> None:
        """The connection is gone: nothing is sent until the next welcome."""
        self.welcome = None

    def take(self, message: Welcome | Ack | NeedSchema) -> None:
        """Take in an answer."""
        match message:
            case Welcome():
                self.welcome, self._known = message, set()
                self.committed = max(self.committed, message.committed)
                received = max(message.received, message.committed)
                self.acknowledged += self._pending.restart(received, message.committed)
            case Ack():
                self.committed = max(self.committed, message.committed)
                count = self._pending.acknowledge(message.received, message.committed)
                self.acknowledged += count
                # Not by one that was on its way when goodbye was said, which may not have come.
                self._answered |= message.left is not False
            case NeedSchema():
                self._known.discard(message.hash)
                self._pending.rewind(message.hash)

    def flush(self, put: Put) -> bool:
        """Send what the credit allows; False if the network takes no more."""
        while (frame := self.next()) is not None:
            if not self.send(frame, put):
                return False
            self.advance(frame)
        return True

    def next(self) -> Sendable | None:
        """The frame to send now, if the credit allows it."""
        welcome = self.welcome
        if welcome is None:
            return None
        return self._pending.next(welcome.credit_frames, welcome.credit_bytes)

    def advance(self, frame: Sendable) -> None:
        """The frame that `next` gave has gone."""
        self._pending.advance()
        if frame.sequence > self._highest:
            self._highest = frame.sequence
            self.sent += 1
            self.sent_bytes += frame.size_bytes
        else:
            self.resent += 1

    def take_leave(self, put: Put, goodbye: Callable[[], Goodbye]) -> bool:
        """Say goodbye once all is sent; whether it was answered, and all is durable.

        Args:
            goodbye: gives what is to be said, once on each connection.
        """
        if self._has_left():  # who has answered may have ended at once, and the connection with it
            return True
        if self.welcome is not None and self._told is not self.welcome and not self._pending.unsent:
            said = goodbye()
            if put([encode(said)]):
                self._told, self._answered, self._last = self.welcome, False, said.last
        return False

    def _has_left(self) -> bool:
        is_answered = self._told is not None and self._answered
        return is_answered and not len(self._pending) and self.committed >= self._last

    def send(self, frame: Sendable, put: Put) -> bool:
        """Send a frame, and its schema before if need be; False if the network takes no more."""
        if frame.schema not in self._known:
            schema = self._schema(frame.schema)
            if schema is None or not self.put_schema(frame.schema, schema, put):
                return False
        return put(frame.parts)

    def put_schema(self, hash_: bytes, schema: bytes, put: Put) -> bool:
        """Send an encoded schema unless the other side has it; False if the network is full."""
        if hash_ not in self._known:
            if not put([schema]):
                return False
            self._known.add(hash_)
        return True
