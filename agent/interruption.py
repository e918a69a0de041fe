"""Errors that a user's signal handler raises while the training thread is in the agent.

Python runs handlers in between any two instructions of the main thread. What they raise is meant
for the training loop, as `KeyboardInterrupt` is: the agent must not take it for a fault of its own.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

Result = TypeVar("Result")

if TYPE_CHECKING or sys.version_info < (3, 14):
    Lock = threading.RLock
else:

    class Lock(type(threading.RLock())):
        """A lock that a thread gives back which was interrupted as it took or left it.

        From Python 3.14 on a handler's error may come between the taking of a lock and the block
        of its `with`, which then never gives it back. No block of ours is in one of the same lock:
        what a thread owns when it comes to one was left behind. Until then the others wait.
        """

        def __enter__(self) -> bool:
            while self._is_owned():
                self.release()
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            while self._is_owned():
                self.release()


def undisturbed(job: Callable[[], Result]) -> Result:
    """What `job` returns or raises, on a thread of its own, where no signal's handler raises.

    What a handler raises comes to whoever waits for it here; the job goes on to its end then.
    """
    outcome = Future[Result]()

    def run() -> None:
        try:
            outcome.set_result(job())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="rankscope", daemon=True).start()
    return outcome.result()


def error_of_a_signal(error: BaseException | None) -> BaseException | None:
    """The error, or one in whose handling it was raised, that a signal's handler has raised."""
    while error is not None and not _is_of_a_handler(error):
        error = error.__context__
    return error


def _is_of_a_handler(error: BaseException) -> bool:
    """Whether it came through a handler: that is given the frame that it interrupts."""
    trace, interrupted = error.__traceback__, None
    while trace is not None:
        if interrupted is not None and _is_given(trace.tb_frame, interrupted):
            return True
        trace, interrupted = trace.tb_next, trace.tb_frame
    return False


def _is_given(callee: FrameType, frame: FrameType) -> bool:
    """Whether a call was `callee(number, frame)`, by whichever names."""
    names, rest, _, values = inspect.getargvalues(callee)
    given = [values.get(name) for name in names]
    given += values.get(rest, ()) if rest is not None else ()
    return any(isinstance(one, int) and other is frame for one, other in pairwise(given))
