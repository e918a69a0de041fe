"""One snapshot of a run, as blocks of its arrays; it stands between questions and Zarr."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard, TypeVar

import icechunk
import numpy as np
import zarr
from numpy.typing import NDArray

from ..sketch.errors import NotARunError, SettingError, StoreError
from ..wire.messages import Schema
from .arrays import Arrays, Index
from .chunks import read_regions
from .decoded import Decoded
from .deferred import Deferred, along
from .implied import moments_of, spread_of_one
from .layout import ARRAYS, COLUMNS, RANK_FRAMES
from .naming import holds_repository, what_is_at
from .pack import SAID
from .place import Place, place_of
from .rank_frames import INDEX, SCHEMAS, KeptAt, read_index, read_schemas
from .record import SiteInfo
from .repository import (
    BRANCH,
    Snapshot,
    changed_chunks,
    open_repository,
    read_meta,
    read_snapshot,
    reading,
    reason,
)
from .selection import (
    ALONE,
    Chosen,
    Indices,
    Labels,
    Steps,
    check_attempt,
    choose_records,
    choose_sites,
    choose_step,
    first_ranks,
    index_of,
    is_one,
    within,
)
from .state import IMPORTED, Attempt, Meta, State

CACHED_BYTES = 64 << 20
"""Chunks, as they are stored, that a reader keeps: they never change, and a viewer asks again."""

Answer = TypeVar("Answer")

Asked = tuple[str, Indices, tuple[Index | Indices, ...]]
"""Name of an array, records, and along later axes what is asked for; see `Reader.read`.

