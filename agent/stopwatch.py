"""How long the training thread spends in the agent."""

from __future__ import annotations

import time
from typing import Self


class Stopwatch:
    """Seconds inside its `with` blocks; of blocks inside each other the outermost counts.

    For the thread that trains: where backward runs on threads of its own, that one waits for them.
    """

    __slots__ = ("_begin", "_depth", "interrupted", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.interrupted = False
        """Whether Ctrl-C, or the like, has left a block: what was to be done in it was not."""
        self._depth, self._begin = 0, 0.0

    def reset(self) -> None:
        """Be outside of all blocks: one that was interrupted may not have been left."""
        self._depth = 0

    def __enter__(self) -> Self:
        if self._depth == 0:
            self._begin = time.perf_counter()
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.interrupted |= kind is not None and not issubclass(kind, Exception)
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._begin
