"""Two jobs under one name: a start of a run that goes on beside a later one. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field

BESIDE_NS = 30_000_000_000
"""A start that takes steps for so long after a later one has begun is not at its end."""


@dataclass(slots=True)
class TwoJobs:
    """Finds the starts of a run that go on beside a later one."""

    _newest: int = -1
    _began_ns: int = 0
    _found: set[int] = field(default_factory=set[int])

    def begin(self, attempt: int, now_ns: int) -> None:
        """A start has come that was not known."""
        self._newest, self._began_ns = attempt, now_ns

    def find(self, attempt: int, time_ns: int) -> str:
        """What is to be told of a start that ended a step at this time; empty for nothing."""
        is_late = time_ns > self._began_ns + BESIDE_NS
        if attempt >= self._newest or attempt in self._found or not is_late:
            return ""
        self._found.add(attempt)
        return (
            f"Attempt {attempt} goes on beside attempt {self._newest}, as of two jobs under one "
            "name: of steps that both record the later attempt's count. Give each a `run=` of its "
            "own."
        )
