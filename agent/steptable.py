"""The step table: the sketches of one step while they are made, in buffers that are used again."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..sketch.matrices import Weighted
from ..sketch.table import Ints, SketchTable

LEAST, MOST = 4, 32
RING_BYTES = 16 << 20
ROW_BYTES = sum(column.nbytes for column in SketchTable.empty(1).columns())

Absorb = Callable[[SketchTable, NDArray[np.int64], SketchTable, NDArray[np.bool_]], None]


@dataclass(slots=True, eq=False, weakref_slot=True)
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
    unmatched: bool = False
    """Whether the rank's own gradients are not what its reduced ones were made of."""
    counts: dict[int, Ints] = field(default_factory=dict[int, Ints])
    """By index into the schema's exact counts: what was counted."""
    series: dict[int, Weighted] = field(default_factory=dict[int, Weighted])
    """By index into the schema's series: what quantities are read off."""

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

    def put(self, rows: NDArray[np.intp], table: SketchTable) -> None:
        """Merge some rows of a table, in ascending order, into the same rows of this one."""
        first, end = int(rows[0]), int(rows[-1]) + 1
        where = slice(first, end) if end - first == len(rows) else rows
        self.reserve(end)
        if self.present[where].any():
            self.table.merge_at(rows, table.take(where))
        else:  # with nothing: the same, and several times as fast
            for mine, theirs in zip(self.table.columns(), table.columns(), strict=True):
                mine[where] = theirs[where]
        self.present[where] = True

    def count(self, index: int, counts: Ints) -> None:
        """Add to what was counted under an exact count."""
        known = self.counts.get(index)
        self.counts[index] = counts.copy() if known is None else known + counts


class StepRing:
    """Step tables that take turns; when none is free a step is not recorded.

    There are up to `MOST` of them while they fit into `RING_BYTES` together, and always `LEAST`:
    one is open, the others may be on their way out.
    """

    def __init__(self) -> None:
        self._all = list[weakref.ref[StepTable]]()
        """Some of them may be gone: those that never came back, because the training thread was
        interrupted. Nothing is called when one goes: what a signal's handler raises there would be
        lost."""
        self._counted_bytes = 0
        """What the counts and series of a step took at most."""
        self._free: deque[StepTable] = deque()

    def take(self, step: int) -> StepTable | None:
        """An empty table for `step`, or None where all are still on their way out."""
        if not self._free and self._may_grow():
            table = StepTable(0, SketchTable.empty(0), np.zeros(0, np.bool_))
            self._all.append(weakref.ref(table))
            self._free.append(table)
        if not self._free:
            return None
        table = self._free.popleft()
        table.step = step
        return table

    def give_back(self, table: StepTable) -> None:
        """Empty a table for its next use."""
        table.table.clear()
        table.present.fill(False)
        counted = sum(counts.nbytes for counts in table.counts.values())
        counted += sum(one.array.nbytes for one in table.series.values())
        self._counted_bytes = max(self._counted_bytes, counted)
        table.training, table.counts, table.series = {}, {}, {}
        table.time_ns = 0
        table.partial = table.final = table.unmatched = False
        self._free.append(table)

    def _may_grow(self) -> bool:
        there = [table for one in self._all if (table := one()) is not None]
        self._all = [weakref.ref(table) for table in there]
        each = max((len(table.table) for table in there), default=0) * ROW_BYTES
        fits = (len(there) + 1) * (each + self._counted_bytes) <= RING_BYTES
        return len(there) < (MOST if fits else LEAST)
