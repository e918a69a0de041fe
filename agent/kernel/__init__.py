"""The CPU kernels: sketches of tensors in the host's memory, compiled by numba."""

from .dtypes import DTYPES
from .exact_counts import count
from .items import Team, absorb, cut, cut_into, sketch_items, warm

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
