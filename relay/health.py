"""How the relay is, as its loop puts it down for whoever asks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..wire.health import HANGS_S
from .statistics import RelayStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What the loop has put down."""

    at: float
    """When, on the monotonic clock."""
    address: str
    started: float
    """When the relay began, on the same clock."""
    is_connected: bool
    """Whether upstream has said something on the present connection."""
    lost: str
    """Why there is no connection upstream; empty where there is, or nobody has tried."""
    counts: RelayStatistics
    resident_bytes: int
    """What the process takes of the machine's memory."""

    def status(self, now: float) -> tuple[int, str]:
        """The code for HTTP, and a sentence. To start it again would not bring upstream back."""
        if now - self.at > HANGS_S:
            return 503, f"The relay has not looked up for {now - self.at:.0f} s."
        return 200, self.lost or "ok"

    def counters(self, now: float) -> dict[str, Any]:
        """What has been done so far, by name."""
        return {
            "status": self.status(now)[1],
            "address": self.address,
            "uptime_s": round(now - self.started, 3),
            "is_connected": self.is_connected,
            "resident_bytes": self.resident_bytes,
            **asdict(self.counts),
        }
