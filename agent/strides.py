"""How strided tensors lie in memory, and pieces in a whole tensor: as runs at a fixed distance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

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
    strides = strides_of(whole)
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


def regions_of(
    sizes: Sequence[int], offsets: Sequence[int], whole: Sequence[int]
) -> Sequence[Region]:
    """The same of any piece: of equal parts of it in C order, each runs at a fixed distance.

    There is one if the piece itself is such runs, else as many as it has elements along the first
    axes, as few of them as will do.
    """
    axes, region = next(
        (axes, region)
        for axes in range(len(sizes) + 1)
        if (region := region_of(sizes[axes:], offsets[axes:], whole[axes:]))
    )
    begins = [range(at, at + size) for at, size in zip(offsets[:axes], sizes[:axes], strict=True)]
    strides = strides_of(whole)[:axes]
    return [
        replace(
            region,
            origin=region.origin + sum(at * step for at, step in zip(index, strides, strict=True)),
        )
        for index in product(*begins)
    ]


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from one index of each axis to the next, in C order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
