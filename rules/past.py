"""What is usual at a site, by its own past: the bounded memory of rules that compare with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..sketch.table import Floats
from .rule import Memory
from .seen import Rows

WARM_UP = 10
"""Records after which a site's past says what is usual there."""
RATE = 1 / 16
"""What each record counts for in the mean that is kept of the past."""
CLIP = 4.0
"""So many usual deviations, at most, does a single record move what is usual."""
TO_SIGMA = 1.2533
"""Of a normal distribution the standard deviation over the mean absolute one."""


@dataclass(frozen=True, slots=True, eq=False)
class Usual:
    """Of some sites what was usual before this record; NaN before the warm-up is over."""

    mean: Floats
    sigma: Floats


def usual(
    memory: Memory, name: str, sites: Rows, size: int, value: Floats, *, least: float
) -> Usual:
    """What is usual, and then remember this record, too.

    Args:
        name: of the number that is followed.
        sites: their indices.
        size: how many sites there are.
        value: float64 [sites]: the number now; NaN is not remembered.
        least: a deviation so small is none.
    """
    seen, mean, off = (memory.column(f"{name} {what}", size, 0.0) for what in ("n", "mean", "off"))
    told = np.isfinite(value)
    before = Usual(
        np.where(seen[sites] >= WARM_UP, mean[sites], np.nan),
        np.where(seen[sites] >= WARM_UP, np.maximum(TO_SIGMA * off[sites], least), np.nan),
    )
    some, now = sites[told], value[told]
    count = seen[some] + 1
    rate = np.maximum(RATE, 1 / count)
    is_warm = count > WARM_UP
    room = np.where(is_warm, CLIP * np.maximum(off[some], least), np.inf)
    change = np.clip(now - mean[some], -room, room)
    moved = np.where(count == 1, now, mean[some] + rate * change)
    distance = np.where(count == 1, 0.0, np.minimum(np.abs(now - mean[some]), room))
    off[some] += rate * (distance - off[some])
    mean[some], seen[some] = moved, count
    return before
