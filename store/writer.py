"""The one writer of a run. Each commit is one transaction: records, logs and stream positions.

Its one rule: what fails leaves no trace. The writer's own state moves on only after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import icechunk

from ..sketch.errors import NotARunError, StoreError
from ..sketch.quantities import MAX_NUMBERS
from . import compaction, pyramid
from .arrays import Arrays
from .cleaning import Cleaner
from .lock import WriterLock
from .naming import holds_repository, is_vacant, what_is_at
from .pack import consecutive, dims_for
from .record import Alert, Event, QuantityInfo, RankInfo, Record, SiteInfo
from .repository import (
    BRANCH,
    AttributeWriter,
    begin_run,
    create_repository,
    first_line,
    is_blank,
    open_repository,
    read_meta,
    read_snapshot,
)
from .state import Attempt, Meta, State
from .transaction import append_lines, with_names, write_records
from .validate import check_records

FINISH_RETENTION_S = 30.0
"""How long readers of a run that has just finished may go on with an older snapshot."""


class RunWriter:
    """Writes one run. Open it with `RunWriter.open`, and use it from one thread."""

    def __init__(
        self, path: Path, run: str, lock: WriterLock, repository: icechunk.Repository
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
        self._cleaner = Cleaner(repository)
        self._state = snapshot.state
        self._streams = snapshot.streams
        self._meta = self._stored_meta = read_meta(session.store)
        self._index = {site.label: index for index, site in enumerate(self._meta.sites)}
        self._quantity_index = {
            (info.site, info.name): index for index, info in enumerate(self._meta.quantities)
        }
        self._arrays = Arrays(session.store)
        self._dims = self._arrays.dims() if snapshot.state.created else {}
        self._making: tuple[int, int] | None = None
        """The stretch of the pyramid of which some pieces are made, and how many sites there were.

        Not stored: who opens the store again begins the stretch again."""
        self._pieces_made = 0
        self._state_writer = AttributeWriter(session.store, "state")
        self._meta_writer = AttributeWriter(session.store, "meta")

    @classmethod
    def open(cls, path: str | Path, *, run: str, formats: Sequence[str] = ()) -> Self:
        """Create the run's store, or go on with it.

        Args:
            path: A folder that is missing, empty or holds this run.
            run: Name of the run.
            formats: Number formats that viewers should mark; kept when the run is created.

        Raises:
            BusyError: another process writes to it.
            NotARunError: the path holds something else.
            StoreError: it holds another run, or cannot be written.
        """
        place = Path(path)
        make_folder(place)
        lock = WriterLock(place)
        try:
            return cls(place, run, lock, ready_repository(place, run, formats))
        except BaseException:
            lock.release()
            raise

    @property
    def streams(self) -> dict[str, int]:
        """Sequence number that is committed, by stream."""
        return dict(self._streams)

    @property
    def next_record(self) -> int:
        """The index of the next record to append."""
        return self._state.records

    @property
    def sites(self) -> tuple[SiteInfo, ...]:
        """The run's sites, in the order of their index."""
        return self._meta.sites

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts known so far, in the order of their number."""
        return self._meta.attempts

    def attempt_of(self, launch: str) -> int:
        """The number of the attempt with that launch token; a new token gets the next number.

        It becomes durable with the next commit.
        """
        launches = [attempt.launch for attempt in self._meta.attempts]
        if launch in launches:
            return launches.index(launch)
        self._meta = replace(self._meta, attempts=(*self._meta.attempts, Attempt(launch=launch)))
        return len(launches)

    def add_sites(self, sites: Sequence[SiteInfo]) -> list[int]:
        """The index of each site, by its label; unknown ones are appended.

        Of known ones the latest placement, dtype, cuts and whether they are checked count: a later
        attempt may have changed them. All that becomes durable with the next commit.
        """
        changed = dict[int, SiteInfo]()
        for site in sites:
            place = self._index.get(site.label)
            if place is not None:
                known = self._meta.sites[place]
                latest = replace(
                    known,
                    dtype=site.dtype,
                    placement=site.placement,
                    checked=site.checked,
                    whole=site.whole,
                    cuts=site.cuts,
                )
                if latest != known:
                    changed[place] = latest
        if changed:
            every = enumerate(self._meta.sites)
            merged = tuple(changed.get(place, known) for place, known in every)
            self._meta = replace(self._meta, sites=merged)
        new: dict[str, SiteInfo] = {}
        for site in sites:
            if site.label not in self._index:
                self._index[site.label] = len(self._meta.sites) + len(new)
                new[site.label] = site
        if new:
            self._meta = replace(self._meta, sites=(*self._meta.sites, *new.values()))
        return [self._index[site.label] for site in sites]

    def add_quantities(self, quantities: Sequence[tuple[int, str]]) -> list[int | None]:
        """The index of each quantity, by its site's index and its name; unknown ones are appended.

        They become durable with the next commit.

        Returns:
            None for those for which the run has no room: it holds `MAX_NUMBERS` counts.

        Raises:
            SettingError: there is no such quantity.
        """
        new, start = dict[tuple[int, str], QuantityInfo](), self._meta.numbers
        for site, name in quantities:
            info = QuantityInfo(site=site, name=name, start=start)
            is_known = (site, name) in self._quantity_index or (site, name) in new
            if not is_known and info.numbers.stop <= MAX_NUMBERS:
                new[site, name] = info
                start = info.numbers.stop
        if new:
            indices = range(len(self._meta.quantities), len(self._meta.quantities) + len(new))
            self._quantity_index.update(zip(new, indices, strict=True))
            self._meta = replace(self._meta, quantities=(*self._meta.quantities, *new.values()))
        return [self._quantity_index.get(key) for key in quantities]

    def set_attempt(
        self, attempt: int, world_size: int, mesh: Mapping[str, int], ranks: Sequence[RankInfo]
    ) -> None:
        """Say what is known of an attempt; ranks that join later are added to those before.

        Raises:
            StoreError: the attempt has no number yet, see `attempt_of`.
        """
        attempts = list(self._meta.attempts)
        if not 0 <= attempt < len(attempts):
            raise StoreError(f"Attempt {attempt} is not known; ask `attempt_of` for its number.")
        known = {rank.rank: rank for rank in (*attempts[attempt].ranks, *ranks)}
        attempts[attempt] = replace(
            attempts[attempt],
            world_size=world_size,
            mesh=dict(mesh),
            ranks=tuple(known[rank] for rank in sorted(known)),
        )
        self._meta = replace(self._meta, attempts=tuple(attempts))

    def commit(
        self,
        records: Sequence[Record],
        *,
        streams: Mapping[str, int],
        events: Sequence[Event] = (),
        alerts: Sequence[Alert] = (),
    ) -> None:
        """Store records, events, alerts and the position of streams in one transaction.

        A record whose index is stored already replaces that one.

        Raises:
            StoreError: a record cannot be stored, or the disk refuses. Nothing has changed then.
        """
        meta = with_names(self._meta, records)
        ordered = check_records(records, meta, self._state.records)
        self._fit(dims_for(meta, ordered))

        def write(arrays: Arrays, state: State) -> State:
            for stretch in consecutive(ordered):
                state = write_records(arrays, state, meta, self._dims, stretch)
            state = append_lines(arrays, state, "events", events)
            return append_lines(arrays, state, "alerts", alerts)

        self._transact(write, f"{len(ordered)} records", meta, {**self._streams, **streams})
        self._meta = meta
        if any(pyramid.stretch_of(record) <= self._state.stretches for record in ordered):
            self._making = None  # its records may have changed

    def compact_if_due(self) -> None:
        """Do one piece of what keeps long runs quick and small; call it between commits."""
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
        else:
            self._cleaner.clean_if_due()

    def finish(self) -> None:
        """Move all records into the history, mark the run finished, and free what is not needed.

        Raises:
            StoreError: the disk refuses.
        """
        self._fit(dims_for(self._meta, ()))

        self._transact(compaction.move_all, "Everything", self._meta)
        while (stretch := pyramid.stretch_due(self._state)) is not None:
            self._make_piece(stretch)

        def end(arrays: Arrays, state: State) -> State:
            arrays.clear_rings()
            return replace(state, finished=True)

        self._transact(end, "Finished")
        self._cleaner.clean(FINISH_RETENTION_S)

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
    ) -> None:
        """Apply a change and commit it with all attributes, or leave everything as it was.

        Without `meta` what the run says of itself stays as it is stored: the arrays may not have
        room yet for sites that were added since.
        """
        meta = self._stored_meta if meta is None else meta
        streams = self._streams if streams is None else dict(streams)
        try:
            session = self._repository.writable_session(BRANCH)
            arrays = self._arrays.on(session.store)
            state = change(arrays, self._state)
            state = replace(state, transactions=state.transactions + 1)
            if meta != self._stored_meta:
                state = replace(state, meta=state.meta + 1)
                self._meta_writer.write(session.store, meta.to_json())
            self._state_writer.write(session.store, state.to_json())
            session.commit(message, metadata={"streams": streams})
        except (OSError, icechunk.IcechunkError) as error:
            raise StoreError(f"Cannot write to {self.path}: {first_line(error)}") from error
        self._arrays, self._state, self._streams = arrays, state, dict(streams)
        self._stored_meta = meta
        self._cleaner.committed()


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


def ready_repository(place: Path, run: str, formats: Sequence[str]) -> icechunk.Repository:
    """The repository at a place that is ours alone, made if there is none."""
    exists = holds_repository(place)
    repository = open_repository(place) if exists else create_repository(place)
    if is_blank(repository):
        begin_run(repository, run, formats)
    return repository
