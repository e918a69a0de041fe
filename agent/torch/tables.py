"""What kernels are told: which elements to read into which leaf, and which leaves to merge.

A tensor is read in chunks, each into a leaf of its own; its run of leaves is merged into its row,
so many at a time and always in the same order. What is read together step after step has its
tables kept, on the device, too, for as long as the tensors stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from ...sketch.elements import BLOCK, Region
from ..reading import Reading
from .arithmetic import keep_for_stream, on_device
from .found import Found

FAN = 20
"""Leaves that one program merges, one after the other: so many that those of a large tensor, 3 for
each of a GPU's 132 multiprocessors, take two launches."""
WORK = 7
"""Words of a table of work: address of the tensor, first element and end of the chunk, leaf; and of
a piece its region."""
RUN = 5
"""Words of a table of runs: row to merge into, first leaf, end, their distance, and copies."""
NOT_THERE = -1
"""Stands for the address of a tensor that is not there in a step."""


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

    def words(self) -> tuple[int, ...]:
        """A row of a table of runs."""
        return self.row, self.first, self.end, self.stride, self.copies


def rounds_of(runs: Sequence[Run]) -> tuple[list[list[tuple[int, Run]]], list[Run]]:
    """The merges among leaves that must go before, each with the place of its run; what is left."""
    rounds: list[list[tuple[int, Run]]] = []
    while any(len(run) > FAN for run in runs):
        rounds.append([(place, part) for place, run in enumerate(runs) for part in _parts(run)])
        runs = [_merged(run) for run in runs]
    return rounds, list(runs)


class Together:
    """Tensors of one dtype, read alike, that one launch reads.

    Args:
        found: the tensors, with their places in the group; not all need be there in each step.
        leaves_of_tensor: that one of them may have.
        most: leaves; they take the last of them.
    """

    def __init__(
        self, found: Sequence[tuple[int, Found]], *, leaves_of_tensor: int, most: int
    ) -> None:
        self.places = [place for place, _ in found]
        self.how: Reading = found[0][1].how
        self.elements = [one.elements for _, one in found]
        self.leaves = sum(chunks_of(one.elements, leaves_of_tensor)[1] for _, one in found)
        work, runs, owners = list[tuple[int, ...]](), list[Run](), list[int]()
        for number, (_, one) in enumerate(found):
            first = most - self.leaves + len(work)
            work += _work(one, first, leaves_of_tensor)
            end = most - self.leaves + len(work)
            owners += [number] * (end - first)
            runs.append(Run(one.row, first, end, 1, one.how.copies))
        rounds, left = rounds_of(runs)
        self._owners = np.array(owners, np.int64)
        self._tables = [(_table(work, WORK), self._owners)]
        for one in (*rounds, list(enumerate(left))):
            table = _table([run.words() for _, run in one], RUN)
            self._tables.append((table, np.array([place for place, _ in one])))
        self._kept = np.full(len(found), NOT_THERE), list[torch.Tensor]()
        """Where the tensors were, and the tables for it: one, for a signal may come between two."""

    def moved(self, addresses: NDArray[np.int64]) -> Sequence[int]:
        """Which tensors are elsewhere than they were the last time."""
        return np.flatnonzero(addresses != self._kept[0]).tolist()

    def tables(self, addresses: NDArray[np.int64], device: torch.device) -> list[torch.Tensor]:
        """The table of work; those of runs that are merged among leaves; that of runs for rows.

        Args:
            addresses: int64 [tensors]; `NOT_THERE` for those that are left out.
            device: where the tables are needed.
        """
        known, tables = self._kept
        if not tables or not np.array_equal(addresses, known):
            is_there = addresses != NOT_THERE
            words = [table[is_there[owners]] for table, owners in self._tables]
            words[0][:, 0] = addresses[self._owners[is_there[self._owners]]]
            tables = [on_device(table, device) for table in words]
            self._kept = addresses, tables
        else:
            for table in tables:
                keep_for_stream(table)
        return tables


def together(
    found: Sequence[Found], *, leaves_of: Callable[[torch.dtype, Reading], int], most: int
) -> Iterator[Together]:
    """Few launches that read tensors, each of one dtype, read alike, of no more leaves than `most`.

    `leaves_of` says how many one may have of a dtype that is read so: not above `most`.
    """
    alike: dict[object, list[tuple[int, Found]]] = {}
    for place, one in enumerate(found):
        how = one.how
        key = one.dtype, how.sentinel, how.compared, how.region is None
        alike.setdefault(key, []).append((place, one))
    for ones in alike.values():
        mine, leaves = list[tuple[int, Found]](), 0
        leaves_of_tensor = leaves_of(ones[0][1].dtype, ones[0][1].how)
        for place, one in ones:
            chunks = chunks_of(one.elements, leaves_of_tensor)[1]
            if mine and leaves + chunks > most:
                yield Together(mine, leaves_of_tensor=leaves_of_tensor, most=most)
                mine, leaves = [], 0
            mine.append((place, one))
            leaves += chunks
        yield Together(mine, leaves_of_tensor=leaves_of_tensor, most=most)


@lru_cache(maxsize=4096)  # a step has the same sizes as the one before
def chunks_of(length: int, leaves: int) -> tuple[int, int]:
    """Elements a chunk, so many that a tensor has no more chunks than leaves; and its chunks."""
    size = max(-(-length // (leaves * BLOCK)), 1) * BLOCK
    return size, -(-length // size)


def numbers_of(region: Region | None) -> tuple[int, int, int]:
    """Origin, run and pitch; of what is no piece numbers that nobody reads."""
    return (0, 1, 1) if region is None else (region.origin, region.run, region.pitch)


def _work(one: Found, first: int, leaves_of_tensor: int) -> Iterator[tuple[int, ...]]:
    """Rows of a table of work, without the address."""
    region, length = numbers_of(one.how.region), one.elements
    size, _ = chunks_of(length, leaves_of_tensor)
    for place, start in enumerate(range(0, length, size)):
        yield 0, start, min(start + size, length), first + place, *region


def _table(rows: Sequence[tuple[int, ...]], words: int) -> NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(-1, words)


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
