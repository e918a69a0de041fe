"""What an anchored tensor holds of a call's micro-batches, and what is taken of it.

A call has device iterations, in each of them gradient accumulation, and replicas; a micro-batch is
one of all these. PopTorch returns all that its output mode lets through in one tensor, in that
order, folded into its first dimension (poptorch's source/PoplarExecutable.cpp). The mode of a
single anchor is never applied, so what is asked of one is taken here, where the model's own mode
has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..modes import Mode

MODES = ("final", "every", "all", "sum")
"""By the value of `poptorch.OutputMode`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What one call returns of each tensor."""

    mode: Mode
    """The model's."""
    iterations: int
    accumulation: int
    replicas: int

    @classmethod
    def of(cls, options: Any) -> Returned:
        """From the options of an executor, in either spelling.

        Args:
            options: `poptorch.Options`; since SDK 2.4 it says `output_mode`, before `anchor_mode`.
        """
        word = "output" if options.exists("output_mode") else "anchor"
        period = getattr(options, f"{word}_return_period")
        return cls(
            mode=Mode(MODES[getattr(options, f"{word}_mode")], period),
            iterations=options.device_iterations,
            accumulation=options.Training.gradient_accumulation,
            replicas=options.replication_factor,
        )

    @property
    def groups(self) -> int:
        """How many micro-batches are returned, each of all replicas."""
        if self.mode.name == "all":
            return self.iterations * self.accumulation
        return self._every if self.mode.name == "every" else 1

    @property
    def repeats(self) -> int:
        """How many times a tensor's own elements are returned."""
        return self.groups * self.replicas

    def chosen(self, asked: Mode) -> list[int] | None:
        """Which of the groups make up what is asked for; None: these do not hold it.

        For `sum` they are to be added up.
        """
        every = list(range(self.groups))
        if self.iterations * self.accumulation == 1 or asked == self.mode:
            return every
        match asked.name, self.mode.name:
            case "final", "all" | "every":
                return every[-1:]
            case "sum", "all":
                return every
            case "every", "all" | "every":
                return self._periods(asked.period)
            case _:
                return None

    @property
    def _every(self) -> int:
        return self.iterations // self.mode.period * self.accumulation

    def _periods(self, asked: int) -> list[int] | None:
        """The groups of iterations asked - 1, 2 asked - 1, …"""
        step = self.mode.period if self.mode.name == "every" else 1
        if asked % step or self.iterations % asked:
            return None
        iterations = range(asked // step - 1, self.iterations // step, asked // step)
        return [at * self.accumulation + a for at in iterations for a in range(self.accumulation)]
