"""What a collector has done, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class CollectorStatistics:
    """What a collector has done so far."""

    frames: int = 0
    """Frames that were taken in."""
    frame_bytes: int = 0
    duplicates: int = 0
    """Frames that had come before."""
    malformed: int = 0
    """Messages that could not be read."""
    refused: int = 0
    """Messages that were answered with `Reject`."""
    records: int = 0
    """Records committed, patches among them."""
    alerts: int = 0
    """How many began."""
    failed_commits: int = 0
    faults: int = 0
    """Messages that met a fault of the collector's own; the log has the traceback."""
    streams: int = 0
    runs: int = 0
    held_bytes: int = 0
    open_records: int = 0
    """Records that still wait for ranks."""
    lost_frames: int = 0
    """Frames of which is stored that they are lost."""
    lag_s: float = 0.0
    """From the end of the newest step, by its rank's clock, to when it was stored: the longest of
    all open runs, or that of the run that was closed last."""
    commit_s: float = 0.0
    """How long the last commit took, likewise."""
