"""The step table: the sketches of one step while they are made, in buffers that are used again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..sketch.table import SketchTable

Absorb = Callable[[SketchTable, NDArray[np.int64], SketchTable, NDArray[np.bool_]], None]


@dataclass(slots=True)
class StepTable:
    """One row a site; which rows hold something; and what the training loop said about the step."""

    step: int
    table: SketchTable
    present: NDArray[np.bool_]
    """bool [rows]: which sites were measured in this step."""
    training: dict[str, float] = field(default_factory=dict[str, float])
    time_ns: int = 0
    partial: bool = False
    final: bool = False

    def reserve(self, rows: int) -> None:
        """Make room for `rows` sites; what is there stays."""
        have = len(self.table)
        if rows > have:
            more = max(rows, 2 * have, 64) - have
            self.table = SketchTable.concatenate([self.table, SketchTable.empty(more)])
            self.present = np.concatenate([self.present, np.zeros(more, np.bool_)])

    def absorb(
        self,
        rows: NDArray[np.int64],
        leaf: SketchTable,
        keep: NDArray[np.bool_],
        into: Absorb,
    ) -> None:
        """Merge the kept rows of `leaf` into theirs."""
        if len(rows):
            self.reserve(int(rows.max()) + 1)
            into(self.table, rows, leaf, keep)
            self.present[rows[keep]] = True


class StepRing:
    """A fixed number of step tables that take turns; when none is free a step is not recorded."""

    def __init__(self, length: int) -> None:
        self._free = deque(
            StepTable(0, SketchTable.empty(0), np.zeros(0, np.bool_)) for _ in range(length)
        )

    def take(self, step: int) -> StepTable | None:
        """An empty table for `step`, or None where all are still on their way out."""
        if not self._free:
            return None
        table = self._free.popleft()
        table.step = step
        return table

    def give_back(self, table: StepTable) -> None:
        """Empty a table for its next use."""
        table.table.clear()
        table.present.fill(False)
        table.training = {}
        table.partial = table.final = False
        self._free.append(table)
