"""Makes what one run has gathered durable, one commit after the other, on a thread of its own.

Messages are taken in meanwhile, however long a commit takes. One that fails is kept and tried
again, unchanged; after each that works the store does a piece of its housekeeping.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ..sketch.errors import BusyError, GoneError, StoreError
from ..store.record import Event
from ..store.repository import first_line
from ..store.writer import RunWriter
from ..wire.complaints import Complaints
from .joiner import Batch
from .settings import CollectorSettings

logger = logging.getLogger(__name__)


MAX_TOLD = 64
"""Events of one commit about quantities that are not known; their numbers are NaN all the same."""


@dataclass(slots=True)
class _Commit:
    batch: Batch
    cursors: Mapping[str, int]
    is_read: bool = False
    """Whether its quantities are."""


class Commits:
    """The commits of one run.

    Args:
        writer: the only one of its store; between `begin` and `close` it belongs to the thread, but
            for its catalog.
    """

    def __init__(self, writer: RunWriter, settings: CollectorSettings) -> None:
        self.stored: dict[str, int] = writer.streams
        """By stream the sequence number up to which all is durable."""
        self.failing = ""
        """Why the last commit did not work; empty if it did."""
        self.last_s = 0.0
        """How long the last commit took."""
        self._writer = writer
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rankscope-store")
        self._commit: _Commit | None = None
        """What is not durable yet: under way, or waiting for another try."""
        self._result: Future[None] | None = None
        self._housekeeping: Future[None] | None = None
        self._unknown: set[tuple[int, int]] = set()
        """Attempts and quantities of which was told that they are not known."""
        self._next_try = 0.0
        self._failures = 0
        self._complaints = Complaints(logger)

    @property
    def is_busy(self) -> bool:
        """Whether the thread has something to do."""
        return self._result is not None or self._housekeeping is not None

    @property
    def is_free(self) -> bool:
        """Whether the next commit may begin: all before it are durable, nothing is under way."""
        return self._commit is None and not self.is_busy

    @property
    def held_bytes(self) -> int:
        """What the records take that are not durable yet."""
        return 0 if self._commit is None else self._commit.batch.size_bytes

    def begin(self, batch: Batch, cursors: Mapping[str, int]) -> None:
        """Make a batch durable, and where streams stand with it; call it only when free."""
        self._commit = _Commit(batch, cursors)
        self._try(self._commit)

    def take(self, now: float) -> Batch | None:
        """What has become durable since the last call; what failed is tried again in its time.

        Raises:
            StoreError: a commit failed; it is kept for another try.
            BusyError: another collector has taken the run over; nothing more can be stored here.
            GoneError: its store was moved or deleted, likewise.
        """
        if self._housekeeping is not None and self._housekeeping.done():
            problem, self._housekeeping = self._housekeeping.exception(), None
            if problem is not None:
                text = f"Run {self._writer.run!r} could not be compacted: {first_line(problem)}"
                self._complaints.say("compaction", text, now)
        if self._commit is None:
            return None
        if self._result is not None and self._result.done():
            result, self._result = self._result, None
            return self._conclude(self._commit, result, now)
        if not self.is_busy and now >= self._next_try:
            self._try(self._commit)
        return None

    def wait(self) -> None:
        """Let what is under way come to its end, and try once more what had failed."""
        if self._commit is not None and self._result is None:
            self._try(self._commit)
        for future in (self._result, self._housekeeping):
            if future is not None:
                future.exception()

    def close(self) -> None:
        """Wait for what is under way; the writer is free again."""
        self._thread.shutdown()

    def _try(self, commit: _Commit) -> None:
        self._result = self._thread.submit(self._store, commit)
        self._housekeeping = self._thread.submit(self._keep_house, self._result)

    def _conclude(self, commit: _Commit, result: Future[None], now: float) -> Batch:
        problem = result.exception()
        if isinstance(problem, BusyError | GoneError):
            raise problem  # there is nothing to wait for
        if problem is not None:  # whatever the store's engine raises: the batch stays here
            self._failures += 1
            self._next_try = now + self._settings.retry_s * min(2 ** (self._failures - 1), 4)
            self.failing = f"Run {self._writer.run!r} cannot be stored: {problem}"
            raise StoreError(self.failing) from problem
        if self._failures:
            logger.info("Run %r can be stored again.", self._writer.run)
        self._failures, self._commit, self.failing = 0, None, ""
        self.stored |= commit.cursors
        return commit.batch

    # On the thread -------------------------------------------------------------------------------

    def _store(self, commit: _Commit) -> None:
        batch, began = commit.batch, time.monotonic()
        if not commit.is_read:
            batch.events += self._read_quantities(batch)
            commit.is_read = True
        self._writer.commit(
            batch.records,
            streams=commit.cursors,
            events=batch.events,
            alerts=batch.alerts,
            rank_frames=batch.rank_frames,
            judged=batch.judged,
            learnt=batch.learnt,
        )
        self.last_s = time.monotonic() - began

    def _read_quantities(self, batch: Batch) -> list[Event]:
        """Take spectra, which may last; why a quantity is not known is told once a start."""
        told = list[Event]()
        quantities = self._writer.catalog.meta.quantities
        for record in batch.records:
            for index, reason in record.derived.numbers().reasons.items():
                key = record.attempt, index
                if key not in self._unknown and len(told) < MAX_TOLD:
                    self._unknown.add(key)
                    text = f"{quantities[index].label} is not known: {reason}."
                    told.append(
                        Event(
                            kind="quantity-unknown",
                            attempt=record.attempt,
                            rank=-1,
                            step=record.step,
                            text=text,
                            time_ns=record.time_ns,
                        )
                    )
        return told

    def _keep_house(self, result: Future[None]) -> None:
        if result.exception() is None:
            self._writer.compact_if_due(keep=self._settings.keep_records)
