"""A script that reads a run ends as any other does."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import _thread, time
import rankscope.store

begun = _thread.allocate_lock()
begun.acquire()


def call() -> None:
    begun.release()
    time.sleep(0.3)
    print("left", flush=True)


# As a native thread that calls into Python: it is not joined when the interpreter ends.
_thread.start_new_thread(call, ())
begun.acquire()
"""


def test_a_native_thread_leaves_python_before_the_interpreter_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "left\n"
