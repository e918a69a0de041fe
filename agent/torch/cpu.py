"""Measuring tensors in the host's memory: batches for the numba kernel, on the agent's thread.

A hook only notes the tensor; the agent's thread reads it while training goes on. What is kept in
memory for it is bounded in bytes: beyond that the hook reads, too. Where torch leaves no core free
for the agent's thread, torch's own threads read what waits, once that is so much (`threads`).

A tensor that changed between hook and reading is found by its version counter. The counter is
looked at from inside a later hook, when no operation can be under way on it.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ...sketch.table import UNSEEN, Ints, SketchTable
from ..interruption import Lock
from ..kernel import (
    DTYPES,
    Team,
    absorb,
    count,
    cut,
    sketch_items,
)
from ..reading import Reading
from ..sitebook import SiteBook
from ..steptable import StepTable
from ..strides import CONTIGUOUS, Runs, runs_of
from .counting import ToCount
from .found import Found
from .local import UNKNOWN, version_of
from .sampling import sample_of
from .threads import team

BATCH_BYTES = 2 << 20
"""A batch is handed on when it holds so much; for torch's threads, `WAITING_BYTES`."""
WAKING_BYTES = 4 << 20
"""The agent's thread is woken when so much waits: to wake it costs the training thread 50 us."""
WAITING_BYTES = 16 << 20
"""Activations and gradients that may wait to be read: they are kept in memory for it."""
SHARED_BYTES = 128 << 10
"""A smaller batch is read sooner than other threads are awake."""
LOOK_S = 0.1
"""Who waits for another thread looks this often by himself."""
FIXED_BYTES = 2048
"""What a tensor counts for at least, since each costs a row."""
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
    """Places of the tensors that changed before they were read."""

    def add(self, row: int, tensor: torch.Tensor, how: Reading, to_count: ToCount | None) -> None:
        """Note a tensor and the version it has now."""
        if to_count is not None:
            self.to_count[len(self.tensors)] = to_count
        self.places[tensor.data_ptr()] = len(self.tensors)
        self.readings.append(how)
        self.rows.append(row)
        self.tensors.append(tensor)
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
        batch.tensors = [tensor for tensor in tensors if tensor is not None]
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
            self.stale = [place for place, (new, old) in pairs if new != old]
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
            tensor = asked.tensor.contiguous()
            for index, exact_count in asked.what:
                counts = count(exact_count, tensor.data_ptr(), tensor.shape, CODES[tensor.dtype])
                counts *= asked.copies
                self.counts[index] = counts + self.counts.get(index, 0)
                self.counted[index].append(place)

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


