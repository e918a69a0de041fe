"""Heatmaps made smaller without losing the worst: pure NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Pool = Literal["max", "min"]
"""Which of the numbers that fall into one cell is kept."""


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


def group_size(length: int, most: int | None) -> int:
    """How many neighbours go into a group, so that there are at most `most` groups."""
    return 1 if most is None or length <= most else -(-length // max(most, 1))


def pool_numbers(
    values: NDArray[np.float32], sizes: tuple[int, int], pool: Pool
) -> NDArray[np.float32]:
    """float32 [groups of axis 0, groups of axis 1]: the largest (or smallest) that is not NaN."""
    # fmax and fmin leave NaN out unless there is nothing else.
    worst = np.fmax if pool == "max" else np.fmin
    return reduce_groups(worst, reduce_groups(worst, values, 0, sizes[0]), 1, sizes[1])


def pool_any(flags: NDArray[np.bool_], sizes: tuple[int, int]) -> NDArray[np.bool_]:
    """bool [groups of axis 0, groups of axis 1]: whether any flag of the group is set."""
    either = np.logical_or
    return reduce_groups(either, reduce_groups(either, flags, 0, sizes[0]), 1, sizes[1])


def reduce_groups(operation: np.ufunc, block: NDArray, axis: int, size: int) -> NDArray:
    """Reduce each `size` neighbours along an axis to one; the last group may be smaller."""
    if size == 1:
        return block
    whole = block.shape[axis] // size * size
    head, tail = np.split(block, [whole], axis=axis)
    shape = (*block.shape[:axis], whole // size, size, *block.shape[axis + 1 :])
    # Twenty times as fast as `reduceat`, which knows no vectors.
    parts = [operation.reduce(head.reshape(shape), axis=axis + 1)]
    if tail.shape[axis]:
        parts.append(operation.reduce(tail, axis=axis, keepdims=True))
    return np.concatenate(parts, axis=axis)
