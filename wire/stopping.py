"""What tells a process that serves to end."""

from __future__ import annotations

import signal
from types import FrameType


class StopSignal:
    """Becomes true with SIGINT or SIGTERM."""

    def __init__(self) -> None:
        self._stopped = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def __call__(self) -> bool:
        return self._stopped

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
