"""The CPU kernels: sketches of tensors in the host's memory, compiled by numba."""

from .dtypes import DTYPES
from .items import Team, absorb, cut, cut_into, sketch_items, warm
from .quantities import count

__all__ = [
    "DTYPES",
    "Team",
    "absorb",
    "count",
    "cut",
    "cut_into",
    "sketch_items",
    "warm",
]
