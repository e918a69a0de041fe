"""The CPU kernels: sketches of tensors in the host's memory, compiled by numba."""

from .dtypes import DTYPES
from .items import ITEM, Team, absorb, cut, sketch_items, warm

__all__ = ["DTYPES", "ITEM", "Team", "absorb", "cut", "sketch_items", "warm"]
