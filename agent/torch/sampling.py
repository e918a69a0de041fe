"""A sample of a large tensor: of every so many clusters of elements in a row, one.

A cluster is a cache line, 16 to 64 elements: whole rows or larger blocks were measured to err by 6
to 57 per cent where rows differ in scale. Which cluster of a stratum is taken follows from its
number and the step, so that all ranks take the same, and another in each step.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...sketch.elements import SEED_STEP, sampled_clusters
from .arithmetic import block_key

LEAST = 1 << 16
"""A site is sampled if its first tensor had so many elements."""
LINE_BYTES = 64
CLUSTER = 16
"""Elements of a cluster, at least."""
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def sample_of(tensor: torch.Tensor, stride: int, seed: int) -> torch.Tensor:
    """One axis of the sampled elements of a contiguous tensor, copied.

    Fewer than a cluster of elements at the end are in no sample.
    """
    size = max(LINE_BYTES // tensor.itemsize, CLUSTER)
    count = tensor.numel() // size
    if tensor.is_cpu:  # NumPy, for torch would start threads of its own
        chosen = sampled_clusters(count, stride, seed)
        rows = torch.from_numpy(_clusters_of(tensor, count, size).take(chosen, 0, mode="clip"))
    else:
        flat = tensor.detach().view(-1).view(WORDS[tensor.itemsize])
        words = flat[: count * size].view(count, size)
        rows = words.index_select(0, _clusters(count, stride, seed, tensor.device))
    return rows.view(-1).view(tensor.dtype)


def _clusters_of(tensor: torch.Tensor, count: int, size: int) -> NDArray[np.signedinteger[Any]]:
    """The memory of a contiguous tensor; not by `numpy()`, after which nobody could resize it."""
    held = (ctypes.c_byte * (count * size * tensor.itemsize)).from_address(tensor.data_ptr())
    return np.ctypeslib.as_array(held).view(f"i{tensor.itemsize}").reshape(count, size)


def _clusters(count: int, stride: int, seed: int, device: torch.device) -> torch.Tensor:
    """int64: `sketch.elements.sampled_clusters`, on the device."""
    first = torch.arange(0, count, stride, device=device)
    offset = seed * SEED_STEP % 2**64
    keys = block_key(first + (offset - 2**64 if offset >= 2**63 else offset))
    return first + keys % (count - first).clamp(max=stride)
