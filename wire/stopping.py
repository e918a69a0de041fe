"""What tells a process that serves to end."""

from __future__ import annotations

import atexit
import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Becomes true with SIGINT or SIGTERM.

    A process that has ended by itself does not fail of a signal that comes a moment too late:
    once the interpreter ends, which would restore what the signals do by default, they are ignored.
    """

    def __init__(self) -> None:
        self._stopped = False
        for number in SIGNALS:
            signal.signal(number, self._stop)
        atexit.register(_ignore)

    def __call__(self) -> bool:
        return self._stopped

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
