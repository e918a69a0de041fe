"""Measuring tensors in the host's memory: batches for the numba kernel, on the agent's thread.

A hook only notes the tensor; the agent's thread reads it while training goes on. What waits to be
read is bounded in bytes: beyond that the hook reads it at once.

A tensor that changed between hook and reading is found by its version counter. The counter is
looked at from inside a later hook, when no operation can be under way on it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ...sketch.reference import sketch_array
from ...sketch.table import SketchTable
from ..kernel import DTYPES, absorb, cut, sketch_items
from ..sitebook import SiteBook
from ..steptable import StepTable
from .local import dtype_name

BATCH_BYTES = 2 << 20
"""A batch is handed on when it holds so much."""
WAITING_BYTES = 8 << 20
"""Activations and gradients that may wait for the agent's thread."""
FIXED_BYTES = 2048
"""What a tensor counts for at least, since each costs a row."""


@dataclass(slots=True)
class Batch:
    """Tensors of one step that are summarised together."""

    step: StepTable
    rows: list[int] = field(default_factory=list[int])
    tensors: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    versions: list[int] = field(default_factory=list[int])
    size_bytes: int = 0
    owners: NDArray[np.int64] | None = None
    """int64 [leaf rows]: which tensor each row of the leaf is a piece of."""
    leaf: SketchTable | None = None

    def add(self, row: int, tensor: torch.Tensor) -> None:
        """Note a tensor and the version it has now."""
        self.rows.append(row)
        self.tensors.append(tensor)
        self.versions.append(_version(tensor))
        self.size_bytes += max(tensor.numel() * tensor.element_size(), FIXED_BYTES)


class CpuMeter:
    """Summarises host tensors into the step table that is open.

    Args:
        book: told of rows that must be read at once.
        submit: hands a job to the agent's thread.
    """

    def __init__(self, book: SiteBook, submit: Callable[[Callable[[], object]], None]) -> None:
        self._book = book
        self._submit = submit
        self._open: Batch | None = None
        self._waiting: deque[Batch] = deque()
        self._unmerged: deque[Batch] = deque()
        self._waiting_bytes = 0
        self._reading = 0
        self._lock = threading.Condition()
        self.stale = 0
        """Tensors that changed before they were read, and were left out."""

    def add(self, step: StepTable, row: int, tensor: torch.Tensor) -> None:
        """Summarise `tensor` into its row, now or soon."""
        at_once = row in self._book.synchronous
        with self._lock:
            if self._open is None:
                self._open = Batch(step)
            self._open.add(row, tensor)
            full = self._open.size_bytes >= BATCH_BYTES
        if full or at_once:
            self.flush(wait=at_once)

    def flush(self, *, wait: bool = False) -> None:
        """Hand on what was noted, and merge what was read; `wait` has it read before the return."""
        batch = self._close_batch(may_wait=not wait)
        if batch is not None:
            self._read(batch)
        self.settle()

    def barrier(self) -> None:
        """Return when everything noted so far is read: its tensors may then be changed."""
        self.flush(wait=True)
        while self._read_one():
            pass
        with self._lock:
            self._lock.wait_for(lambda: self._reading == 0)
        self.settle()

    def settle(self) -> None:
        """Merge, in order, what was read and did not change meanwhile.

        To be called from the training thread, or when nothing of the step can change any more.
        """
        with self._lock:
            while self._unmerged and self._unmerged[0].leaf is not None:
                self._merge(self._unmerged.popleft())

    def _close_batch(self, *, may_wait: bool) -> Batch | None:
        """End the open batch; return it if it is to be read by the caller."""
        with self._lock:
            batch, self._open = self._open, None
            if batch is None:
                return None
            self._unmerged.append(batch)
            if not may_wait or self._waiting_bytes >= WAITING_BYTES:
                return batch
            self._waiting.append(batch)
            self._waiting_bytes += batch.size_bytes
            self._submit(self._read_one)
        return None

    def _read_one(self) -> bool:
        """Read the batch that has waited longest; False where none waits."""
        with self._lock:
            if not self._waiting:
                return False
            batch = self._waiting.popleft()
            self._reading += 1
        try:
            self._read(batch)
        finally:
            with self._lock:
                self._reading -= 1
                self._waiting_bytes -= batch.size_bytes
                self._lock.notify_all()
        return True

    def _read(self, batch: Batch) -> None:
        pieces = [_pieces(i, tensor) for i, tensor in enumerate(batch.tensors)]
        items = [item for owned in pieces for item in owned.items]
        whole = [owned for owned in pieces if owned.leaf is not None]
        table = sketch_items(np.array(items, np.int64).reshape(-1, 4))
        owners = [owned.index for owned in pieces for _ in owned.items]
        batch.owners = np.array(owners + [owned.index for owned in whole], np.int64)
        leaves = [owned.leaf for owned in whole if owned.leaf is not None]
        batch.leaf = SketchTable.concatenate([table, *leaves]) if leaves else table

    def _merge(self, batch: Batch) -> None:
        assert batch.leaf is not None
        assert batch.owners is not None
        intact = np.array(
            [
                _version(tensor) == version
                for tensor, version in zip(batch.tensors, batch.versions, strict=True)
            ],
            np.bool_,
        )
        rows = np.array(batch.rows, np.int64)
        for row in rows[~intact].tolist():
            self.stale += 1
            self._book.synchronous.add(row)
        batch.step.absorb(rows[batch.owners], batch.leaf, intact[batch.owners], absorb)


def warm() -> None:
    """Compile the kernel, or load it from the cache on disk; ten seconds at first, then one."""
    one = _pieces(0, torch.ones(1))
    leaf = sketch_items(np.array(one.items, np.int64))
    absorb(SketchTable.empty(1), np.zeros(1, np.int64), leaf, np.ones(1, np.bool_))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What is to be read of one tensor: work items for the kernel, or a sketch already made."""

    index: int
    items: Sequence[tuple[int, int, int, int]]
    leaf: SketchTable | None
    memory: torch.Tensor
    """Keeps alive what the items point to."""


def _pieces(index: int, tensor: torch.Tensor) -> _Pieces:
    tensor = tensor.contiguous()
    name = dtype_name(tensor)
    if name not in DTYPES or not tensor.numel():
        leaf = sketch_array(tensor.numpy()) if tensor.numel() else SketchTable.empty(1)
        return _Pieces(index, (), leaf, tensor)
    items = cut(tensor.data_ptr(), tensor.numel(), DTYPES.index(name))
    return _Pieces(index, items, None, tensor)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
