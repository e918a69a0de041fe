"""How the collector is, as its loop puts it down for whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..sinks.feed import FeedCounts
from ..wire.health import HANGS_S
from .statistics import CollectorStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What the loop has put down."""

    at: float
    """When, on the monotonic clock."""
    address: str
    started: float
    """When the collector began, on the same clock."""
    failing: str
    """Why the store takes nothing at the moment; empty where it does."""
    is_full: bool
    """Whether agents are held back for want of memory."""
    counts: CollectorStatistics
    resident_bytes: int = 0
    """What the process takes of the machine's memory."""
    sinks: Mapping[str, FeedCounts] = field(default_factory=dict[str, FeedCounts])
    """By sink how it keeps up."""

    def status(self, now: float) -> tuple[int, str]:
        """The code for HTTP, and a sentence."""
        if now - self.at > HANGS_S:
            return 503, f"The collector has not looked up for {now - self.at:.0f} s."
        if self.failing:
            return 503, self.failing
        if self.is_full:
            return 200, "Memory is full, and agents are held back."
        return 200, "ok"

    def counters(self, now: float) -> dict[str, Any]:
        """What has been done so far, by name."""
        return {
            "status": self.status(now)[1],
            "address": self.address,
            "uptime_s": round(now - self.started, 3),
            "is_full": self.is_full,
            "resident_bytes": self.resident_bytes,
            **asdict(self.counts),
            "sinks": {name: asdict(counts) for name, counts in self.sinks.items()},
        }


def pipeline_of(health: Health, now: float) -> dict[str, float]:
    """The same as numbers by name, for sinks."""
    counts = {name: float(value) for name, value in asdict(health.counts).items()}
    return {
        **counts,
        "resident_bytes": float(health.resident_bytes),
        "uptime_s": now - health.started,
    }
