"""What a relay may be told, with the values that it takes otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..sketch.errors import SettingError
from ..wire.codec import MAX_BLOB_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """Sizes, times and limits of a relay. Every memory that a peer can fill has one."""

    spool: Path | None = None
    """Folder of the spool; None: frames are in memory, and agents wait for upstream's word."""
    spool_bytes: int = 2 << 30
    """How much of frames the spool holds; beyond it some give way."""
    min_free: int = 1 << 30
    """While the disk has less free than this, the spool does not grow."""
    memory_bytes: int = 512 << 20
    """Above this much in memory no credit is given back; above twice it, frames are refused."""
    credit_frames: int = 32
    """Frames that a stream may have under way to the relay."""
    credit_bytes: int = 16 << 20
    max_message_bytes: int = MAX_BLOB_BYTES
    """A peer that sends a larger message part is disconnected."""
    max_connections: int = 24_000
    """Above this nobody is let in until some have gone."""
    max_streams: int = 20_000
    max_schemas: int = 16
    """Schemas known of each stream; the oldest gives way and is asked for again."""
    lost_after_s: float = 30.0
    """Seconds of silence after which a stream without goodbye is no longer waited for."""
    first_hello_s: float = 60.0
    """With `until_done`: wait so long for the first hello, longer while somebody is connected."""
    merge: bool = False
    """Whether frames of one step are merged before they go up."""
    gather_s: float = 2.0
    """How long a step then waits for a stream that is there and has not come to it."""
    drain_s: float = 5.0
    """When it is stopped, it forwards what it holds for so long."""

    @property
    def resident_bytes(self) -> int:
        """When the process takes more, all connections are closed: what their peers had sent, and
        nobody has read, goes with them."""
        return max(2 << 30, 4 * self.memory_bytes)

    def __post_init__(self) -> None:
        for name in ("spool_bytes", "memory_bytes", "min_free"):
            least = 0 if name == "min_free" else 1
            if getattr(self, name) < least:
                raise SettingError(
                    f"`{name}`, in bytes, must be at least {least}, got {getattr(self, name)}."
                )
