"""What a relay has done, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class RelayStatistics:
    """What a relay has done so far, and what it holds."""

    frames: int = 0
    """Frames that were taken in."""
    frame_bytes: int = 0
    duplicates: int = 0
    """Frames that had come before."""
    sent: int = 0
    """Frames that went upstream, each counted once."""
    joined: int = 0
    """Of those the ones that went merged with others."""
    malformed: int = 0
    """Messages that could not be read."""
    refused: int = 0
    """Messages that were answered with `Reject`."""
    faults: int = 0
    """Times that the relay met a fault of its own; the log has the traceback."""
    connections: int = 0
    """Times that a connection upstream was begun."""
    streams: int = 0
    held_frames: int = 0
    """Frames that are not durable upstream yet."""
    memory_bytes: int = 0
    """Of frames and schemas in memory."""
    spool_frames: int = 0
    """Frames on disk."""
    spool_bytes: int = 0
    oldest_s: float = 0.0
    """For how long the oldest of them has been here."""
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    """Frames that gave way, by cause."""
    dropped_bytes: int = 0
    damaged_files: int = 0
    """Spools that were set aside."""
    disk_failures: int = 0
    """Times that the spool could not be read or written."""
