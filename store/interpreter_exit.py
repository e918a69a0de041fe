"""Icechunk's threads are let out of Python before the interpreter is taken apart.

They wake whoever awaits a result by a call into Python. A thread that is in the middle of it when
the main thread ends is stopped by Python before 3.14 when it next asks for the GIL, by unwinding
its stack, which Rust answers with SIGABRT. On a busy machine scripts that only opened a run
ended so.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time

_PATIENCE_S = 1.0
"""A thread of another library may stay in Python for good."""


def let_native_threads_leave() -> None:
    """Before the interpreter ends, wait until no thread that Python did not start runs Python."""
    atexit.register(_wait)


def _wait() -> None:
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        time.sleep(0.001)  # whoever waits for the GIL takes it
        ours = {thread.ident for thread in threading.enumerate()}
        running = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        if running.keys() <= ours:
            return
