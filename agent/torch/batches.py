"""Batches of tensors in the host's memory, on their way to be read, checked and merged.

A tensor that changed between hook and reading is found by its version counter. The counter is
looked at from inside a later hook, when no operation can be under way on it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ...sketch.table import UNSEEN, Ints, SketchTable
from ..kernel import DTYPES, Team, absorb, count, cut, sketch_items
from ..reading import Reading
from ..steptable import StepTable
from ..strides import CONTIGUOUS, Runs, runs_of
from .counting import ToCount
from .found import Found
from .local import UNKNOWN, extent_of, has_memory, version_of
from .sampling import sample_of

FIXED_BYTES = 2048
"""What a tensor counts for at least, since each costs a row."""
LOW = 1 << 40
"""An address below it may be the mere distance from one that is 0: there is no memory any more."""
CODES = {getattr(torch, name): code for code, name in enumerate(DTYPES)}
"""What the kernel calls the dtypes that it reads."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How the tensors of a batch lie in memory, and are read."""

    items: Ints
    """int64 [items, ITEM]: the work of the kernel; of addresses the distance from a tensor's."""
    owners: Ints
    """int64 [items]: which tensor each is a piece of."""
    copies: Ints
    """int64 [tensors]: how often each of their elements counts."""

    @classmethod
    def of(cls, tensors: Iterable[tuple[Runs, int, torch.dtype, Reading]]) -> Layout:
        """Of tensors by how they lie in memory, number of elements, dtype and how they are read."""
        items, owners, copies = list[tuple[int, ...]](), list[int](), list[int]()
        for place, (runs, elements, dtype, how) in enumerate(tensors):
            pieces = cut(
                0,
                elements,
                CODES[dtype],
                sentinel=how.sentinel,
                compared=how.compared,
                runs=runs,
                region=how.region,
            )
            items += pieces
            owners += [place] * len(pieces)
            copies.append(how.copies)
        return cls(np.array(items, np.int64), np.array(owners, np.int64), np.array(copies))

    @classmethod
    def prepared(cls, found: Sequence[Found]) -> Layout:
        """Of tensors that were found before; those of which `runs_of` knows nothing are not."""
        return cls.of(
            (runs_of(one.sizes, one.strides) or CONTIGUOUS, one.elements, one.dtype, one.how)
            for one in found
        )

    def of_those(self, there: Sequence[bool]) -> Layout:
        """Of some of the tensors alone."""
        chosen = np.array(there, np.bool_)
        kept, places = chosen[self.owners], np.cumsum(chosen) - 1
        return Layout(self.items[kept], places[self.owners[kept]], self.copies[chosen])

    def sketch(self, addresses: Sequence[int], threads: Team | None) -> SketchTable:
        """A row an item, of tensors at these addresses."""
        items = self.items.copy()
        items[:, 0] += np.array(addresses, np.int64)[self.owners]
        table = sketch_items(items, threads)
        return table.repeat(self.copies[self.owners]) if (self.copies > 1).any() else table


