"""One stream on its way through a relay: its agent, or a relay below, and its place upstream."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from ..wire.codec import decode, encode
from ..wire.messages import Goodbye, Hello
from ..wire.sender import Sender
from .backlog import Backlog
from .shelf import Kept
from .spool import Spool

LOST = -1
"""In place of a number: there is no connection upstream."""


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One stream."""

    id: int
    """In the spool."""
    hello: Hello
    hello_part: bytes
    """As it came, and goes on."""
    spool: Spool
    backlog: Backlog
    sender: Sender
    received: int = -1
    """Highest sequence number that was taken in, or that will never come."""
    goodbye: Goodbye | None = None
    left: bool = False
    """Goodbye was answered by upstream: nothing is left to do."""

    peer: bytes | None = None
    """Who it is said to, below; None if nobody has come since the relay began."""
    user: str | None = None
    """Public key of the peer that said hello, empty where there are no keys; None like `peer`."""
    awaits_welcome: bool = False
    seen: float = 0.0
    """When its peer last said something."""
    schemas: OrderedDict[bytes, None] = field(default_factory=OrderedDict[bytes, None])
    """Hashes of those that it may use, the newest last."""
    needs_schema: bool = False
    """A frame was refused for want of its schema: until one comes, all are, to keep the order."""
    unread_after: int | None = None
    """What had been taken in when something came last that could not be read."""
    told: tuple[int, int] = (-2, -2)
    """What its peer was told last as received and committed."""
    failing: str = ""
    """Why upstream cannot store what arrived there, at present."""
    told_failing: str = ""
    """What of that its peer was told last."""
    told_joins: bool = False
    """What its welcome said of joining."""
    control: bytes | None = None
    """What upstream said last of how to go on."""

    number: int = LOST
    """Upstream, on the present connection."""
    heard: float = 0.0
    """When upstream last said something to it, or was last said hello."""
    hello_at: float = 0.0
    """When it may say hello upstream."""
    refused: str = ""
    """Why upstream refuses it for good."""

    @classmethod
    def make(cls, spool: Spool, kept: Kept, hello: Hello) -> Member:
        """A stream as it is kept in the spool."""
        backlog = Backlog(spool, kept.member, sent=kept.sent)
        return cls(
            id=kept.member,
            hello=hello,
            hello_part=kept.hello,
            spool=spool,
            backlog=backlog,
            sender=Sender(backlog, spool.schema),
            received=kept.received,
            goodbye=None if kept.goodbye is None else decode(kept.goodbye, "agent"),
        )

    def kept(self) -> Kept:
        """What the spool is to keep beside the frames."""
        return Kept(
            member=self.id,
            hello=self.hello_part,
            received=self.received,
            sent=self.backlog.sent,
            goodbye=None if self.goodbye is None else encode(self.goodbye),
        )

    @property
    def committed(self) -> int:
        """Highest sequence number that its peer need not keep."""
        upstream = self.sender.committed
        if not self.spool.is_durable:
            return upstream
        aside = self.spool.first_in_memory(self.id)
        return max(upstream, self.received if aside is None else aside - 1)

    @property
    def may_be_welcomed(self) -> bool:
        """Whether it is known what of it is durable."""
        return self.spool.is_durable or self.sender.welcome is not None

    @property
    def is_answered(self) -> bool:
        """Whether a goodbye that was said can be answered."""
        return self.left or self.spool.is_written(self.id)

    @property
    def is_connected(self) -> bool:
        """Whether upstream has welcomed it, and it is not refused."""
        return self.sender.welcome is not None and not self.refused and not self.left

    def disconnect(self) -> None:
        """There is no connection upstream."""
        self.number = LOST
        self.sender.disconnect()