class CpuMeter:
    """Summarises host tensors into the step table that is open.

    A batch waits to be read, then for the look at its tensors' versions on the training thread,
    then to be merged on the agent's. Weights and optimizer state, which are in memory anyway, wait
    apart from what is kept for this alone.

    Args:
        book: told of rows that must be read at once.
        submit: hands a job to the agent's thread.
    """

    def __init__(self, book: SiteBook, submit: Callable[[Callable[[], object]], None]) -> None:
        self._book = book
        self._submit = submit
        self._passing, self._lasting = Lane(), Lane()
        self._briefs: list[Batch] = []
        """Tensors that stay only until `read_briefs`."""
        self._unmerged: deque[Batch] = deque()
        self._reading: list[Batch] = []
        """Batches that are being read, each by another thread."""
        self._awake = False
        """Whether the agent's thread was told to read, and has not run out of batches since."""
        # Entered as it is, and not by the condition, whose own code a signal could interrupt.
        self._lock = Lock()
        self._read_some = threading.Condition(self._lock)
        self._trains = 0
        """The thread that trains."""
        self.stale = 0
        """Tensors that changed before they were read, and were left out."""

    def add(
        self,
        step: StepTable,
        row: int,
        tensor: torch.Tensor,
        how: Reading,
        to_count: ToCount | None = None,
    ) -> None:
        """Summarise `tensor` into its row, now or soon, and count what is to be counted beside."""
        lane = self._lasting if how.lasting else self._passing
        self._trains = threading.get_ident()
        if how.brief:
            batch = Batch(step)
            batch.add(row, tensor, how, to_count)
            self._briefs.append(batch)
            return
        at_once = row in self._book.synchronous
        with self._lock:
            alone = at_once or to_count is not None
            if not alone and lane.add_twin(step, row, tensor, how):
                return
            # Only now: what is noted next is often the same tensor.
            full = lane.open is not None and lane.open.size_bytes >= lane.open.limit
            if full:
                lane.close(wait=True)
            if lane.open is None:
                lane.open = Batch(step, limit=WAITING_BYTES if self._team() else BATCH_BYTES)
            try:
                lane.open.add(row, tensor, how, to_count)
            except BaseException:  # interrupted in the middle of it, as by Ctrl-C
                lane.open = None
                raise
            if not at_once and lane.open.size_bytes >= WAITING_BYTES:
                lane.close(wait=True)
                full = True
        if at_once:
            self._read_now(lane)
        elif full:
            self._work_off()

    def can_prepare(self, found: Found) -> bool:
        """Whether a tensor can be one of those that are noted together."""
        return (
            runs_of(found.sizes, found.strides) is not None
            and found.row not in self._book.synchronous
        )

    def prepare(
        self, found: Sequence[Found]
    ) -> Callable[[StepTable, Sequence[torch.Tensor | None]], None]:
        """What notes tensors, one for each or None, to be read now or soon."""
        parts = [(part, Layout.of(map(_lies, part))) for part in self._parts(found)]

        def add(step: StepTable, tensors: Sequence[torch.Tensor | None]) -> None:
            self._trains = threading.get_ident()
            begin = 0
            for part, layout in parts:
                batch = Batch.prepared(step, part, layout, tensors[begin : begin + len(part)])
                begin += len(part)
                if batch is not None:
                    self._note(batch, part[0].how)
            if not found[0].how.brief:
                self._work_off()

        return add

    def _parts(self, found: Sequence[Found]) -> Iterator[Sequence[Found]]:
        """Batches of them."""
        most = WAITING_BYTES if self._team() else BATCH_BYTES
        begin = held = 0
        for end, one in enumerate(found, 1):
            held += max(one.elements * one.dtype.itemsize, FIXED_BYTES)
            if held >= most or end == len(found):
                yield found[begin:end]
                begin, held = end, 0

    def _note(self, batch: Batch, how: Reading) -> None:
        """Let a batch wait to be read; all of it is read alike."""
        if how.brief:
            self._briefs.append(batch)
            return
        lane = self._lasting if how.lasting else self._passing
        with self._lock:
            lane.close(wait=True)
            lane.open = batch
            lane.close(wait=True)

    def read_briefs(self) -> None:
        """Read what stays no longer, on the training thread."""
        briefs, self._briefs = self._briefs, []
        for batch in briefs:
            self._read(batch)
            batch.check()
            self._unmerged.append(batch)

    def flush(self) -> None:
        """Hand on what was noted, and check what was read, on the training thread."""
        try:
            self._hand_on(self._passing)
        finally:
            self._hand_on(self._lasting)

    def barrier(self) -> None:
        """Return when everything noted so far is read: its tensors may then be changed."""
        with self._lock:
            for lane in (self._passing, self._lasting):
                lane.close(wait=True)
        if self._team() is None:
            self._wake()
        while self._read_one():
            pass
        with self._lock:
            self._wait_for(lambda: not self._reading)
        self._check()

    def settle(self, step: StepTable) -> None:
        """Merge all of a step whose tensors cannot change any more, on the agent's thread."""
        self._read_all()
        with self._lock:  # the training thread may be at one: it reads along where it must wait
            self._wait_for(lambda: all(batch.step is not step for batch in self._reading))
            for lane in (self._passing, self._lasting):
                lane.give_up(step)
        self._check(step)
        self._merge()

    def _wait_for(self, done: Callable[[], bool]) -> None:
        """Until another thread has read enough; a signal may keep it from telling."""
        while not self._read_some.wait_for(done, LOOK_S):
            pass

    def _read_now(self, lane: Lane) -> None:
        """Read the open batch before the return."""
        batch = None
        try:
            with self._lock:
                batch = lane.close(wait=False)
                if batch is not None:
                    self._reading.append(batch)
            if batch is not None:
                self._read(batch)
                batch.check()  # others may still be waiting before it
        finally:
            if batch in self._reading:
                self._reading.remove(batch)
            with self._lock:
                self._read_some.notify_all()
        self._check()

    def _hand_on(self, lane: Lane) -> None:
        """End the open batch."""
        with self._lock:
            lane.close(wait=True)
        self._work_off()

    def _work_off(self) -> None:
        """Torch's threads read what waits now, if they shall, or the agent's soon."""
        with self._lock:
            held = self._passing.waiting_bytes
            waiting = held + self._lasting.waiting_bytes
        at_once = self._team() is not None
        if at_once:
            while self._read_one():
                pass
        elif held >= WAITING_BYTES:
            self._read_one()
        elif waiting >= WAKING_BYTES:
            self._wake()
        self._check()
        if at_once and self._unmerged:
            self._submit(self._merge)

    def _team(self) -> Team | None:
        """Torch's threads, if they shall read: they stand behind the thread that trains alone."""
        return team() if threading.get_ident() == self._trains else None

    def _wake(self) -> None:
        with self._lock:
            wake = not self._awake and bool(self._passing.waiting or self._lasting.waiting)
            self._awake |= wake
        if wake:
            self._submit(self._read_all)

    def _read_all(self) -> None:
        """Read what waits, and merge what was checked, on the agent's thread."""
        while self._read_one():
            self._merge()

    def _read_one(self) -> bool:
        """Read the batch that has waited longest, of those kept for this first; False for none."""
        batch = None
        try:
            with self._lock:
                batch = self._passing.next() or self._lasting.next()
                if batch is None:
                    self._awake = False
                    return False
                self._reading.append(batch)
            self._read(batch)
        finally:  # here, and not in a function: a second signal could come before its first line
            if batch in self._reading:
                self._reading.remove(batch)
            with self._lock:
                self._read_some.notify_all()
        return True

    def _read(self, batch: Batch) -> None:
        try:
            self._sketch(batch, self._team() if batch.size_bytes >= SHARED_BYTES else None)
        except BaseException:  # told by whoever called; the batches behind it must not wait for it
            batch.give_up()
            raise

    @staticmethod
    def _sketch(batch: Batch, threads: Team | None) -> None:
        if batch.layout is not None:
            addresses = [tensor.data_ptr() for tensor in batch.tensors]
            leaf = batch.layout.sketch(addresses, threads)
            batch.owners, batch.leaf = batch.layout.owners, leaf
            return
        ways, step = batch.readings, batch.step.step
        pairs = zip(batch.tensors, ways, strict=True)
        # They stay alive here.
        tensors, runs = zip(*(_elements(tensor, how, step) for tensor, how in pairs), strict=True)
        sizes = [tensor.numel() for tensor in tensors]
        dtypes = [tensor.dtype for tensor in tensors]
        layout = Layout.of(zip(runs, sizes, dtypes, ways, strict=True))
        leaf = layout.sketch([tensor.data_ptr() for tensor in tensors], threads)
        for place, how in enumerate(ways):
            if how.stride > 1:
                first = int(np.searchsorted(layout.owners, place))
                unseen = batch.tensors[place].numel() - sizes[place]
                leaf.counts[first, UNSEEN] = unseen * how.copies
        batch.count()
        batch.owners, batch.leaf = layout.owners, leaf

    def _check(self, step: StepTable | None = None) -> None:
        with self._lock:
            for lane in (self._passing, self._lasting):
                for batch in lane.checked(step):
                    stale = batch.stale_rows()
                    self.stale += len(stale)
                    self._book.synchronous.update(stale)
                    self._unmerged.append(batch)

    def _merge(self) -> None:
        while self._unmerged:
            self._unmerged.popleft().merge()


def _lies(one: Found) -> tuple[Runs, int, torch.dtype, Reading]:
    """How a tensor lies in memory, its number of elements, its dtype and how it is read."""
    return runs_of(one.sizes, one.strides) or CONTIGUOUS, one.elements, one.dtype, one.how


def _elements(tensor: torch.Tensor, how: Reading, step: int) -> tuple[torch.Tensor, Runs]:
    """What is to be read of a tensor, and how it lies in memory."""
    runs = runs_of(tensor.shape, tensor.stride())
    if runs is None or (runs != CONTIGUOUS and how.stride > 1):
        tensor, runs = tensor.contiguous(), CONTIGUOUS
    return (sample_of(tensor, how.stride, step), runs) if how.stride > 1 else (tensor, runs)
