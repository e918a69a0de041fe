"""How a process that serves is told to end, and how it does."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn


class StopSignal:
    """Becomes true with SIGINT, and with SIGTERM, or SIGHUP of a terminal that is closed, unless
    whoever started us had that ignored.

    SIGUSR1 and SIGUSR2 are for the job that is served, and do nothing here; what is started from
    here does not inherit that, as it would if they were ignored.
    """

    def __init__(self) -> None:
        self._stopped = False
        self.interrupted = False
        """Whether it was SIGINT."""
        signal.signal(signal.SIGINT, self._stop)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._stop)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, _let_pass)

    def __call__(self) -> bool:
        return self._stopped

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        self.interrupted |= number == signal.SIGINT


def _let_pass(number: int, frame: FrameType | None) -> None:
    pass


def input_has_ended() -> bool:
    """Whether nobody holds the other end of our input any more; nothing comes through it."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


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
