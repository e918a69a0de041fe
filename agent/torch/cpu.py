"""Measuring tensors in the host's memory: batches for the numba kernel, on the agent's thread.

A hook only notes the tensor; the agent's thread reads it while training goes on. What is kept in
memory for it is bounded in bytes: beyond that the hook reads, too. Where torch leaves no core free
for the agent's thread, torch's own threads read what waits, once that is so much (`threads`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from ..interruption import Lock
from ..kernel import Team
from ..reading import Reading
from ..sitebook import SiteBook
from ..steptable import StepTable
from ..strides import runs_of
from .batches import FIXED_BYTES, Batch, Lane, Layout
from .counting import ToCount
from .found import Found
from .threads import team

BATCH_BYTES = 4 << 20
"""A batch is handed on when it holds so much; for torch's threads, `WAITING_BYTES`."""
WAKING_BYTES = 4 << 20
"""The agent's thread is woken when so much waits: to wake it costs the training thread 50 us."""
WAITING_BYTES = 16 << 20
"""Activations and gradients that may wait to be read: they are kept in memory for it."""
SHARED_BYTES = 128 << 10
"""A smaller batch is read sooner than other threads are awake."""
LOOK_S = 0.1
"""Who waits for another thread looks this often by himself."""


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
        parts = [(part, Layout.prepared(part)) for part in self._parts(found)]

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
            batch.sketch(self._team() if batch.size_bytes >= SHARED_BYTES else None)
        except BaseException:  # told by whoever called; the batches behind it must not wait for it
            batch.give_up()
            raise

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
