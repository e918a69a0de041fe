"""Heatmaps made smaller without losing the worst: pure NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Pool = Literal["max", "min"]
"""Which of the numbers that fall into one cell is kept."""
FEW = 32
"""Fewer columns than this, as one step more has, are sooner pooled number by number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heatmap:
    """One statistic over sites (rows) and steps (columns), pooled to a size that can be shown."""

    statistic: str
    kind: str | None
    view: str | int
    values: NDArray[np.float32]
    """float32 [rows, columns]: the worst number of the cell; NaN where there is none."""
    nonfinite: NDArray[np.bool_]
    """bool [rows, columns]: whether any tensor of the cell had NaN or infinite elements."""
    observed: NDArray[np.bool_]
    """bool [rows, columns]: whether anything in the cell was observed."""
    row_sites: list[list[str]]
    """The labels of the sites in each row, in the order of execution."""
    column_first: NDArray[np.int64]
    """int64 [columns]: the first step of each column."""
    column_last: NDArray[np.int64]
    """int64 [columns]: the last step of each column."""

    def __repr__(self) -> str:
        rows, columns = self.values.shape
        return f"<Heatmap of {self.statistic}: {rows} rows of sites, {columns} columns of steps>"


def group_size(length: int, most: int | None) -> int:
    """How many neighbours go into a group, so that there are at most `most` groups."""
    return 1 if most is None or length <= most else -(-length // max(most, 1))


def pool_steps(
    values: NDArray[np.float32], columns: NDArray[np.int64], pooled: NDArray[np.float32], pool: Pool
) -> None:
    """Put what is worse than before into `pooled`, float32 [columns, sites], NaN for nothing.

    Args:
        values: float32 [rows, sites]
        columns: int64 [rows], ascending: to which column each row goes.
    """
    # fmax and fmin leave NaN out unless there is nothing else.
    worst = np.fmax if pool == "max" else np.fmin
    cuts = np.flatnonzero(np.diff(columns)) + 1
    if len(cuts) == len(pooled) - 1 == len(values) - 1:  # a row for each column
        worst(pooled, values, out=pooled)
        return
    # Twenty times as fast as `reduceat`, which knows no vectors.
    for start, stop in zip([0, *cuts], [*cuts, len(values)], strict=True):
        if start < stop:
            column = pooled[columns[start]]
            worst(column, worst.reduce(values[start:stop], axis=0), out=column)


def row_starts(lengths: Sequence[int], most: int | None) -> NDArray[np.int64]:
    """int64 [rows]: where each row begins among the sites.

    Args:
        lengths: of how many sites each row would be by itself.
        most: rows; where there are more, neighbouring ones become one. None: all.
    """
    starts = np.cumsum([0, *lengths], dtype=np.int64)[:-1]
    return starts[:: group_size(len(starts), most)]


def labels_by_row(labels: Sequence[str], starts: NDArray[np.int64]) -> list[list[str]]:
    """The sites in each row."""
    return [list(labels[a:b]) for a, b in pairwise([*starts.tolist(), len(labels)])]


def pool_sites(
    values: NDArray[np.float32], starts: NDArray[np.int64], pool: Pool
) -> NDArray[np.float32]:
    """float32 [rows, columns] of [columns, sites]: the worst of the sites of each row."""
    worst = np.fmax if pool == "max" else np.fmin
    if len(values) < FEW:
        return worst.reduceat(values, starts, axis=1).T if len(starts) else values.T
    # Reduced while it is the first axis, so that whole rows are compared at once.
    return reduce_groups(worst, np.ascontiguousarray(values.T), starts)


def reduce_groups(
    operation: np.ufunc,
    block: NDArray[Any],
    starts: NDArray[np.int64],
    dtype: type[np.generic] | None = None,
) -> NDArray[Any]:
    """Reduce the rows from each start to the next to one.

    Args:
        operation: such as `np.add`.
        block: any cells, [rows, …].
        starts: int64, ascending: where each group of rows begins.
        dtype: of the answer, and in which it is reduced; None: that of the block.
    """
    if len(starts) == len(block):
        return block
    pooled = np.empty((len(starts), *block.shape[1:]), dtype or block.dtype)
    for row, (start, stop) in enumerate(pairwise([*starts.tolist(), len(block)])):
        operation.reduce(block[start:stop], axis=0, out=pooled[row], dtype=pooled.dtype)
    return pooled
