"""How a process that serves is told to end, and how it does."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn


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


def leave() -> NoReturn:
    """End this process, whose work is done, without taking the interpreter apart.

    While that is done a signal that comes a moment too late kills, and threads of native libraries
    have aborted the process: both would look as if the service had failed.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(0)
