"""Sketches by kernels of our own: one launch a tensor, and few for all that come together.

Each chunk of a tensor has its sketch written into a row of its own, a leaf. Leaves are merged into
the rows of the step, twenty at a time and always in the same order, when no more fit or the step
ends; those of tensors that come together at once. Nothing is read back, and nothing waits for the
device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from ..reading import Reading
from .arithmetic import Columns, columns_of, keep_for_stream, on_device, row_words
from .found import Found
from .local import has_memory
from .tables import NOT_THERE, Run, Together, chunks_of, numbers_of, rounds_of, together

TABLES = 1024
"""Of runs, that are kept on the device."""
TAKEN_AWAY = "The memory of a tensor was taken away before it could be read."


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

    def leaves_of(self, dtype: torch.dtype, how: Reading, /) -> int: ...
    def read(self, chunks: Chunks, leaves: Columns) -> None: ...
    def merge(self, runs: torch.Tensor, leaves: Columns, into: Columns) -> None: ...


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
        self._tables: dict[tuple[tuple[int, ...], ...], torch.Tensor] = {}

    def has_room(self, tensor: torch.Tensor, how: Reading) -> bool:
        """Whether the leaves of a tensor fit beside those that wait."""
        return self._used + self._chunks(tensor, how)[1] <= self._most

    def add(self, row: int, tensor: torch.Tensor, how: Reading) -> None:
        """Queue the sketch of a contiguous tensor.

        Raises:
            RuntimeError: its memory was taken away.
        """
        first, (size, number) = self._used, self._chunks(tensor, how)
        if number:
            if not has_memory(tensor, tensor.numel()):  # to read it would end the process
                raise RuntimeError(TAKEN_AWAY)
            self._kernels.read(Chunks(number, tensor, how, None, size, first), self._leaves)
        # Only now: leaves that no kernel writes hold what an earlier step left there.
        self._used = first + number
        self._runs.append(Run(row, first, self._used, 1, how.copies))

    def prepare(
        self, found: Sequence[Found]
    ) -> Callable[[Sequence[torch.Tensor | None], Columns], None]:
        """What queues the sketches of tensors, one for each or None, and merges them.

        In the order in which they lie in memory they are contiguous. It raises RuntimeError where
        memory of one was taken away.
        """
        launches = list(together(found, leaves_of=self._kernels.leaves_of, most=self._most))

        def read(tensors: Sequence[torch.Tensor | None], into: Columns) -> None:
            for launch in launches:
                self._read_together(launch, [tensors[place] for place in launch.places], into)

        return read

    def absorb(self, rows: Columns) -> None:
        """Queue the merge of all leaves into the rows of a step."""
        runs, self._runs, self._used = self._runs, [], 0
        rounds, runs = rounds_of(runs)
        for one in rounds:
            self._merge([run for _, run in one], self._leaves)
        while runs:  # each row once a launch, for all of a launch runs at once
            once = {run.row: run for run in reversed(runs)}
            self._merge(list(once.values()), rows)
            runs = [run for run in runs if once[run.row] is not run]

    def _read_together(
        self, launch: Together, tensors: Sequence[torch.Tensor | None], into: Columns
    ) -> None:
        one = next((tensor for tensor in tensors if tensor is not None), None)
        if one is None:
            return
        addresses = np.array([NOT_THERE if one is None else one.data_ptr() for one in tensors])
        for place in launch.moved(addresses):
            tensor = tensors[place]
            if tensor is not None and not has_memory(tensor, launch.elements[place]):
                raise RuntimeError(TAKEN_AWAY)
        if self._used + launch.leaves > self._most:
            self.absorb(into)
        work, *rounds, runs = launch.tables(addresses, self._device)
        if len(work):
            self._kernels.read(Chunks(len(work), one, launch.how, work, 0, 0), self._leaves)
        for among_leaves in filter(len, rounds):
            self._kernels.merge(among_leaves, self._leaves, self._leaves)
        self._kernels.merge(runs, self._leaves, into)

    def _chunks(self, tensor: torch.Tensor, how: Reading) -> tuple[int, int]:
        return chunks_of(tensor.numel(), self._kernels.leaves_of(tensor.dtype, how))

    def _merge(self, runs: Sequence[Run], into: Columns) -> None:
        if runs:
            table = self._on_device(tuple(run.words() for run in runs))
            self._kernels.merge(table, self._leaves, into)

    def _on_device(self, table: tuple[tuple[int, ...], ...]) -> torch.Tensor:
        """A table of runs: most are those of the step before, and to send them is slow."""
        known = self._tables.get(table)
        if known is None:
            if len(self._tables) >= TABLES:
                self._tables = {}
            known = self._tables[table] = on_device(table, self._device)
        else:
            keep_for_stream(known)
        return known


def byte_values(dtype: torch.dtype) -> torch.Tensor:
    """float64 [256]: what the bytes of a dtype stand for; of others, which need none, nothing."""
    if dtype.itemsize > 1:
        return torch.zeros(1, dtype=torch.float64)
    return torch.arange(256).to(torch.uint8).view(dtype).double()