Or the path of an array of the pyramid, and its blocks."""


def open_reader(path: str | Place) -> Reader:
    """Read the newest snapshot of the run at `path`.

    Raises:
        NotARunError: the path holds no run; the message says what it holds.
        StoreError: it cannot be read.
    """
    place = place_of(path)
    if not holds_repository(place):
        raise NotARunError(f"{place} {what_is_at(place)}; give a run.")
    repository = open_repository(place, cached_bytes=CACHED_BYTES)
    with reading(place):
        return Reader(place, repository)


class Reader:
    """Reads one snapshot: the newest when it was made."""

    def __init__(
        self, path: Place, repository: icechunk.Repository, before: Reader | None = None
    ) -> None:
        session = repository.readonly_session(BRANCH)
        snapshot = read_snapshot(path, repository, session)
        if before is not None and before.snapshot.run_id != snapshot.run_id:
            before = None  # that run was deleted, and another lies in its place
        self.path = path
        self.snapshot: Snapshot = snapshot
        self.state: State = snapshot.state
        self.arrays = Arrays(session.store)
        if before is not None and before.state.shapes == self.state.shapes:
            self.arrays = before.arrays.on(session.store)
        self._repository = repository
        self._decoded = Decoded() if before is None else before._decoded_in(snapshot)
        if before is not None and before.state.meta == self.state.meta:
            self.meta: Meta = before.meta
            self._index, self._labels, self.of_meta = before._index, before._labels, before.of_meta
        else:
            self.meta = read_meta(session.store)
            self._index = index_of(self.meta.sites)
            self._labels = list(self._index)
            self.of_meta: dict[str, Any] = {}
            """What a question leaves for the next one, as long as the sites stay the same."""
        is_same = before is not None and before.state.logs == self.state.logs
        self._logs: dict[str, list[Any]] = before._logs if before is not None and is_same else {}
        self._known: dict[str, Any] = before._known if before is not None and is_same else {}
        """What some of the logs say, which a viewer asks with every snapshot."""
        self.kept: dict[str, Any] = {}
        """What a question leaves for the next one of the same snapshot."""
        self._facts: Indices = np.empty((0, len(COLUMNS)), np.int64)
        self.of_records: dict[str, Any] = {}
        """What a question leaves for the next one, as long as earlier records stay the same."""
        if before is not None and before.state.patches == self.state.patches:
            self._facts = before._facts
            # What is kept of single ranks may come late; then a log tells of it.
            self.of_records = before.of_records if is_same else {}
        self.attempt: int | None = None if before is None else before.attempt
        """The only one whose records are read; None for all."""

    def newest(self) -> Reader:
        """A reader of the newest snapshot; this one if there is none newer.

        Raises:
            StoreError: the run cannot be read.
        """
        with reading(self.path):
            if self._repository.lookup_branch(BRANCH) == self.snapshot.id:
                return self
            return Reader(self.path, self._repository, before=self)

    def _decoded_in(self, later: Snapshot) -> Decoded:
        """What is decoded already of a later snapshot, as far as the store tells what changed."""
        changed = changed_chunks(self._repository, self.snapshot, later)
        return Decoded() if changed is None else self._decoded.besides(changed)

    def of_attempt(self, attempt: int) -> Reader:
        """A reader of this snapshot that reads the records of one attempt.

        Raises:
            SettingError: there is no such attempt, or this one reads another.
        """
        self.attempt_of(attempt)
        check_attempt(attempt, self.meta.attempts)
        own = copy.copy(self)
        own.attempt, own.kept, own.of_meta = attempt, {}, {}
        return own

    def attempt_of(self, asked: int | None) -> int | None:
        """The attempt whose records a question is about; None for all.

        Raises:
            SettingError: it asks for another than is read.
        """
        if self.attempt is None or asked == self.attempt:
            return asked
        if asked is not None:
            raise SettingError(
                f"These are the records of attempt {self.attempt}, not of {asked}; ask the run "
                "that it was made of."
            )
        return self.attempt

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Those whose records are read."""
        known = self.meta.attempts
        return known if self.attempt is None else known[self.attempt : self.attempt + 1]

    def label(self, place: int) -> str:
        """The label of the site at an index."""
        return self._labels[place]

    def labels(self, places: Indices) -> list[str]:
        """The labels of the sites at these indices."""
        return [self._labels[place] for place in places.tolist()]

    def sites(self, places: Indices, attempt: int | None = None) -> list[SiteInfo]:
        """The sites at these indices, as an attempt had them, or the latest that saw them."""
        attempt = self.attempt_of(attempt)
        return [self.meta.site(place, attempt) for place in places]

    def choose_sites(
        self,
        *,
        kind: str | Collection[str] | None = None,
        name: str | None = None,
        site: str | None = None,
        sites: Labels = None,
    ) -> Indices:
        """The indices of sites, see `choose_sites`."""
        known = self.meta.sites
        return choose_sites(known, kind=kind, name=name, site=site, sites=sites, index=self._index)

    @property
    def is_imported(self) -> bool:
        """Whether the run was made of a LogFrame, or some attempt of it."""
        return any(attempt.launch == IMPORTED for attempt in self.meta.attempts)

    @property
    def group(self) -> zarr.Group:
        """The snapshot as plain Zarr, read only."""
        return zarr.open_group(self.arrays.store, mode="r")

    @property
    def ranks(self) -> int:
        """How long the rank axis is."""
        return self.arrays.at("tail", "ranks").shape[1] if self.state.created else 0

    def facts(self) -> Indices:
        """int64 [records, columns]: the array `records`; only what is new is read again."""
        facts, count = self._facts, self.state.records  # another thread may ask, too
        if len(facts) < count:
            new = self.read("records", np.arange(len(facts), count))
            wider = new.shape[1] - facts.shape[1]
            # A mask grows with the ranks; earlier records have none of the new ones.
            old = np.pad(facts, ((0, 0), (0, wider))) if len(facts) else new[:0]
            facts = self._facts = np.concatenate([old, new])
        return facts

    def choose(
        self,
        *,
        steps: Steps = None,
        attempt: int | None = None,
        sketched: bool = False,
        deleted: int | None = None,
    ) -> Chosen:
        """The records that can be asked for all they hold, see `choose_records`.

        Args:
            steps, attempt, sketched: as there.
            deleted: leave out the records below this; None: those that retention deleted.
        """
        facts, deleted = self.facts(), self.state.deleted if deleted is None else deleted
        attempt = self.attempt_of(attempt)
        if attempt is not None or is_one(steps):
            return choose_records(
                facts, steps=steps, attempt=attempt, sketched=sketched, deleted=deleted
            )
        of = f"chosen from {deleted} on"
        if of not in self.kept:
            self.kept[of] = choose_records(facts, deleted=deleted)
        return within(self.kept[of], facts, steps=steps, sketched=sketched)

    def choose_step(self, step: int, attempt: int | None = None) -> int:
        """The index of the record of one step, see `choose_step`."""
        attempt = self.attempt_of(attempt)
        return choose_step(self.facts(), step, attempt, deleted=self.state.deleted)

    def read(self, name: str, records: Indices, *inner: Index | Indices) -> NDArray[Any]:
        """The given records of an array, in their order; along other axes what is asked for.

        One of `inner` may be indices, in any order.
        """
        return self.read_all([(name, records, inner)])[0]

    def read_all(self, asked: Sequence[Asked]) -> list[NDArray[Any]]:
        """Several times `read`; a chunk that several of them touch is fetched and decoded once."""
        reads = [self._defer(name, records, inner) for name, records, inner in asked]
        with self._still_there():
            read_regions((one for read in reads for one in read.requests), self._decoded)
        return [read.finish() for read in reads]

    def _defer(self, name: str, records: Indices, inner: tuple[Index | Indices, ...]) -> Deferred:
        if name == "moments":
            return self._defer_moments(records, inner)
        if name == "spread":
            return self._defer_spread(records, inner)
        if name == "ranks":
            return self._defer_ranks(records, inner)
        return self._defer_stored(name, records, inner)

    def _defer_moments(self, records: Indices, inner: tuple[Index | Indices, ...]) -> Deferred:
        """The moments of some sites, or one moment of them."""
        sites, *which = inner
        digits = self._defer_stored("digits", records, (sites,))
        counts = self._defer_stored("counts", records, (sites,))
        told = [self._defer_stored("scalars", records, (sites, column)) for column in SAID]

        def finish() -> NDArray[Any]:
            stored, counted = digits.finish(), counts.finish()
            said = np.stack([one.finish() for one in told], axis=-1)
            rows = (one.reshape(-1, one.shape[-1]) for one in (stored, counted, said))
            return moments_of(*rows).reshape(stored.shape)[(..., *which)]

        every = (digits, counts, *told)
        return Deferred([request for one in every for request in one.requests], finish)

    def _defer_spread(self, records: Indices, inner: tuple[Index | Indices, ...]) -> Deferred:
        """The spread, which follows from the scalars where a record is of one rank alone."""
        alone, ranks = self._alone(records)
        stored = self._defer_of_several("spread", records, inner, alone)
        if not len(alone):
            return stored
        scalars = self._defer_stored("scalars", records, inner[:2])

        def finish() -> NDArray[Any]:
            found, own = stored.finish(), scalars.finish()[alone]
            flat = own.reshape(len(own), 1, -1)
            found[alone] = spread_of_one(flat, ranks).reshape(*own.shape, -1)[(..., *inner[2:])]
            return found

        return Deferred([*stored.requests, *scalars.requests], finish)

    def _defer_ranks(self, records: Indices, inner: tuple[Index | Indices, ...]) -> Deferred:
        """The numbers of one rank, or of all, which follow from the scalars in the same way."""
        alone, ranks = self._alone(records)
        stored = self._defer_of_several("ranks", records, inner, alone)
        if not len(alone):
            return stored
        scalars = self._defer_stored("scalars", records, inner[1:])

        def finish() -> NDArray[Any]:
            found, own = stored.finish(), scalars.finish()[alone]
            if isinstance(inner[0], int):
                mine = ranks == inner[0]
                found[alone[mine]] = own[mine]
            else:
                found[alone, ranks] = own
            return found

        return Deferred([*stored.requests, *scalars.requests], finish)

    def _defer_of_several(
        self, name: str, records: Indices, inner: tuple[Index | Indices, ...], alone: Indices
    ) -> Deferred:
        """What is stored of the records that are of several ranks; of the others it is nothing."""
        if len(alone) < len(records) or not len(records):
            return self._defer_stored(name, records, inner)
        shape = len(records), *self._empty(name, inner).shape[1:]
        return Deferred([], lambda: np.full(shape, ARRAYS[name].fill, ARRAYS[name].dtype))

    def _alone(self, records: Indices) -> tuple[Indices, Indices]:
        """Which of the records, by their place, are of one rank alone, and of which."""
        facts = self.facts()[records]
        places = np.flatnonzero(facts[:, ALONE] > 0)
        return places, first_ranks(facts[places, len(COLUMNS) :])

    def _defer_stored(
        self, name: str, records: Indices, inner: tuple[Index | Indices, ...]
    ) -> Deferred:
        if not len(records):
            return Deferred([], lambda: self._empty(name, inner))
        return along(records, 0, lambda span: self._defer_range(name, span, inner))

    def _defer_range(self, name: str, span: slice, inner: tuple[Index | Indices, ...]) -> Deferred:
        def read(*exact: Any) -> Deferred:
            if name not in ARRAYS:
                return self.arrays.read_blocks(name, span.start, span.stop, *exact)
            bounds = self.state.bounds(name)
            return self.arrays.read(name, bounds, span.start, span.stop, *exact)

        many = next((place for place, index in enumerate(inner) if is_many(index)), None)
        if many is None:
            return read(*inner)
        # Integers drop an axis, so the axis of the indices moves forward.
        axis = 1 + sum(isinstance(index, slice) for index in inner[:many])
        return along(
            np.asarray(inner[many]),
            axis,
            lambda places: read(*inner[:many], places, *inner[many + 1 :]),
        )

    @contextmanager
    def _still_there(self) -> Generator[None]:
        try:
            yield
        except (icechunk.IcechunkError, StoreError) as error:
            if self._is_superseded():
                raise StoreError(
                    f"Snapshot {self.snapshot.id} of {self.path} can no longer be read; "
                    "call `refresh()` to move to the newest."
                ) from error
            why = error if isinstance(error, StoreError) else reason(self.path, error)
            raise StoreError(f"Cannot read {self.path}: {why}") from error

    def _is_superseded(self) -> bool:
        """Whether there is a newer snapshot, as far as the store can be asked."""
        try:
            return self._repository.lookup_branch(BRANCH) != self.snapshot.id
        except icechunk.IcechunkError:
            return False

    def _empty(self, name: str, inner: tuple[Index | Indices, ...]) -> NDArray[Any]:
        """No record, in the shape that `read` would give."""
        layout = ARRAYS[name]
        growing = "column", "training", "health", "number", "value", "group", "peers"
        dims = dict.fromkeys(growing, 0)
        lengths = layout.shape(dims | {"site": len(self.meta.sites), "rank": self.ranks})
        inner = (*inner, *[slice(None)] * (len(lengths) - len(inner)))
        kept = [
            len(range(length)[index]) if isinstance(index, slice) else len(index)
            for index, length in zip(inner, lengths, strict=True)
            if not isinstance(index, int)
        ]
        return np.empty((0, *kept), layout.dtype)

    @property
    def histogram_arrays(self) -> tuple[str, ...]:
        """The arrays that hold the words of a histogram's counts, see `of_words`."""
        return ("histogram", "histogram_high") if self.state.wide else ("histogram",)

    def histograms(self, records: Indices, sites: Indices) -> NDArray[np.int64]:
        """int64 [records, sites, BINS]; 0 where nothing was observed."""
        return of_words(
            self.read_all([(name, records, (sites,)) for name in self.histogram_arrays])
        )

    def log(self, name: str) -> Sequence[Any]:
        """All entries of one of `LOGS`, in order; nobody may change them."""
        if name not in self._logs:
            with self._still_there():
                self._logs[name] = self.arrays.entries(name, self.state.logs[name])
        return self._logs[name]

    def told(self, name: str, ask: Callable[[], Answer]) -> Answer:
        """What logs say, which is asked anew only once one of them says more.

        Args:
            name: of the question, and of the attempt where the answer depends on it.
            ask: what answers it.
        """
        if name not in self._known:
            self._known[name] = ask()
        return self._known[name]

    @property
    def rank_frames(self) -> dict[int, KeptAt]:
        """By record where the frames of single ranks lie, where some are kept."""
        return self.told(INDEX, lambda: read_index(self.log(INDEX)))

    @property
    def schemas(self) -> dict[bytes, Schema]:
        """By hash those of the frames that are kept."""
        return self.told(SCHEMAS, lambda: read_schemas(self.log(SCHEMAS)))

    def read_bytes(self, spans: Iterable[tuple[slice, NDArray[np.uint8]]]) -> None:
        """Fill blocks with spans of the array `rank_frames`."""
        array = self.arrays.open(RANK_FRAMES)
        with self._still_there():
            read_regions((array, (span,), block) for span, block in spans)


def of_words(words: Sequence[NDArray[np.uint32]]) -> NDArray[np.int64]:
    """int64: numbers of which the words are given, the lowest first."""
    found = words[0].astype(np.int64)
    for place, word in enumerate(words[1:], 1):
        found += word.astype(np.int64) << (32 * place)
    return found


def is_many(index: Any) -> TypeGuard[Indices]:
    """Whether an index is an array of indices."""
    return isinstance(index, np.ndarray)
