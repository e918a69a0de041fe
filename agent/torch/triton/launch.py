"""The kernels in Triton: how they are launched."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ....sketch.elements import WITHIN
from ....sketch.formats import normal_bin
from ...reading import Reading
from ..arithmetic import Columns
from ..fused import Chunks, byte_values
from ..local import READABLE, dtype_name
from . import kernels

# Triton adds options of its own, which its types do not tell.
sketch_chunks: Any = kernels.sketch_chunks
glance_chunks: Any = kernels.glance_chunks
merge_leaves: Any = kernels.merge_leaves

WARPS = 8


class TritonKernels:
    """`fused.Kernels` in Triton.

    Args:
        device: where the tensors are.
        leaves_of_tensor: more would make no device any busier, but take longer to merge.
    """

    def __init__(self, device: torch.device, *, leaves_of_tensor: int = 512) -> None:
        self._device = device
        self._leaves_of_tensor = leaves_of_tensor
        self._within = torch.as_tensor(WITHIN.astype("i8"), device=device)
        self._values = {dtype: byte_values(dtype).to(device) for dtype in READABLE}
        self._normal_bins = {dtype: normal_bin(dtype_name(dtype)) for dtype in READABLE}

    def leaves_of(self, _dtype: torch.dtype, _how: Reading) -> int:
        """How many chunks a tensor of a dtype may have that is read so."""
        return self._leaves_of_tensor

    def read(self, chunks: Chunks, leaves: Columns) -> None:
        """Queue the sketches of some chunks."""
        tensor, how = chunks.tensor, chunks.how
        kernel = glance_chunks if how.sentinel else sketch_chunks
        more = {"COMPARED": how.compared} if how.sentinel else {}
        with _current(self._device):
            kernel[(chunks.number,)](
                0 if chunks.work is None else 1,
                self._within if chunks.work is None else chunks.work,
                tensor.data_ptr(),
                tensor.numel(),
                chunks.size,
                chunks.first_leaf,
                self._within,
                self._values[tensor.dtype],
                *leaves,
                self._normal_bins[tensor.dtype],
                *chunks.region,
                IS_PIECE=how.region is not None,
                KIND=kernels.KINDS.get(dtype_name(tensor.dtype), kernels.BYTES),
                **more,
                num_warps=WARPS,
                enable_fp_fusion=False,
            )

    def merge(self, runs: torch.Tensor, leaves: Columns, into: Columns) -> None:
        """Queue the merge of runs of leaves into rows."""
        with _current(self._device):
            merge_leaves[(len(runs),)](runs, *leaves, *into, enable_fp_fusion=False)


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
