"""The agent's own thread: it runs kernels, makes frames, owns the outbox and watches for a hang."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

IDLE_S = 0.05
"""How long the thread sleeps when there is nothing to do, in seconds."""

Job = Callable[[], object]


class Line(Protocol):
    """What leads out of the process: an outbox, or several."""

    def poll(self, now: float) -> None: ...
    def close(self, *, timeout_s: float) -> bool: ...


class Worker:
    """Runs jobs in order on a daemon thread, and in between lets the outbox breathe.

    Args:
        outbox: one or several; used by this thread only.
        idle: called with the time whenever no job is waiting.
        failed: told of an exception in a job; must not raise.
    """

    def __init__(
        self, outbox: Line, idle: Callable[[float], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._outbox = outbox
        self._idle = idle
        self._failed = failed
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rankscope", daemon=True)
        self._breathed = self._deadline = 0.0

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Let `job` run after all earlier ones. Never blocks."""
        self._jobs.put(job)

    def dismiss(self, *, timeout_s: float) -> None:
        """Let it finish all jobs, say goodbye and end, within about `timeout_s` seconds."""
        self._deadline = time.monotonic() + timeout_s
        self._jobs.put(None)

    def join(self) -> None:
        """Wait until it has ended, after `dismiss`."""
        if self._thread.ident is not None:  # else it was interrupted as it started
            self._thread.join(max(self._deadline - time.monotonic(), 0.0) + 1.0)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self._guarded(job)
            if time.monotonic() - self._breathed > IDLE_S:
                self._guarded(self._breathe)
        left = max(self._deadline - time.monotonic(), 0.0)
        self._guarded(lambda: self._leave(left))

    def _next(self) -> Job | None:
        while True:
            try:
                return (
                    self._jobs.get_nowait()
                    if self._jobs.qsize()
                    else self._jobs.get(timeout=IDLE_S)
                )
            except queue.Empty:
                self._guarded(self._breathe)

    def _breathe(self) -> None:
        self._breathed = now = time.monotonic()
        self._idle(now)
        self._outbox.poll(now)

    def _leave(self, timeout_s: float) -> None:
        self._outbox.close(timeout_s=timeout_s)

    def _guarded(self, job: Job) -> None:
        try:
            job()
        except Exception as error:  # the law: the agent never raises; it counts and tells
            self._failed(error)
