"""Sketches by the Triton kernels: one launch a tensor, one for all tensors that last.

Each chunk of a tensor has its sketch written into a row of its own, a leaf. Leaves are merged into
the rows of the step, sixteen at a time and always in the same order, when no more fit or the step
ends. Nothing is read back, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...sketch.elements import BLOCK, WITHIN
from ...sketch.formats import dtype_named, floor_log2, smallest_normal
from ...sketch.table import FIRST_EXPONENT
from . import triton_kernels as kernels
from .arithmetic import Columns, columns_of, on_device, row_words
from .local import READABLE, dtype_name

# Triton adds options of its own, which its types do not tell.
sketch_chunks: Any = kernels.sketch_chunks
merge_leaves: Any = kernels.merge_leaves

FAN = 16
"""Leaves that one program merges, one after the other."""
WARPS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """The leaves of one tensor: `first`, `first` + `stride`, … below `end`."""

    row: int
    first: int
    end: int
    stride: int
    copies: int

    def __len__(self) -> int:
        return -(-(self.end - self.first) // self.stride)


class Fused:
    """The engine of a device for which Triton compiles.

    Args:
        device: where the tensors are.
        leaves: that may wait to be merged, 2.4 kB each.
        leaves_of_tensor: at most: more would make no device any busier, but take longer to merge.
    """

    def __init__(
        self, device: torch.device, *, leaves: int = 4096, leaves_of_tensor: int = 512
    ) -> None:
        self._device, self._most, self._most_of_tensor = device, leaves, leaves_of_tensor
        with torch.inference_mode(False):  # else what is made there could be changed only there
            words = torch.zeros(leaves * row_words(), dtype=torch.int64, device=device)
            self._leaves = columns_of(words, leaves)
            self._within = torch.as_tensor(WITHIN.astype("i8"), device=device)
            self._values = {dtype: _values(dtype).to(device) for dtype in READABLE}
        self._runs: list[Run] = []
        self._used = 0
        self._waiting: list[tuple[torch.Tensor, int]] = []

    def has_room(self, flat: torch.Tensor) -> bool:
        """Whether the leaves of a tensor fit beside those that wait."""
        return self._used + self._chunks_of(flat) <= self._most

    def add(self, row: int, flat: torch.Tensor, copies: int, *, lasting: bool) -> None:
        """Queue the sketch of a contiguous tensor; of one that lasts, with the next `launch`."""
        chunks = self._chunks_of(flat)
        if not chunks:
            return
        first, self._used = self._used, self._used + chunks
        self._runs.append(Run(row, first, self._used, 1, copies))
        if lasting:
            self._waiting.append((flat, first))
        else:
            self._start(flat.dtype, chunks, flat, first)

    def launch(self) -> None:
        """Queue the sketches of all tensors that wait: one launch for each dtype."""
        waiting, self._waiting = self._waiting, []
        for dtype in dict.fromkeys(flat.dtype for flat, _ in waiting):
            work = [
                chunk
                for flat, first in waiting
                if flat.dtype == dtype
                for chunk in self._work(flat, first)
            ]
            self._start(dtype, len(work), on_device(work, self._device))

    def absorb(self, rows: Columns) -> None:
        """Queue the merge of all leaves into the rows of a step."""
        self.launch()
        runs, self._runs, self._used = self._runs, [], 0
        while any(len(run) > FAN for run in runs):
            self._merge([part for run in runs for part in _parts(run)], self._leaves)
            runs = [_merged(run) for run in runs]
        while runs:  # each row once a launch, for all of a launch runs at once
            once = {run.row: run for run in reversed(runs)}
            self._merge(list(once.values()), rows)
            runs = [run for run in runs if once[run.row] is not run]

    def _size(self, flat: torch.Tensor) -> int:
        """Elements a leaf: so many that the tensor has no more leaves than it may."""
        return max(-(-flat.numel() // (self._most_of_tensor * BLOCK)), 1) * BLOCK

    def _chunks_of(self, flat: torch.Tensor) -> int:
        return -(-flat.numel() // self._size(flat))

    def _work(self, flat: torch.Tensor, first: int) -> Iterator[tuple[int, int, int, int]]:
        """Rows of a table of work."""
        size, length = self._size(flat), flat.numel()
        for place, start in enumerate(range(0, length, size)):
            yield flat.data_ptr(), start, min(start + size, length), first + place

    def _start(
        self, dtype: torch.dtype, chunks: int, source: torch.Tensor, first: int | None = None
    ) -> None:
        """Launch the sketch of one tensor into leaves from `first` on, or of a table of work."""
        direct = first is not None
        name = dtype_name(dtype)
        with _current(self._device):
            sketch_chunks[(chunks,)](
                0 if direct else 1,
                self._within if direct else source,
                source.data_ptr(),
                source.numel(),
                self._size(source) if direct else 0,
                first or 0,
                self._within,
                self._values[dtype],
                *self._leaves,
                max(floor_log2(smallest_normal(dtype_named(name))) - FIRST_EXPONENT, 0),
                KIND=kernels.KINDS.get(name, kernels.BYTES),
                num_warps=WARPS,
                enable_fp_fusion=False,
            )

    def _merge(self, runs: Sequence[Run], into: Columns) -> None:
        table = [(run.row, run.first, run.end, run.stride, run.copies) for run in runs]
        if table:
            with _current(self._device):
                merge_leaves[(len(table),)](
                    on_device(table, self._device), *self._leaves, *into, enable_fp_fusion=False
                )


def _current(device: torch.device) -> torch.device | torch.cuda.device:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else torch.device(device)


def _values(dtype: torch.dtype) -> torch.Tensor:
    """float64 [256]: what the bytes of a dtype stand for; of others, which need none, nothing."""
    if dtype.itemsize > 1:
        return torch.zeros(1, dtype=torch.float64)
    return torch.arange(256).to(torch.uint8).view(dtype).double()


def _parts(run: Run) -> Iterator[Run]:
    """Merges of every `FAN` leaves of a run into the first of them."""
    if len(run) > FAN:
        wide = FAN * run.stride
        for first in range(run.first, run.end, wide):
            end = min(first + wide, run.end)
            if first + run.stride < end:
                yield Run(first, first + run.stride, end, run.stride, 1)


def _merged(run: Run) -> Run:
    """What is left of a run after its parts were merged."""
    if len(run) <= FAN:
        return run
    return Run(run.row, run.first, run.end, run.stride * FAN, run.copies)
