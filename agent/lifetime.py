"""Observations that are open: what becomes of them in a forked child, and when the process ends."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

FIRST = 100
"""Among what multiprocessing has a child do at its end; its own is at 15 and less."""


class Leavable(Protocol):
    """An observation, which is a `with` block."""

    @property
    def ends_with_process(self) -> bool: ...
    def __exit__(self, kind: None, error: None, trace: None, /) -> None: ...
    def silence(self) -> None: ...
    def let_go_at_exit(self) -> None: ...
    def wait_at_exit(self) -> None: ...


B = TypeVar("B", bound=Leavable)


class OpenBlocks(Generic[B]):
    """The blocks of one framework, the innermost last.

    In a forked child all are silenced: the agent's thread and the socket are not there. When the
    interpreter ends, those that were not left are; threads may still train then. A forked child of
    multiprocessing ends without what is registered for that, and has a registry of its own.
    """

    def __init__(self) -> None:
        self._open: list[B] = []
        self._all: weakref.WeakSet[B] = weakref.WeakSet()
        self._child = 0
        """The process that is such a child, and was told what to do at its end."""
        os.register_at_fork(after_in_child=self._silence)
        atexit.register(self._leave)

    @property
    def innermost(self) -> B | None:
        """The block that was opened last, of those that are open."""
        return self._open[-1] if self._open else None

    def __iter__(self) -> Iterator[B]:
        return iter(self._open.copy())

    def opened(self, block: B) -> None:
        """A block was entered."""
        self._open.append(block)
        self._all.add(block)
        processes: Any = sys.modules.get("multiprocessing.process")  # it is there in a child
        if processes is not None and processes.parent_process() is not None:
            self._leave_at_end_of_child()

    def closed(self, block: B) -> None:
        """It is left."""
        if block in self._open:
            self._open.remove(block)

    def leave(self) -> None:
        """Leave all scopes that are open in this process, as `with` does at the end of its block.

        For a notebook that has lost them, as it runs a cell anew in which one was entered.
        """
        for block in self._open[::-1]:
            if not block.ends_with_process:
                block.__exit__(None, None, None)

    def _leave_at_end_of_child(self) -> None:
        from multiprocessing.util import Finalize

        if self._child != os.getpid():
            self._child = os.getpid()
            Finalize(None, self._leave, exitpriority=FIRST)

    def _silence(self) -> None:
        for block in list(self._all):
            block.silence()
        self._open.clear()

    def _leave(self) -> None:
        left = self._open[::-1]
        for block in left:
            block.let_go_at_exit()
        for block in left:  # where no collector is there all wait for it at the same time
            block.wait_at_exit()
