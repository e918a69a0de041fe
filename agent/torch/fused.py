"""Sketches by kernels of our own: one launch a tensor, one for all small tensors that last.

Each chunk of a tensor has its sketch written into a row of its own, a leaf. Leaves are merged into
the rows of the step, twenty at a time and always in the same order, when no more fit or the step
ends. Nothing is read back, and nothing waits for the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch

from ...sketch.elements import BLOCK, Region
from ..reading import Reading
from .arithmetic import Columns, columns_of, on_device, row_words
from .local import version_of

FAN = 20
"""Leaves that one program merges, one after the other: so many that those of a large tensor, 3 for
each of a GPU's 132 multiprocessors, take two launches."""
CHUNKS_OF_SMALL = 4
"""A tensor of more chunks has a launch of its own: its rows of a table would take as long."""
WORK = 7
"""Words of a table of work: address of the tensor, first element and end of the chunk, leaf; and of
a piece its region."""
RUN = 5
"""Words of a table of runs: row to merge into, first leaf, end, their distance, and copies."""


# Frozen, they would take a microsecond more to make, and some are made for each tensor.
@dataclass(slots=True)
class Chunks:
    """What one launch reads, each chunk into a leaf: those of a tensor, or what a table names."""

    number: int
    tensor: torch.Tensor
    """The contiguous tensor; where there is a table one of them, which have the same dtype."""
    how: Reading
    """And are read alike, but for their regions."""
    work: torch.Tensor | None
    """int64 [number, WORK]: the table."""
    size: int
    """Elements a chunk, without a table."""
    first_leaf: int

    @property
    def region(self) -> tuple[int, int, int]:
        """Origin, run and pitch of the tensor."""
        return numbers_of(self.how.region)


class Kernels(Protocol):
    """Kernels of one device."""

    @property
    def leaves_of_tensor(self) -> int: ...
    def read(self, chunks: Chunks, leaves: Columns) -> None: ...
    def merge(self, runs: torch.Tensor, leaves: Columns, into: Columns) -> None: ...


@dataclass(slots=True)
class Run:
    """The leaves of one tensor: `first`, `first` + `stride`, … below `end`."""

    row: int
    first: int
    end: int
    stride: int
    copies: int

    def __len__(self) -> int:
        return -(-(self.end - self.first) // self.stride)


@dataclass(slots=True)
class Waiting:
    """A tensor that lasts, until `launch`."""

    row: int
    tensor: torch.Tensor
    how: Reading
    chunks: int
    version: int

    def is_as_it_was(self) -> bool:
        """Whether nobody changed it, or took its memory away, since it was noted."""
        return self.is_there() and version_of(self.tensor) == self.version

    def is_there(self) -> bool:
        """Whether its memory is: FSDP takes it away, and zeros of autograd's have none."""
        needed = (self.tensor.storage_offset() + self.tensor.numel()) * self.tensor.itemsize
        return self.tensor.untyped_storage().nbytes() >= needed and (
            self.tensor.data_ptr() != 0 or not needed
        )


class Fused:
    """The engine of a device for which there are kernels.

    Args:
        device: where the tensors are.
        kernels: makes those of the device.
        leaves: that may wait to be merged, 2.4 kB each.
    """

    def __init__(
        self,
        device: torch.device,
        kernels: Callable[[torch.device], Kernels],
        *,
        leaves: int = 8192,
    ) -> None:
        self._device, self._most = device, leaves
        with torch.inference_mode(False):  # else what is made there could be changed only there
            words = torch.zeros(leaves * row_words(), dtype=torch.int64, device=device)
            self._leaves = columns_of(words, leaves)
            self._kernels = kernels(device)
        self._runs: list[Run] = []
        self._used = 0
        self._waiting: list[Waiting] = []
        self._expected = 0
        self._unread: set[int] = set()
        self._at_once: set[int] = set()
        self.stale = 0

    def has_room(self, tensor: torch.Tensor) -> bool:
        """Whether the leaves of a tensor fit beside those that wait."""
        return self._used + self._expected + self._chunks(tensor)[1] <= self._most

    def add(self, row: int, tensor: torch.Tensor, how: Reading) -> None:
        """Queue the sketch of a contiguous tensor; of one that lasts, with the next `launch`.

        A tensor that was found changed while it waited does not wait again.
        """
        _, chunks = self._chunks(tensor)
        self._unread.add(row)
        waiting = Waiting(row, tensor, how, chunks, version_of(tensor))
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
                alike = waiting.tensor.dtype, how.sentinel, how.compared, how.region is None
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
        tensor, first = waiting.tensor, self._used
        if waiting.chunks:
            if not waiting.is_there():  # to read it would end the process
                raise RuntimeError("The memory of a tensor was taken away before it could be read.")
            size, _ = self._chunks(tensor)
            chunks = Chunks(waiting.chunks, tensor, waiting.how, None, size, first)
            self._kernels.read(chunks, self._leaves)
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
            table, one = on_device(work, self._device), tensors[0]
            self._kernels.read(Chunks(len(work), one.tensor, one.how, table, 0, 0), self._leaves)
        self._used = int(ends[-1])
        self._runs += runs
        self._unread.difference_update(run.row for run in runs)

    def _chunks(self, tensor: torch.Tensor) -> tuple[int, int]:
        return chunks_of(tensor.numel(), self._kernels.leaves_of_tensor)

    def _work(self, waiting: Waiting, first: int) -> Iterator[tuple[int, ...]]:
        """Rows of a table of work."""
        tensor, region = waiting.tensor, numbers_of(waiting.how.region)
        length, (size, _) = tensor.numel(), self._chunks(tensor)
        for place, start in enumerate(range(0, length, size)):
            yield tensor.data_ptr(), start, min(start + size, length), first + place, *region

    def _merge(self, runs: Sequence[Run], into: Columns) -> None:
        table = [(run.row, run.first, run.end, run.stride, run.copies) for run in runs]
        if table:
            self._kernels.merge(on_device(table, self._device), self._leaves, into)


@lru_cache(maxsize=4096)  # a step has the same sizes as the one before
def chunks_of(length: int, leaves: int) -> tuple[int, int]:
    """Elements a chunk, so many that a tensor has no more chunks than leaves; and its chunks."""
    size = max(-(-length // (leaves * BLOCK)), 1) * BLOCK
    return size, -(-length // size)


def numbers_of(region: Region | None) -> tuple[int, int, int]:
    """Origin, run and pitch; of what is no piece numbers that nobody reads."""
    return (0, 1, 1) if region is None else (region.origin, region.run, region.pitch)


def byte_values(dtype: torch.dtype) -> torch.Tensor:
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
