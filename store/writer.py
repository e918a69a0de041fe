"""The one writer of a run. Each commit is one transaction: records, logs and stream positions.

Its one rule: what fails leaves no trace. The writer's own state moves on only after the commit, and
a commit goes on top of its own last snapshot or is not made: a writer that was taken for dead can
store nothing beside the one that took its place.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import icechunk
import numpy as np

from ..sketch.errors import GoneError, NotARunError, StoreError
from . import compaction, pyramid, retention
from .arrays import Arrays
from .catalog import Catalog
from .chunks import read_regions
from .cleaning import Cleaner
from .ending import lost_ranks
from .head import Head
from .incidents import by_identity
from .lease import Lease
from .lock import WriterLock, lock_file
from .naming import holds_repository, is_vacant, what_is_at
from .pack import consecutive, dims_for
from .place import ObjectUrl, Place, place_of
from .rank_frames import SCHEMAS, read_schemas
from .rank_frames import append as append_frames
from .reader import Reader
from .record import Alert, Event, RankFrames, Record
from .replay import replay
from .repository import (
    BRANCH,
    AttributeWriter,
    begin_run,
    create_repository,
    is_blank,
    open_repository,
    read_meta,
    read_snapshot,
    reading,
    reason,
    wrong_clock,
)
from .selection import ATTEMPT, STEP
from .state import Meta, State, alert_from_json
from .transaction import append_entries, write_records
from .validate import check_records

FINISH_RETENTION_S = 30.0
"""How long readers of a run that has just finished may go on with an older snapshot."""


Batch = tuple[object, ...]
"""All records, events and alerts of one call of `RunWriter.commit`."""


class RunWriter:
    """Writes one run. Open it with `RunWriter.open`.

    Its methods are called one at a time, on any thread; its `catalog` may be used meanwhile.
    """

    def __init__(
        self, path: Place, run: str, lock: WriterLock | Lease, repository: icechunk.Repository
    ) -> None:
        session = repository.readonly_session(BRANCH)
        snapshot = read_snapshot(path, repository, session)
        if snapshot.run != run:
            raise StoreError(
                f"{path} holds run {snapshot.run!r}, not {run!r}; "
                "choose another --store or run name."
            )
        self.path = path
        """Where the run lies."""
        self.run = run
        """Its name."""
        self._lock = lock
        self._repository = repository
        self._head = Head(path, repository, snapshot.id)
        self._unsure: Callable[[], None] | None = None
        """Takes over a transaction whose commit failed, should it have been done all the same."""
        self._landed: Batch = ()
        """What was committed by a call that failed: it will come again."""
        self._cleaner = Cleaner(repository, is_remote=isinstance(path, ObjectUrl))
        self._state = snapshot.state
        self._streams = snapshot.streams
        self._stored_meta = read_meta(session.store)
        self.catalog = Catalog(run, self._stored_meta)
        """Its sites, exact counts and attempts, which grow beside the commits."""
        self._arrays = Arrays(session.store)
        self._dims = self._arrays.dims() if snapshot.state.created else {}
        self._alerts = by_identity(map(alert_from_json, self._log("alerts")))
        self._schemas = set(read_schemas(self._log(SCHEMAS)))
        """Hashes of those that are stored."""
        self._making: tuple[int, int] | None = None
        """The stretch of the pyramid of which some pieces are made, and how many sites there were.

        Not stored: who opens the store again begins the stretch again."""
        self._pieces_made = 0
        self._state_writer = AttributeWriter(session.store, "state")
        self._meta_writer = AttributeWriter(session.store, "meta")

    @classmethod
    def open(cls, path: str | Place, *, run: str, wait_s: float = 0.0) -> Self:
        """Create the run's store, or go on with it.

        Args:
            path: A folder that is missing, empty or holds this run, or the URL of such a one.
            run: Name of the run.
            wait_s: How long to wait until another process lets go of a folder.

        Raises:
            BusyError: another process writes to it.
            NotARunError: the path holds something else.
            StoreError: it holds another run, or cannot be written.
        """
        place = place_of(path)
        if isinstance(place, ObjectUrl):
            return cls._open_url(place, run)
        make_folder(place)
        lock = WriterLock(place, wait_s)
        try:
            with reading(place):
                return cls(place, run, lock, ready_repository(place, run))
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open_url(cls, url: ObjectUrl, run: str) -> Self:
        check_vacant(url)
        try:
            repository = any_repository(url)
            lease = Lease(url, repository)
            try:
                if is_blank(repository):
                    begin_run(repository, run)
                writer = cls(url, run, lease, repository)
                # From here on nothing that a holder before us still has in hand can be committed.
                writer._transact(lambda _, state: state, "A new writer")
            except BaseException:
                lease.release()
                raise
        except icechunk.IcechunkError as error:
            raise StoreError(f"Cannot write to {url}: {reason(url, error)}") from error
        return writer

    @property
    def streams(self) -> dict[str, int]:
        """Sequence number that is committed, by stream."""
        return dict(self._streams)

    @property
    def next_record(self) -> int:
        """The index of the next record to append."""
        return self._state.records

    def alerts(self, attempt: int) -> list[Alert]:
        """The alerts of an attempt, as they were stored last."""
        return [alert for alert in self._alerts.values() if alert.attempt == attempt]

    def replay(self, attempt: int, last: int) -> Iterator[Record]:
        """The last records of an attempt as they are stored, see `Run.replay`.

        It reads beside the commits, and may be called at any time.
        """
        return replay(Reader(self.path, self._repository), attempt, last)

    def lost(self, attempt: int) -> dict[int, int]:
        """By rank of an attempt that is lost, its last step, as stored; it reads as `replay`."""
        events = Reader(self.path, self._repository).log("events")
        lost = lost_ranks(one for one in events if one["attempt"] == attempt)
        return {rank: one["step"] for rank, one in lost.items()}

    def newest(self) -> tuple[int, int] | None:
        """The attempt and the step of the newest record, if there is one."""
        count = self._state.records
        if not count:
            return None
        last = self._arrays.read("records", self._state.bounds("records"), count - 1, count)
        read_regions(last.requests)
        [facts] = last.finish()
        return int(facts[ATTEMPT]), int(facts[STEP])

    def commit(
        self,
        records: Sequence[Record],
        *,
        streams: Mapping[str, int],
        events: Sequence[Event] = (),
        alerts: Sequence[Alert] = (),
        rank_frames: Sequence[RankFrames] = (),
        judged: Mapping[str, int] | None = None,
        learnt: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        """Store records, events, alerts and the position of streams in one transaction.

        A record whose index is stored already replaces that one.

        Args:
            judged: by rule, of how many of these records it could judge something.
            learnt: by attempt what its collector has learnt of all records so far, for the next:
                plain values for `json`.

        Raises:
            StoreError: a record cannot be stored, or the store refuses. Nothing has changed then,
                or, if only the answer was lost, the same call made again finds that out.
            BusyError: another process took over.
            GoneError: the store was moved or deleted.
        """
        batch: Batch = (*records, *events, *alerts, *rank_frames)
        self._settle()
        if same(self._landed, batch):
            self._landed = ()
            return
        ordered = check_records(records, self.catalog.meta, self._state.records)
        meta = self.catalog.with_names(ordered)
        self._fit(dims_for(meta, ordered))

        def write(arrays: Arrays, state: State) -> State:
            for stretch in consecutive(ordered):
                state = write_records(arrays, state, meta, self._dims, stretch)
            state = append_entries(arrays, state, "events", events)
            state = append_entries(arrays, state, "alerts", alerts)
            state = replace(state, judged=dict(Counter(state.judged) + Counter(judged or {})))
            if learnt:
                state = replace(state, learnt={str(one): told for one, told in learnt.items()})
            return append_frames(arrays, state, rank_frames, self._schemas)

        def written() -> None:
            schemas = {one.schema.hash for some in rank_frames for one in some.frames.values()}
            self._landed = batch
            self._alerts = self._alerts | by_identity(alerts)
            self._schemas = self._schemas | schemas
            if any(pyramid.stretch_of(record) <= self._state.stretches for record in ordered):
                self._making = None  # its records may have changed

        every_stream = {**self._streams, **streams}
        self._transact(write, f"{len(ordered)} records", meta, every_stream, written)
        self._landed = ()

    def compact_if_due(self, *, keep: int | None = None) -> None:
        """Do one piece of what keeps long runs quick and small; call it between commits.

        Args:
            keep: of how many records, the last, all is to stay; None: of all.
        """
        upto = compaction.tail_due(self._state)
        name = compaction.history_due(self._state)
        stretch = pyramid.stretch_due(self._state)
        if upto > self._state.recent:
            self._transact(lambda arrays, state: compaction.move_tail(arrays, state, upto), "Tail")
        elif stretch is not None and (name is None or pyramid.is_behind(self._state)):
            self._make_piece(stretch)
        elif name is not None:
            self._transact(
                lambda arrays, state: compaction.move_full(arrays, state, name), f"Chunk of {name}"
            )
        elif keep is not None and retention.cut_of(self._state, keep) > self._state.deleted:
            self.prune(keep)
        else:
            self._cleaner.clean_if_due()

    def learnt(self, attempt: int) -> Mapping[str, Any]:
        """What an earlier collector has learnt of an attempt, as it was stored last."""
        return self._state.learnt.get(str(attempt), {})

    def prune(self, keep: int, *, free: bool = False) -> None:
        """Delete the detail of all records but the last `keep`, in whole chunks of the history.

        Args:
            keep: how many records stay as they are, at least.
            free: free the space now, and not with the next cleaning.

        Raises:
            StoreError: the store refuses.
        """
        found = retention.doomed(self._arrays, self._state, keep)
        if found.stop == self._state.deleted:
            return
        facts = self._arrays.at("history", "records")[found.first : found.stop]
        told = retention.event_of(found, np.asarray(facts), keep, time.time_ns())

        def change(arrays: Arrays, state: State) -> State:
            retention.delete(arrays.store, found.chunks)
            return append_entries(arrays, replace(state, deleted=found.stop), "events", [told])

        self._transact(change, "Retention")
        if free:
            self._cleaner.clean(FINISH_RETENTION_S)

    def finish(self) -> None:
        """Move all records into the history, mark the run finished, and free what is not needed.

        Raises:
            StoreError: the disk refuses.
        """
        meta = self.catalog.meta
        self._fit(dims_for(meta, ()))
        self._transact(compaction.move_all, "Everything", meta)
        while (stretch := pyramid.stretch_due(self._state)) is not None:
            self._make_piece(stretch)

        def end(arrays: Arrays, state: State) -> State:
            arrays.clear_rings()
            return replace(state, finished=True)

        self._transact(end, "Finished")
        self._cleaner.clean(FINISH_RETENTION_S)

    @property
    def is_awaited(self) -> bool:
        """Whether another process waits to write to the run's folder."""
        return isinstance(self._lock, WriterLock) and self._lock.is_awaited

    def close(self) -> None:
        """Let go of the store, so that another writer may open it. Everything committed is safe."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _log(self, name: str) -> list[Any]:
        return self._arrays.entries(name, self._state.logs[name])

    def _make_piece(self, stretch: int) -> None:
        """Make the next piece of a stretch of the pyramid; with the last one the stretch counts."""
        key = stretch, self._dims["site"]
        if key != self._making:
            self._making, self._pieces_made = key, 0

        def make(arrays: Arrays, state: State) -> State:
            pieces = pyramid.pieces_of(arrays)
            pyramid.make(arrays, state, stretch, pieces[self._pieces_made])
            is_last = self._pieces_made + 1 == len(pieces)
            return pyramid.with_stretch(state, stretch) if is_last else state

        self._transact(make, "Pyramid")
        self._pieces_made += 1
        if self._state.stretches > stretch and stretch not in self._state.stale:
            self._making = None

    def _fit(self, needed: Mapping[str, int]) -> None:
        """Make the arrays, or make them larger, in a transaction of its own.

        Growing along two axes in one session has corrupted data before (icechunk #1006).
        """
        dims = {axis: max(size, self._dims.get(axis, 0)) for axis, size in needed.items()}
        if dims == self._dims:
            return

        def fit(arrays: Arrays, state: State) -> State:
            if state.created:
                arrays.grow(dims)
            else:
                arrays.create(dims)
            return replace(state, created=True)

        self._transact(fit, "Room for more")
        self._dims = dims

    def _transact(
        self,
        change: Callable[[Arrays, State], State],
        message: str,
        meta: Meta | None = None,
        streams: Mapping[str, int] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Apply a change and commit it with all attributes, or leave everything as it was.

        What comes `then` is done once it is known that the commit was.

        Without `meta` what the run says of itself stays as it is stored: the arrays may not have
        room yet for sites that were added since.
        """
        meta = self._stored_meta if meta is None else meta
        streams = self._streams if streams is None else dict(streams)
        self._settle()
        try:
            session = self._head.session()
            arrays = self._arrays.on(session.store)
            state = change(arrays, self._state)
            state = replace(state, transactions=state.transactions + 1)
            if meta != self._stored_meta:
                state = replace(state, meta=state.meta + 1)
                self._meta_writer.write(session.store, meta.to_json())
            self._state_writer.write(session.store, state.to_json())

            def moved() -> None:
                self._arrays, self._state, self._streams = arrays, state, dict(streams)
                self._stored_meta = meta
                if then is not None:
                    then()

            self._unsure = moved
            self._head.commit(session, message, streams)
        except (OSError, icechunk.IcechunkError, icechunk.ConflictError) as error:
            self._look_for_it()
            cause = reason(self.path, error)
            why = wrong_clock(error) or f"Cannot write to {self.path}: {cause}"
            raise StoreError(why) from error
        self._unsure = None
        moved()
        self._cleaner.committed()

    def _settle(self) -> None:
        """Find out what became of a commit that failed, if one did."""
        if self._unsure is None:
            return
        try:
            landed = self._head.landed()
        except (OSError, icechunk.IcechunkError) as error:
            self._look_for_it()
            raise StoreError(f"Cannot write to {self.path}: {reason(self.path, error)}") from error
        found, self._unsure = self._unsure, None
        if landed:
            found()

    def _look_for_it(self) -> None:
        """After a failure: whether the run's folder is there at all.

        Raises:
            GoneError: it alone is gone, so that a new one may be begun in its place.
            StoreError: what it lay in is gone, too, as a disk that is not mounted any more.
        """
        if not isinstance(self.path, Path) or holds_repository(self.path):
            return
        if lock_file(self.path).exists():
            raise GoneError(f"{self.path} was moved or deleted while it was written.")
        raise StoreError(
            f"{self.path} was moved or deleted with what it lay in: put it back, or start the "
            "collector again."
        )


def same(some: Batch, others: Batch) -> bool:
    """Whether they are the very same objects, at least one."""
    pairs = zip(some, others, strict=False)
    return bool(some) and len(some) == len(others) and all(one is other for one, other in pairs)


def make_folder(place: Path) -> None:
    """Make the folder of a store, unless something else is in its place.

    Raises:
        NotARunError: the path is a file, or a folder that holds something else.
        StoreError: it cannot be made.
    """
    usable = not place.exists() or holds_repository(place) or (place.is_dir() and is_vacant(place))
    if not usable:
        raise NotARunError(
            f"{place} {what_is_at(place)}; choose a folder that is new, empty or a run."
        )
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"Cannot make {place}: {error.strerror}.") from error


def check_vacant(url: ObjectUrl) -> None:
    """Make sure that nothing else lies at a URL.

    Raises:
        NotARunError: something does.
        StoreError: it cannot be asked.
    """
    if not is_vacant(url) and not holds_repository(url):
        raise NotARunError(f"{url} {what_is_at(url)}; choose a URL that is new or a run.")


def any_repository(place: Place) -> icechunk.Repository:
    """The repository at a place, made if there is none; of two that make it one is the quicker."""
    if not holds_repository(place):
        try:
            return create_repository(place)
        except StoreError:
            if not holds_repository(place):
                raise
    return open_repository(place)


def ready_repository(place: Path, run: str) -> icechunk.Repository:
    """The repository at a place that is ours alone, made if there is none."""
    repository = any_repository(place)
    if is_blank(repository):
        begin_run(repository, run)
    return repository
