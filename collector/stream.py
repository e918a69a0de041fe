"""One agent's stream of frames, as the collector knows it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..merge.placement import Layout
from ..wire.messages import Control, Gap, MeshAxis, Schema
from .cursor import Cursor
from .settings import CollectorSettings


class Known(NamedTuple):
    """A schema of a stream."""

    schema: Schema
    layout: Layout
    size_bytes: int
    """What it counts for of the run's `schema_bytes`."""


@dataclass(slots=True, kw_only=True, eq=False)
class Stream:
    """One agent's stream of frames."""

    name: str
    run: str
    """Name of the run that it is of."""
    settings: CollectorSettings
    attempt: int
    rank: int
    mesh: Sequence[MeshAxis]
    groups: Sequence[str]
    peer: bytes
    """Routing id of its present connection."""
    cursor: Cursor
    schemas: OrderedDict[bytes, Known] = field(default_factory=OrderedDict[bytes, Known])
    layouts: OrderedDict[tuple[bytes, tuple[str, ...]], Layout] = field(
        default_factory=OrderedDict[tuple[bytes, tuple[str, ...]], Layout]
    )
    """Of joined frames, of which it is the first: by schema and streams."""
    needs_schema: bool = False
    """A frame was refused for want of its schema: until one comes, all are, to keep the order."""
    unread_after: int | None = None
    """What had arrived of it when something came last that could not be read."""
    excuse: str = ""
    """Why numbers are jumped over, if they are now, where that is known."""
    told_received: int = -2
    told_committed: int = -2
    told_failing: str = ""
    told_control: Control | None = None
    ended: bool = False
    is_leaving: bool = False
    """It has said goodbye, and that is not durable."""
    is_leave_gathered: bool = False
    """What its goodbye says is to be stored with the next commit that begins, or was before."""
    is_held_off: bool = False
    """The collector is about to end and takes nothing more of it."""
    farewell: Sequence[Gap] = ()
    """What its goodbye told as lost, until that is on its way into the store."""
    user: str = ""
    """Public key of who said hello last; empty where there are no keys."""
    on_credit: int = 0
    """Frames that came on this connection since it was last told that they have."""
    on_credit_bytes: int = 0

    def is_crowded(self) -> bool:
        """Whether more of its frames wait to be durable than any agent keeps."""
        return len(self.cursor.waiting) >= self.settings.max_waiting

    def exceeds_credit(self, size_bytes: int) -> bool:
        """Count a frame; whether it is far more than the credit of the connection allows."""
        settings = self.settings
        over = self.on_credit_bytes > 2 * settings.credit_bytes
        self.on_credit += 1
        self.on_credit_bytes += size_bytes
        return over or self.on_credit > 2 * settings.credit_frames

    def give_credit(self, received: int) -> None:
        """The agent is told that all up to `received` came."""
        if received >= self.cursor.received:
            self.on_credit = self.on_credit_bytes = 0
            return
        left = [size for number, size in self.cursor.waiting.items() if number > received]
        self.on_credit, self.on_credit_bytes = len(left), sum(left)