@dataclass(slots=True, eq=False)
class Batch:
    """Tensors of one step that are summarised together."""

    step: StepTable
    rows: list[int] = field(default_factory=list[int])
    tensors: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    """Of parameters other tensors of the same memory: what their `data` is made is not read."""
    versions: list[int] = field(default_factory=list[int])
    readings: list[Reading] = field(default_factory=list[Reading])
    places: dict[int, int] = field(default_factory=dict[int, int])
    """Of the tensors, by their addresses."""
    twins: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Further rows, and the places of their tensors: a module may return what another returned."""
    limit: int = 0
    """It is handed on when it holds so many bytes."""
    size_bytes: int = 0
    begun: bool = False
    """Whether somebody reads it: what is changed now without a new version would not be seen."""
    owners: NDArray[np.int64] | None = None
    """int64 [leaf rows]: which tensor each row of the leaf is a piece of."""
    leaf: SketchTable | None = None
    to_count: dict[int, ToCount] = field(default_factory=dict[int, ToCount])
    """By place of the tensor: what is counted beside."""
    counts: dict[int, Ints] = field(default_factory=dict[int, Ints])
    """By index of the exact_count: what was counted."""
    counted: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list[int]))
    """By index of the exact_count: places of the tensors that were."""
    layout: Layout | None = None
    """Where it is known before."""
    stale: list[int] = field(default_factory=list[int])
    """Places of the tensors that changed before they were read, or whose memory was gone then."""

    def add(self, row: int, tensor: torch.Tensor, how: Reading, to_count: ToCount | None) -> None:
        """Note a tensor and the version it has now."""
        if to_count is not None:
            self.to_count[len(self.tensors)] = to_count
        self.places[tensor.data_ptr()] = len(self.tensors)
        self.readings.append(how)
        self.rows.append(row)
        # Not of a gradient: autograd would take its memory, of which it sees no other holder.
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        self.tensors.append(tensor.detach() if is_parameter else tensor)
        self.versions.append(version_of(tensor))
        self.size_bytes += max(tensor.nbytes, FIXED_BYTES)

    @classmethod
    def prepared(
        cls,
        step: StepTable,
        found: Sequence[Found],
        layout: Layout,
        tensors: Sequence[torch.Tensor | None],
    ) -> Batch | None:
        """Of tensors whose layout is known, as far as they are there; None for none."""
        there = [tensor is not None for tensor in tensors]
        if not all(there):
            if not any(there):
                return None
            layout = layout.of_those(there)
        batch = cls(step, layout=layout)
        batch.tensors = [tensor.detach() for tensor in tensors if tensor is not None]
        batch.rows = [one.row for one, is_there in zip(found, there, strict=True) if is_there]
        batch.versions = [version_of(tensor) for tensor in batch.tensors]
        sizes = (tensor.nbytes for tensor in batch.tensors)
        batch.size_bytes = sum(max(size, FIXED_BYTES) for size in sizes)
        return batch

    def add_twin(self, row: int, tensor: torch.Tensor, how: Reading) -> bool:
        """Let `row` share a sketch, if this tensor waits here already and did not change since."""
        place = self.places.get(tensor.data_ptr())
        if place is None or self.begun:
            return False
        known, version = self.tensors[place], version_of(tensor)
        same = (
            version != UNKNOWN
            and known.dtype == tensor.dtype
            and known.shape == tensor.shape
            and known.stride() == tensor.stride()
            and self.readings[place] == how
            and self.versions[place] == version
        )
        if same:
            self.twins.append((row, place))
        return same

    def sketch(self, threads: Team | None) -> None:
        """Read the tensors, and count what is to be counted beside."""
        addresses = [tensor.data_ptr() for tensor in self.tensors]
        there = [
            address >= LOW or has_memory(tensor, extent_of(tensor))
            for address, tensor in zip(addresses, self.tensors, strict=True)
        ]
        places = np.flatnonzero(there).tolist()
        if len(places) < len(there):
            self.stale = np.flatnonzero(np.logical_not(there)).tolist()
        if not places:
            self.give_up()
        elif self.layout is None:
            owners, leaf = self._sketch_apart(places, threads)
            self.count()
            self.owners, self.leaf = owners, leaf
        else:
            layout = self.layout.of_those(there) if self.stale else self.layout
            leaf = layout.sketch([addresses[place] for place in places], threads)
            self.owners, self.leaf = np.array(places, np.int64)[layout.owners], leaf

    def _sketch_apart(
        self, places: Sequence[int], threads: Team | None
    ) -> tuple[Ints, SketchTable]:
        """Read the tensors at those places, of which nothing was known before."""
        ways, step = [self.readings[place] for place in places], self.step.step
        pairs = zip(places, ways, strict=True)
        # They stay alive here.
        tensors, runs = zip(
            *(_elements(self.tensors[place], how, step) for place, how in pairs), strict=True
        )
        sizes = [tensor.numel() for tensor in tensors]
        dtypes = [tensor.dtype for tensor in tensors]
        layout = Layout.of(zip(runs, sizes, dtypes, ways, strict=True))
        leaf = layout.sketch([tensor.data_ptr() for tensor in tensors], threads)
        for number, (place, how) in enumerate(zip(places, ways, strict=True)):
            if how.stride > 1:
                first = int(np.searchsorted(layout.owners, number))
                unseen = self.tensors[place].numel() - sizes[number]
                leaf.counts[first, UNSEEN] = unseen * how.copies
        return np.array(places, np.int64)[layout.owners], leaf

    def give_up(self) -> None:
        """It holds nothing."""
        self.counts = {}
        self.owners, self.leaf = np.zeros(0, np.int64), SketchTable.empty(0)

    def check(self) -> None:
        """Find the tensors that have another version now, and let go of all; once."""
        if not self.tensors:
            return
        now = [version_of(tensor) for tensor in self.tensors]
        if now != self.versions:
            pairs = enumerate(zip(now, self.versions, strict=True))
            changed = (place for place, (new, old) in pairs if new != old)
            self.stale = sorted({*self.stale, *changed})
        self.tensors, self.to_count = [], {}

    def merge(self) -> None:
        """Merge what was read and did not change into the step's table."""
        assert self.leaf is not None
        assert self.owners is not None
        intact = np.ones(len(self.rows), np.bool_)
        intact[self.stale] = False
        rows, keep = np.array(self.rows, np.int64)[self.owners], intact[self.owners]
        self.step.absorb(rows, self.leaf, keep, absorb)
        for row, place in self.twins:
            pieces = np.flatnonzero(self.owners == place)
            rows = np.full(len(pieces), row)
            self.step.absorb(rows, self.leaf.take(pieces), keep[pieces], absorb)
        for index, counts in self.counts.items():
            if intact[self.counted[index]].all():
                self.step.count(index, counts)

    def count(self) -> None:
        """Count what is to be counted beside, on one thread."""
        for place, asked in self.to_count.items():
            for index, _ in asked.what:
                self.counted[index].append(place)
            if place in self.stale:
                continue
            tensor = asked.tensor.contiguous()
            for index, exact_count in asked.what:
                counts = count(exact_count, tensor.data_ptr(), tensor.shape, CODES[tensor.dtype])
                counts *= asked.copies
                self.counts[index] = counts + self.counts.get(index, 0)

    def stale_rows(self) -> list[int]:
        """The rows of the tensors that changed."""
        twins = [row for row, place in self.twins if place in self.stale]
        return [self.rows[place] for place in self.stale] + twins


