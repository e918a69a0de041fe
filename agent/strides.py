"""How strided tensors lie in memory, and pieces in a whole tensor: as runs at a fixed distance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..sketch.elements import Region

Runs = tuple[int, int, int]
"""Elements of a run; from one element to the next; from one run's first to the next run's."""

CONTIGUOUS: Runs = (0, 0, 0)


def runs_of(sizes: Sequence[int], strides: Sequence[int]) -> Runs | None:
    """How a tensor lies in memory; None where there is no such pattern."""
    if 0 in sizes:
        return CONTIGUOUS
    axes: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * stride:
            axes[-1] = axes[-1][0] * size, stride
        else:
            axes.append((size, stride))
    match axes:
        case [] | [(_, 1)]:
            return CONTIGUOUS
        case [(size, stride)]:
            return size, stride, 0
        case [(_, pitch), (size, stride)]:
            return size, stride, pitch
        case _:
            return None


def region_of(sizes: Sequence[int], offsets: Sequence[int], whole: Sequence[int]) -> Region | None:
    """Where a piece of those sizes, at those offsets, lies in a tensor of the sizes `whole`.

    None where its elements are no runs at a fixed distance: it is cut along several inner axes.
    """
    strides = [1] * len(whole)
    for axis in range(len(whole) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * whole[axis + 1]
    origin = sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))
    match runs_of(sizes, strides):
        case None:
            return None
        case (0, _, _):
            run = max(math.prod(sizes), 1)
            return Region(origin, run, run)
        case (run, 1, pitch):
            return Region(origin, run, pitch)
        case (_, step, 0):
            return Region(origin, 1, step)
        case _:
            return None
