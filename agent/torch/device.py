"""Measuring tensors on an accelerator: an engine queues operations into preallocated buffers.

Nothing is read back in forward or backward. All columns of a step lie in one flat buffer on the
device; at the step's end one asynchronous copy takes it to a pinned host buffer of a small ring,
and the agent's thread asks an event whether it has arrived. The arithmetic is that of
`sketch.table`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from ...sketch.table import ABS_MIN, MAX, MIN, UNSEEN, SketchTable
from ..interruption import Lock
from ..reading import Reading
from ..steptable import StepTable
from .arithmetic import Columns, columns_of, keep_for_stream, row_words
from .counting import Counters, CountsHome, ToCount
from .found import Found
from .sampling import sample_of

RING = 3
"""Host buffers that may be on their way."""


class Engine(Protocol):
    """Queues the arithmetic of one device; sketches wait in it to be merged into a step's rows.

    Its tensors are contiguous, of any shape: a view of one axis would take as long as all else.
    Those that are prepared are so in the order in which they lie in memory.
    """

    def has_room(self, tensor: torch.Tensor, how: Reading, /) -> bool: ...
    def add(self, row: int, tensor: torch.Tensor, how: Reading) -> None: ...
    def prepare(
        self, found: Sequence[Found]
    ) -> Callable[[Sequence[torch.Tensor | None], Columns], None]: ...
    def absorb(self, rows: Columns) -> None: ...


@dataclass(slots=True)
class Copy:
    """One step on its way to the host."""

    host: torch.Tensor
    ready: torch.cuda.Event | None
    rows: list[int]
    unseen: dict[int, int]
    """By row: elements that no sample held."""
    counted: CountsHome | None = None
    """What was counted beside the sketches."""


def is_capturing(device: torch.device) -> bool:
    """Whether operations on a device become part of a CUDA graph, and are not run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def has_passed(event: torch.cuda.Event, device: torch.device) -> bool:
    """Whether an event of a device has passed; asks, never waits."""
    with torch.cuda.device(device):  # else the thread would make a context on the first GPU
        return event.query()


def numbered(device: torch.device) -> torch.device:
    """The device with its number: that of the current one, where it has none."""
    return torch.empty(0, device=device).device


def raw_stream(device: torch.device) -> int:
    """The current stream of a GPU that has its number; 0 is the default one.

    What torch has for the public, `current_stream`, takes 8 us.
    """
    return torch._C._cuda_getCurrentRawStream(device.index)  # pyright: ignore[reportPrivateUsage]


