"""What a user is warned of when the block was left."""

from __future__ import annotations

import warnings

from ..outbox import OutboxStatistics
from ..selection import RankscopeWarning


def warn_of_losses(statistics: OutboxStatistics, never_made: int) -> None:
    """Warn of frames that are not stored.

    Args:
        statistics: of all streams.
        never_made: frames of steps that did not come so far.
    """
    lost = statistics.dropped_frames + statistics.pending_frames + never_made
    if lost:
        total = statistics.acknowledged + lost
        late = "they were not made, or the collector was not reached, in time"
        why = statistics.rejected.rstrip(".") or late
        warnings.warn(
            f"{lost} of {total} frames of rank telemetry were not stored: {why}.",
            RankscopeWarning,
            stacklevel=4,
        )


def warn_of_silence(untold_steps: int) -> None:
    """Warn that all these steps were due, and brought nothing."""
    if untold_steps:
        warnings.warn(
            f"{untold_steps} steps were due, and none brought telemetry: return from the jitted "
            "step what scope.sketch(…) makes in it, and hand it to scope.step(telemetry).",
            RankscopeWarning,
            stacklevel=3,
        )