@dataclass(slots=True)
class Lane:
    """Batches on their way to be read, and then, in order, to be checked."""

    open: Batch | None = None
    waiting: deque[Batch] = field(default_factory=deque[Batch])
    unchecked: deque[Batch] = field(default_factory=deque[Batch])
    waiting_bytes: int = 0

    def add_twin(self, step: StepTable, row: int, tensor: torch.Tensor, how: Reading) -> bool:
        """`Batch.add_twin` of the open batch or of the last before it."""
        batch = self.open
        if batch is not None and batch.step is step and batch.add_twin(row, tensor, how):
            return True
        batch = self.unchecked[-1] if self.unchecked else None
        return batch is not None and batch.step is step and batch.add_twin(row, tensor, how)

    def close(self, *, wait: bool) -> Batch | None:
        """End the open batch and return it; it waits to be read unless the caller does that."""
        batch, self.open = self.open, None
        if batch is not None:
            self.unchecked.append(batch)
            batch.begun = not wait
            if wait:
                self.waiting.append(batch)
                self.waiting_bytes += batch.size_bytes
        return batch

    def next(self) -> Batch | None:
        """The batch that has waited longest; it does not wait any more."""
        if not self.waiting:
            return None
        batch = self.waiting.popleft()
        batch.begun = True
        self.waiting_bytes -= batch.size_bytes
        return batch

    def give_up(self, step: StepTable) -> None:
        """Leave out what nobody reads, because the training thread was interrupted when it took it.

        To be called when no thread is at a batch of that step.
        """
        for batch in self.unchecked:
            if batch.step is step and batch.leaf is None and batch not in self.waiting:
                batch.give_up()

    def checked(self, step: StepTable | None) -> Iterator[Batch]:
        """Those at the head that were read, after their check; if given, of that step alone."""
        while self.unchecked and self.unchecked[0].leaf is not None:
            if step is not None and self.unchecked[0].step is not step:
                return
            batch = self.unchecked.popleft()
            batch.check()
            yield batch


def _elements(tensor: torch.Tensor, how: Reading, step: int) -> tuple[torch.Tensor, Runs]:
    """What is to be read of a tensor, and how it lies in memory."""
    # Most are contiguous, and torch knows sooner.
    whole = tensor.is_contiguous()
    runs = CONTIGUOUS if whole else runs_of(tensor.shape, tensor.stride())
    if runs is None or (runs != CONTIGUOUS and how.stride > 1):
        tensor, runs = tensor.contiguous(), CONTIGUOUS
    return (sample_of(tensor, how.stride, step), runs) if how.stride > 1 else (tensor, runs)
