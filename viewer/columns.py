"""From recorded steps to columns of equal width, losing nothing that matters. Pure NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NUMBER, ZERO, UNDEFINED, NONFINITE, MISSING, EMPTY = range(6)
"""States of a cell. A number is painted by its shade; missing is left open to the hatch below; of
a bin that no element is in, empty looks like the page."""
NO_STEP = slice(-(2**63), -(2**63))
"""For a question about none: no job counts from there."""


def between(steps: NDArray[np.int64], limits: tuple[float, float] | None) -> NDArray[np.int64]:
    """The steps that are visible between two limits; all without limits."""
    if limits is None:
        return steps
    return steps[(steps >= np.floor(limits[0])) & (steps <= np.ceil(limits[1]))]


def span_of(steps: NDArray[np.int64]) -> slice:
    """First and last of the steps that are visible, for a question to the store."""
    # Between two records: there is nothing, and the store says so with the right rows.
    return slice(int(steps[0]), int(steps[-1])) if len(steps) else NO_STEP


def lay_out(
    first: NDArray[np.int64], last: NDArray[np.int64], width: int
) -> tuple[float, float, list[NDArray[np.intp]] | None]:
    """Left edge and width of regular columns, and which records' columns each one holds.

    None for the last where the columns are regular already, but for the first, which may be shorter
    in front. A step that was not recorded is bridged up to half the usual distance and left open
    beyond, so that a gap is seen as a gap.
    """
    if len(first) == 0:
        return -0.5, 1.0, None
    spacings = first[1:] - last[:-1]
    usual = float(np.median(spacings)) if len(spacings) else 1.0
    strides = np.diff(first)
    if len(strides) == 0:
        return float(first[0]) - usual / 2, float(last[0] - first[0] + 1), None
    if len(set(strides[1:])) <= 1 and strides[0] <= strides[-1] and len(set(spacings)) <= 1:
        return float(first[1] - strides[-1]) - usual / 2, float(strides[-1]), None
    left, right = first - usual / 2, last + usual / 2
    columns = int(np.clip(np.ceil((right[-1] - left[0]) / usual), 1, width))
    edges = np.linspace(left[0], right[-1], columns + 1)
    begin = np.searchsorted(right, edges[:-1] + 1e-9, "right")
    end = np.searchsorted(left, edges[1:] - 1e-9, "left")
    held = [np.arange(a, max(b, a)) for a, b in zip(begin, end, strict=True)]
    return float(edges[0]), float(edges[1] - edges[0]), held


def pool_columns(
    shade: NDArray[np.float32],
    state: NDArray[np.uint8],
    held: Sequence[NDArray[np.intp]],
    pool: str,
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Several columns in one, keeping the worst: the extreme shade, non-finite before the rest."""
    # A number beats zero and undefined; missing counts only where nothing was observed.
    order = np.array([3, 2, 1, 4, 0], np.uint8)
    back = np.argsort(order).astype(np.uint8)
    worst = np.fmin if pool == "min" else np.fmax
    shades_out = np.full((len(shade), len(held)), np.nan, np.float32)
    states_out = np.full((len(shade), len(held)), MISSING, np.uint8)
    for column, span in enumerate(held):
        if len(span):
            shades_out[:, column] = worst.reduce(shade[:, span], axis=1)
            states_out[:, column] = back[order[state[:, span]].max(axis=1)]
    return shades_out, states_out
