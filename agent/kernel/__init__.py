"""The CPU kernels: sketches of tensors in the host's memory, compiled by numba."""

from .dtypes import DTYPES
from .items import Team, absorb, cut, sketch_items, warm
from .quantities import count
from .strided import CONTIGUOUS, Runs, runs_of

__all__ = [
    "CONTIGUOUS",
    "DTYPES",
    "Runs",
    "Team",
    "absorb",
    "count",
    "cut",
    "runs_of",
    "sketch_items",
    "warm",
]