class Streams:
    """Lets one stream of a GPU after the other have what they share.

    To wait for an event and to record it takes longer than all else about a small tensor. As a rule
    all is on the default stream: its event is recorded only when another has its turn. Another may
    be destroyed by whoever made it, and is asked for its event at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = numbered(device)
        self._used = torch.cuda.Event()
        self._is_recorded = True
        self._own: torch.cuda.Stream | None = None
        """That whose turn it is, but for the default one."""

    def begin(self) -> None:
        """It is the turn of the current stream."""
        raw = raw_stream(self._device)
        if not self._is_recorded:
            if raw == 0:
                return
            self._used.record(torch.cuda.default_stream(self._device))
            self._is_recorded = True
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._used)
        self._own = stream if raw else None

    def end(self) -> None:
        """Its turn is over."""
        if self._own is None:
            self._is_recorded = False
        else:
            self._used.record(self._own)
            self._own = None


class DeviceMeter:
    """Summarises tensors of one device; for tensors of the CPU it is the fallback.

    Hooks may run on several threads, and on several streams, that share its scratch.
    """

    def __init__(self, device: torch.device, engine: Engine) -> None:
        self._device, self._engine = device, engine
        self._words = torch.zeros(0, dtype=torch.int64, device=device)
        self._capacity = 0
        self._touched: set[int] = set()
        self._unseen: Counter[int] = Counter()
        self._counters = Counters(device)
        self._hosts: list[torch.Tensor] = []
        self._dropped = 0
        self.stale = 0
        """Tensors that were changed before they could be read: a queue has none."""
        self._lock = Lock()
        self._streams = Streams(device) if device.type == "cuda" else None
        self._is_spoilt = False
        """Whether what is in the rows is nobody's: they are emptied before they are used again."""

    @contextmanager
    def _turn(self) -> Generator[None]:
        """One thread at a time, and one stream after the other."""
        with self._lock:
            if self._streams is not None:
                self._streams.begin()
            if self._is_spoilt:
                self._is_spoilt = False
                self._engine.absorb(self._columns())
                self._clear()
            try:
                yield
            except BaseException:
                # Of a step in which nothing is whole nothing is sent, and nothing is to be left.
                self._is_spoilt = not self._touched
                raise
            finally:
                if self._streams is not None:
                    self._streams.end()

    def add(
        self,
        step: StepTable,
        row: int,
        tensor: torch.Tensor,
        how: Reading,
        to_count: ToCount | None = None,
    ) -> None:
        """Queue the operations that merge `tensor` into its row on the device, and those counts."""
        tensor = tensor.contiguous()
        with self._turn():
            if how.stride > 1:
                sample = sample_of(tensor, how.stride, step.step)
                self._unseen[row] += (tensor.numel() - sample.numel()) * how.copies
                tensor = sample
            self._reserve(row + 1)
            if not self._engine.has_room(tensor, how):
                self._engine.absorb(self._columns())
            self._engine.add(row, tensor, how)
            self._touched.add(row)
            if to_count is not None:
                self._counters.add(row, to_count)

    def can_prepare(self, found: Found) -> bool:
        """Whether a tensor can be one of those that are read together."""
        return found.is_contiguous

    def prepare(
        self, found: Sequence[Found]
    ) -> Callable[[StepTable, Sequence[torch.Tensor | None]], None]:
        """What queues the operations that merge tensors, one for each or None, into their rows."""
        rows, read = [one.row for one in found], self._engine.prepare(found)

        def add(_: StepTable, tensors: Sequence[torch.Tensor | None]) -> None:
            with self._turn():
                self._reserve(max(rows) + 1)
                read(tensors, self._columns())
                there = zip(rows, tensors, strict=True)
                self._touched.update(row for row, tensor in there if tensor is not None)

        return add

    def flush(self) -> None:
        """Nothing: every operation is in the device's queue, which is worked off in order."""

    read_briefs = barrier = flush

    def settle(self, step: StepTable) -> None:
        """Nothing: `receive` brings a step's rows."""

    def send_home(self) -> Copy | None:
        """Start the step's one copy to the host and empty the device's buffer for the next step."""
        if not self._touched:
            return None
        if is_capturing(self._device):
            self._touched, self._unseen, self._is_spoilt = set(), Counter(), True
            self._counters.forget()
            self._dropped += 1
            return None
        with self._turn():
            try:
                self._engine.absorb(self._columns())
                return self._copy(sorted(self._touched))
            finally:
                self._touched, self._unseen = set(), Counter()
                self._counters.forget()
                self._clear()

    def _copy(self, rows: list[int]) -> Copy | None:
        host = self._hosts.pop() if self._hosts else None
        if host is None:
            self._dropped += 1
            return None
        host.copy_(self._words, non_blocking=True)
        counted = self._counters.send_home()
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
        return Copy(host, event, rows, dict(self._unseen), counted)

    def arrived(self, copy: Copy) -> bool:
        """Whether the copy can be read; asks, never waits."""
        return copy.ready is None or has_passed(copy.ready, self._device)

    def receive(self, copy: Copy, step: StepTable) -> None:
        """Merge an arrived copy into the step's table and give its buffer back."""
        rows = np.array(copy.rows, np.intp)
        table = _table(copy.host.numpy().reshape(-1))
        for row, unseen in copy.unseen.items():
            table.counts[row, UNSEEN] += unseen
        step.put(rows, table)
        if copy.counted is not None:
            self._counters.receive(copy.counted, step, set(copy.rows))
        if len(copy.host) == len(self._words):  # else larger ones were made meanwhile
            self._hosts.append(copy.host)

    @property
    def dropped(self) -> int:
        """Steps that were lost: all host buffers were on their way, or they ended in a capture."""
        return self._dropped

    def _reserve(self, rows: int) -> None:
        if rows <= self._capacity:
            return
        old, old_rows = self._words, self._capacity
        # In whole 64s, so that all columns are aligned alike and no kernel is compiled anew.
        self._capacity = max(-(-rows // 64) * 64, 2 * old_rows)
        length = self._capacity * row_words()
        with torch.inference_mode(False):  # else what is made there could be changed only there
            self._words = torch.zeros(length, dtype=torch.int64, device=self._device)
            self._clear()
            if old_rows:
                for new, kept in zip(self._columns(), columns_of(old, old_rows), strict=True):
                    new[:old_rows] = kept
                keep_for_stream(old)
            pin = self._device.type == "cuda"
            self._hosts = [
                torch.empty(length, dtype=torch.int64, device="cpu", pin_memory=pin)
                for _ in range(RING)
            ]

    def _columns(self) -> Columns:
        return columns_of(self._words, self._capacity)

    def _clear(self) -> None:
        _, moments, _, _ = self._columns()
        self._words.zero_()
        for column, identity in ((MIN, torch.inf), (ABS_MIN, torch.inf), (MAX, -torch.inf)):
            moments[:, column] = identity


def _table(words: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> SketchTable:
    counts, moments, checksum, histogram = columns_of(
        torch.from_numpy(words), len(words) // row_words()
    )
    return SketchTable(
        counts.numpy(), moments.numpy(), checksum.numpy().view(np.uint64), histogram.numpy()
    )
