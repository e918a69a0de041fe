"""Sketches by the Triton kernels: one launch a tensor, one for all small tensors that last.

Each chunk of a tensor has its sketch written into a row of its own, a leaf. Leaves are merged into
the rows of the step, sixteen at a time and always in the same order, when no more fit or the step
ends. Nothing is read back, and nothing waits for the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ...sketch.elements import BLOCK, WITHIN, Region
from ...sketch.formats import normal_bin
from ..reading import Reading
from . import triton_kernels as kernels
from .arithmetic import Columns, columns_of, on_device, row_words
from .local import READABLE, dtype_name, version_of

# Triton adds options of its own, which its types do not tell.
sketch_chunks: Any = kernels.sketch_chunks
glance_chunks: Any = kernels.glance_chunks
merge_leaves: Any = kernels.merge_leaves

FAN = 16
"""Leaves that one program merges, one after the other."""
CHUNKS_OF_SMALL = 4
"""A tensor of more chunks has a launch of its own: its rows of a table would take as long."""
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """A tensor that lasts, until `launch`."""

    row: int
    flat: torch.Tensor
    how: Reading
    chunks: int
    version: int

    def is_as_it_was(self) -> bool:
        """Whether nobody changed it, or took its memory away, since it was noted."""
        needed = (self.flat.storage_offset() + self.flat.numel()) * self.flat.itemsize
        there = self.flat.untyped_storage().nbytes() >= needed
        return there and version_of(self.flat) == self.version


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
        self._normal_bins = {dtype: normal_bin(dtype_name(dtype)) for dtype in READABLE}
        self._runs: list[Run] = []
        self._used = 0
        self._waiting: list[Waiting] = []
        self._expected = 0
        self._unread: set[int] = set()
        self._at_once: set[int] = set()
        self.stale = 0

    def has_room(self, flat: torch.Tensor) -> bool:
        """Whether the leaves of a tensor fit beside those that wait."""
        return self._used + self._expected + self._chunks_of(flat) <= self._most

    def add(self, row: int, flat: torch.Tensor, how: Reading) -> None:
        """Queue the sketch of a contiguous tensor; of one that lasts, with the next `launch`.

        A tensor that was found changed while it waited does not wait again.
        """
        chunks = self._chunks_of(flat)
        self._unread.add(row)
        waiting = Waiting(row, flat, how, chunks, version_of(flat))
        if how.lasting and row not in self._at_once:
            self._waiting.append(waiting)
            self._expected += chunks
        else:
            self._start_one(waiting)

    def launch(self) -> None:
        """Queue the sketches of all tensors that wait: of small ones one launch for each dtype."""
        all_waiting, self._waiting, self._expected = self._waiting, [], 0
        small: dict[tuple[torch.dtype, bool, bool, bool], list[Waiting]] = defaultdict(list)
        for waiting in all_waiting:
            if not waiting.is_as_it_was():
                self.stale += 1
                self._at_once.add(waiting.row)
            elif waiting.chunks > CHUNKS_OF_SMALL:
                self._start_one(waiting)
            else:
                how = waiting.how
                alike = waiting.flat.dtype, how.sentinel, how.compared, how.region is None
                small[alike].append(waiting)
        for tensors in small.values():
            self._start_small(tensors)

    def absorb(self, rows: Columns) -> set[int]:
        """Queue the merge of all leaves into the rows of a step; of which rows nothing was read."""
        try:
            self.launch()
        finally:
            runs, self._runs, self._used = self._runs, [], 0
            unread, self._unread = self._unread, set()
        while any(len(run) > FAN for run in runs):
            self._merge([part for run in runs for part in _parts(run)], self._leaves)
            runs = [_merged(run) for run in runs]
        while runs:  # each row once a launch, for all of a launch runs at once
            once = {run.row: run for run in reversed(runs)}
            self._merge(list(once.values()), rows)
            runs = [run for run in runs if once[run.row] is not run]
        return unread

    def _start_one(self, waiting: Waiting) -> None:
        flat, first = waiting.flat, self._used
        if waiting.chunks:
            size = self._size(flat)
            self._launch(waiting.chunks, waiting, self._within, in_table=0, size=size, first=first)
        # Only now: leaves that no kernel writes hold what an earlier step left there.
        self._used = first + waiting.chunks
        self._runs.append(Run(waiting.row, first, self._used, 1, waiting.how.copies))
        self._unread.discard(waiting.row)

    def _start_small(self, tensors: Sequence[Waiting]) -> None:
        ends = self._used + np.cumsum([waiting.chunks for waiting in tensors])
        runs = [
            Run(waiting.row, int(end) - waiting.chunks, int(end), 1, waiting.how.copies)
            for waiting, end in zip(tensors, ends, strict=True)
        ]
        work = [
            chunk
            for waiting, run in zip(tensors, runs, strict=True)
            for chunk in self._work(waiting, run.first)
        ]
        if work:
            table = on_device(work, self._device)
            self._launch(len(work), tensors[0], table, in_table=1, size=0, first=0)
        self._used = int(ends[-1])
        self._runs += runs
        self._unread.difference_update(run.row for run in runs)

    def _size(self, flat: torch.Tensor) -> int:
        """Elements a leaf: so many that the tensor has no more leaves than it may."""
        return max(-(-flat.numel() // (self._most_of_tensor * BLOCK)), 1) * BLOCK

    def _chunks_of(self, flat: torch.Tensor) -> int:
        return -(-flat.numel() // self._size(flat))

    def _work(self, waiting: Waiting, first: int) -> Iterator[tuple[int, ...]]:
        """Rows of a table of work."""
        flat, region = waiting.flat, _numbers(waiting.how.region)
        size, length = self._size(flat), flat.numel()
        for place, start in enumerate(range(0, length, size)):
            yield flat.data_ptr(), start, min(start + size, length), first + place, *region

    def _launch(
        self,
        programs: int,
        waiting: Waiting,
        work: torch.Tensor,
        *,
        in_table: int,
        size: int,
        first: int,
    ) -> None:
        """Read one tensor into leaves from `first` on; or, of its dtype, what a table names."""
        flat, how = waiting.flat, waiting.how
        kernel = glance_chunks if how.sentinel else sketch_chunks
        more = {"COMPARED": how.compared} if how.sentinel else {}
        with _current(self._device):
            kernel[(programs,)](
                in_table,
                work,
                flat.data_ptr(),
                flat.numel(),
                size,
                first,
                self._within,
                self._values[flat.dtype],
                *self._leaves,
                self._normal_bins[flat.dtype],
                *_numbers(how.region),
                IS_PIECE=how.region is not None,
                KIND=kernels.KINDS.get(dtype_name(flat.dtype), kernels.BYTES),
                **more,
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


def _numbers(region: Region | None) -> tuple[int, int, int]:
    return (0, 1, 1) if region is None else (region.origin, region.run, region.pitch)


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


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
    return replace(run, stride=run.stride * FAN) if len(run) > FAN else run
