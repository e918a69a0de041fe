"""In which order what is tapped runs: iterations of a scan in turn, the backward from its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..modes import ALL
from .collecting import TapSite
from .walking import Loop

When = tuple[int, ...]
"""What runs earlier is less: for each scan around, where it begins and the turn; and the place."""


def begins_of(sites: Sequence[TapSite]) -> Mapping[Loop, int]:
    """By scan, the place of the first tap in it."""
    begins = dict[Loop, int]()
    for one in sites:
        for loop in one.loops:
            begins[loop] = min(begins.get(loop, one.at), one.at)
    return begins


def whens_of(one: TapSite, begins: Mapping[Loop, int]) -> list[When]:
    """When each call of a tap runs; of one whose mode makes one of them, the last."""
    if one.mode == ALL:
        return [_when(one, turn, begins) for turn in np.ndindex(one.stacked)]
    pairs = zip(one.loops, one.stacked, strict=True)
    last = [0 if is_reversed else length - 1 for (_, is_reversed), length in pairs]
    return [_when(one, last, begins)]


def _when(one: TapSite, turn: Sequence[int], begins: Mapping[Loop, int]) -> When:
    turns = zip(one.loops, turn, strict=True)
    around = [(begins[loop], -number if loop[1] else number) for loop, number in turns]
    return (*(part for pair in around for part in pair), one.at)
