"""Whether the ranks' own gradients of a step are what its reduced gradients were made of.

They are where each parameter's gradient is made of the step's own backwards, all of them, and of
nothing else, until one update takes it. Loops that throw gradients away, update several times, or
go on adding up over several steps are right, too; their sums just say nothing about the reduction.
"""

from __future__ import annotations


class Ledger:
    """What happened to gradients in the step that is open."""

    def __init__(self) -> None:
        self._added: set[str] = set()
        self._taken: set[str] = set()
        self._is_off = self._updated = False
        self._goes_on = False
        """Whether the step before ended without an update, so that its gradients may be left."""

    def add(self, name: str, *, to_others: bool) -> None:
        """A backward has made a gradient, which will be added to others, or be the first."""
        if name in self._added:
            self._is_off |= not to_others  # those before were thrown away, or never kept
        else:
            self._is_off |= to_others and self._goes_on
        self._is_off |= name in self._taken
        self._added.add(name)

    def take(self, name: str) -> None:
        """The reduced gradient is read."""
        self._taken.add(name)

    def is_alone(self, name: str) -> bool:
        """Whether a parameter's reduced gradient was read in this step, and no own one was."""
        return name in self._taken and name not in self._added

    def update(self) -> None:
        """An optimizer updates."""
        self._updated = True

    def end(self, *, optimizers: bool) -> bool:
        """The step ends; whether its gradients do not match.

        Args:
            optimizers: whether updates are told of.
        """
        self._goes_on = optimizers and not self._updated
        is_off = self._is_off or self._goes_on
        self._added.clear()
        self._taken.clear()
        self._is_off = self._updated = False
        return is_off
