"""Reads that are put together before a chunk is fetched, so that several share what they fetch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .chunks import Request
from .selection import Indices, stretches


@dataclass(frozen=True, slots=True)
class Deferred:
    """Regions that are still to be read, and what to make of them then."""

    requests: list[Request]
    finish: Callable[[], NDArray[Any]]
    """The elements that were asked for; to be called after the requests were read."""


def along(places: Indices, axis: int, read: Callable[[slice], Deferred]) -> Deferred:
    """These places of an axis, in their order, from as few ranges as is sensible.

    Args:
        places: indices, in any order.
        axis: which axis of the result they lie on.
        read: reads one range of that axis.
    """
    order = np.argsort(places, kind="stable")
    ascending = places[order]
    ranges = [(ascending[part] - span.start, read(span)) for part, span in stretches(ascending)]
    if not ranges:  # of a run without sites
        return Deferred([], read(slice(0, 0)).finish)

    def finish() -> NDArray[Any]:
        blocks = [pick(block.finish(), offsets, axis) for offsets, block in ranges]
        block = blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=axis)
        return block if is_ascending(places) else np.take(block, np.argsort(order), axis=axis)

    return Deferred([request for _, block in ranges for request in block.requests], finish)


def pick(block: NDArray[Any], offsets: Indices, axis: int) -> NDArray[Any]:
    """Those ascending places of an axis; the block itself, not a copy, where that is all of it."""
    return block if len(offsets) == block.shape[axis] else np.take(block, offsets, axis=axis)


def is_ascending(places: Indices) -> bool:
    """Whether places are in ascending order."""
    return bool(np.all(places[1:] > places[:-1]))
