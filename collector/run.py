"""One run in the collector: its streams, the records in the making, and its writer.

A frame is acknowledged as durable only after the commit that holds its record; a commit that fails
is kept and tried again, unchanged.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from ..merge.placement import CountedAt, Layout, groups_of, lay_out
from ..sketch.errors import StoreError
from ..sketch.quantities import MAX_NUMBERS, quantity_named
from ..store.layout import CHUNK
from ..store.record import Event, RankInfo, SiteInfo
from ..store.writer import RunWriter
from ..wire.codec import PackedFrame
from ..wire.joined import JoinedFrame
from ..wire.messages import (
    LEAST_BUDGET,
    Control,
    Gap,
    Goodbye,
    Hello,
    JoinedHeader,
    MeshAxis,
    Schema,
    Site,
    State,
)
from .budget import Budget
from .cursor import Cursor
from .joiner import Batch, Joiner, Place
from .settings import CollectorSettings

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Stream:
    """One agent's stream of frames."""

    name: str
    run: Run
    attempt: int
    rank: int
    mesh: Sequence[MeshAxis]
    groups: Sequence[str]
    peer: bytes
    """Routing id of its present connection."""
    cursor: Cursor
    schemas: OrderedDict[bytes, tuple[Schema, Layout]] = field(
        default_factory=OrderedDict[bytes, tuple[Schema, Layout]]
    )
    layouts: OrderedDict[tuple[bytes, tuple[str, ...]], Layout] = field(
        default_factory=OrderedDict[tuple[bytes, tuple[str, ...]], Layout]
    )
    """Of joined frames, of which it is the first: by schema and streams."""
    needs_schema: bool = False
    """A frame was refused for want of its schema: until one comes, all are, to keep the order."""
    told_received: int = -2
    told_committed: int = -2
    told_control: Control | None = None
    ended: bool = False


class Run:
    """The session of one run.

    Args:
        name: of the run.
        writer: the only one of its store.
        wall_ns: the wall clock, nanoseconds since 1970.
    """

    def __init__(
        self, name: str, writer: RunWriter, settings: CollectorSettings, wall_ns: Callable[[], int]
    ) -> None:
        self.name = name
        self.writer = writer
        self.settings = settings
        self.streams: dict[str, Stream] = {}
        self.records = 0
        self.alerts = 0
        self._wall_ns = wall_ns
        self._joiners: dict[int, Joiner] = {}
        self._budgets: dict[int, Budget] = {}
        self._started: dict[int, float] = {}
        self._ranks: dict[int, dict[int, RankInfo]] = {}
        self._meshes: dict[int, dict[str, int]] = {}
        self._refused: defaultdict[int, set[tuple[int, str]]] = defaultdict(set)
        """By attempt: quantities for which the run has no room, of which an event told."""
        self._unwritten: set[int] = set()
        self._stored: dict[str, int] = writer.streams
        self._pending: Batch | None = None
        self._next_try = 0.0
        self._failures = 0
        self._last_commit = float("-inf")

    # Streams -------------------------------------------------------------------------------------

    def join(self, hello: Hello, peer: bytes, now: float) -> Stream | str:
        """The stream of `hello`, on a new connection; or why it is refused, in one sentence.

        Raises:
            StoreError: the attempt cannot be registered.
        """
        attempt = self.writer.attempt_of(hello.launch)
        mesh = {axis.name: axis.size for axis in hello.mesh}
        refusal = self._refusal(hello, attempt, mesh, now)
        if refusal:
            return refusal
        if attempt not in self._joiners:
            self._begin(attempt, hello.world_size, mesh, now)
        stream = self.streams.get(hello.stream)
        if stream is None:
            stream = self.streams[hello.stream] = Stream(
                name=hello.stream,
                run=self,
                attempt=attempt,
                rank=hello.rank,
                mesh=hello.mesh,
                groups=groups_of(hello.mesh, hello.host),
                peer=peer,
                cursor=Cursor(self._stored.get(hello.stream, -1)),
            )
        stream.peer, stream.needs_schema, stream.ended = peer, False, False
        stream.told_received = stream.told_committed = -2
        stream.told_control = None
        if hello.budget >= LEAST_BUDGET:
            self._budgets.setdefault(attempt, Budget(hello.budget))
        self._joiners[attempt].hear(hello.rank, now)
        self._introduce(attempt, hello)
        return stream

    def learn(self, stream: Stream, schema: Schema) -> str:
        """Keep a schema of `stream`; why it is refused, or nothing.

        Raises:
            StoreError: its sites cannot be registered.
        """
        infos = [_info(site) for site in schema.sites]
        if len({info.label for info in infos}) < len(infos):
            return "A schema names a site twice."
        indices = self.writer.add_sites(infos)
        counted = self._count_at(stream, schema, indices)
        layout = lay_out(schema.sites, indices, stream.mesh, counted, stream.groups)
        stream.schemas[schema.hash] = schema, layout
        stream.needs_schema = False
        while len(stream.schemas) > self.settings.max_schemas:
            stream.schemas.popitem(last=False)
        return ""

    def feed(self, stream: Stream, frame: PackedFrame, layout: Layout, now: float) -> bool:
        """Take in a frame; False if it had come before."""
        header = frame.header
        missing = stream.cursor.receive(header.sequence, frame.size_bytes)
        joiner = self._joiners[stream.attempt]
        if missing is None:
            joiner.hear(stream.rank, now)
            return False
        if missing:
            self._tell_gaps(stream, header.gaps, missing, header.step)
        joiner.feed(stream.rank, stream.name, frame, layout, now)
        budget = self._budgets.get(stream.attempt)
        if budget is not None:
            budget.hear(stream.rank, header.step, header.health)
        return True

    def joined_streams(self, header: JoinedHeader) -> list[Stream]:
        """The streams of a joined frame's members, in order, as far as they are known."""
        found = dict[int, Stream]()
        for member in header.members:
            stream = self.streams.get(member.stream)
            if stream is None or stream.rank in found or stream.ended:
                break
            if found and stream.attempt != next(iter(found.values())).attempt:
                break
            found[stream.rank] = stream
        return list(found.values())

    def feed_joined(
        self, streams: Sequence[Stream], frame: JoinedFrame, layout: Layout, now: float
    ) -> None:
        """Take in a joined frame of these streams, of which none of its frames had come before."""
        header, first = frame.header, streams[0]
        names = tuple(stream.name for stream in streams)
        of_all = first.layouts.get((header.schema, names))
        if of_all is None:
            groups = [name for stream in streams for name in stream.groups]
            while len(first.layouts) >= self.settings.max_schemas:
                first.layouts.popitem(last=False)
            of_all = first.layouts[header.schema, names] = replace(layout, groups=groups)
        for stream, member in zip(streams, header.members, strict=True):
            share = frame.size_bytes // len(streams)
            missing = stream.cursor.receive(member.sequence, share)
            if missing:
                self._tell_gaps(stream, [], missing, header.step)
            budget = self._budgets.get(stream.attempt)
            if budget is not None:
                budget.hear(stream.rank, header.step, member.health)
        ranks = [stream.rank for stream in streams]
        self._joiners[first.attempt].feed_joined(ranks, frame, of_all, now)

    def skip(self, stream: Stream, sequence: int, step: int, reason: str) -> None:
        """A frame cannot be read: tell it, so that the stream goes on after it."""
        if stream.cursor.receive(sequence, 0) is not None:
            text = f"A frame of rank {stream.rank} was left out: {reason}"
            joiner = self._joiners[stream.attempt]
            joiner.skip(stream.rank, stream.name, sequence, text, step)

    def hear(self, stream: Stream, state: State, now: float) -> None:
        """A sign of life."""
        place = Place(state.step, state.tensors, state.site)
        self._joiners[stream.attempt].hear(stream.rank, now, place)

    def leave(self, stream: Stream, goodbye: Goodbye) -> None:
        """The stream has ended; it gets an answer once all of it is durable."""
        stream.cursor.close(goodbye.last)
        stream.ended = True
        stream.told_committed = -2
        self._joiners[stream.attempt].leave(stream.rank, goodbye.reason)

    def steer(self) -> Iterator[tuple[Stream, Control]]:
        """Which streams are to be told how to go on, if some do not know it."""
        for attempt, budget in self._budgets.items():
            joiner = self._joiners[attempt]
            change = budget.decide(joiner.present())
            if change is not None:
                joiner.tell("budget", change.rank, change.step, change.text)
        for stream in self.streams.values():
            budget = self._budgets.get(stream.attempt)
            control = None if budget is None or stream.ended else budget.control
            if control is not None and control != stream.told_control:
                stream.told_control = control
                yield stream, control

    # Commits -------------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether it is time for `commit`."""
        if self._pending is not None:
            return now >= self._next_try
        if now - self._last_commit >= self.settings.commit_s:
            return True
        most = self.settings.commit_records
        return sum(joiner.ready(most) for joiner in self._joiners.values()) >= most

    def commit(self, now: float, *, everything: bool = False) -> bool:
        """Make durable what is ready; True if something was.

        Raises:
            StoreError: it could not be stored; it is kept for the next call.
        """
        self._last_commit = now
        if self._pending is None:
            self._pending = self._gather(now, everything)
        batch = self._pending
        released = _by_stream(batch.released)
        cursors = self._cursors(released)
        news = bool(batch.records or batch.events or cursors)  # alerts come with records
        try:
            if news:
                self._write_attempts()
                self.writer.commit(
                    batch.records, streams=cursors, events=batch.events, alerts=batch.alerts
                )
        except Exception as error:  # whatever the store's engine raises: the frames stay here
            self._failures += 1
            wait_s = self.settings.retry_s * min(2 ** (self._failures - 1), 16)
            self._next_try = now + wait_s
            raise StoreError(f"Run {self.name!r} cannot be stored: {error}") from error
        self._failures, self._pending = 0, None
        self._stored |= cursors
        self.records += len(batch.records)
        self.alerts += sum(alert.last_step is None for alert in batch.alerts)
        for name, sequences in released.items():
            if name in self.streams:
                self.streams[name].cursor.release(sequences)
        return news

    def compact(self) -> None:
        """Let the store do a piece of its housekeeping, if any is due.

        Raises:
            StoreError: it did not work; it will be tried again.
        """
        try:
            self.writer.compact_if_due()
        except Exception as error:  # whatever the store's engine raises
            raise StoreError(f"Run {self.name!r} could not be compacted: {error}") from error

    def held_bytes(self) -> int:
        """Bytes of the frames in memory."""
        return sum(joiner.held_bytes for joiner in self._joiners.values())

    def is_done(self, now: float) -> bool:
        """Whether every rank of every attempt has said goodbye or is gone, and all is stored."""
        return self._pending is None and all(
            joiner.open_records == 0 and joiner.everyone_is_gone(now, self._started[attempt])
            for attempt, joiner in self._joiners.items()
        )

    def prune(self, now: float) -> Iterator[Stream]:
        """Forget the streams that have ended and are wholly durable, and attempts without any."""
        for stream in list(self.streams.values()):
            joiner = self._joiners[stream.attempt]
            gone = joiner.last_seen(stream.rank) is None
            answered = stream.told_committed >= stream.cursor.committed or not stream.ended
            if gone and answered and not stream.cursor.waiting:
                del self.streams[stream.name]
                yield stream
        used = {stream.attempt for stream in self.streams.values()}
        for attempt, joiner in list(self._joiners.items()):
            old = attempt not in used and attempt != max(self._joiners)
            if (
                old
                and not joiner.open_records
                and joiner.everyone_is_gone(now, self._started[attempt])
            ):
                del self._joiners[attempt], self._started[attempt], self._ranks[attempt]
                self._budgets.pop(attempt, None)
                self._refused.pop(attempt, None)

    def close(self, now: float) -> None:
        """Commit all there is, mark the run as finished and let its store go.

        Raises:
            StoreError: something could not be stored.
        """
        try:
            while self.commit(now, everything=True):
                pass
            self.writer.finish()
        except StoreError:
            raise
        except Exception as error:  # whatever the store's engine raises
            raise StoreError(f"Run {self.name!r} could not be finished: {error}") from error
        finally:
            self.writer.close()

    # Inside --------------------------------------------------------------------------------------

    def _refusal(self, hello: Hello, attempt: int, mesh: Mapping[str, int], now: float) -> str:
        joiner, stream = self._joiners.get(attempt), self.streams.get(hello.stream)
        if stream is not None and (stream.attempt, stream.rank) != (attempt, hello.rank):
            return f"Stream {hello.stream} belongs to rank {stream.rank} already."
        if joiner is None:
            return ""
        if (joiner.world_size, self._meshes[attempt]) != (hello.world_size, mesh):
            return (
                f"This start of run {self.name!r} has {joiner.world_size} ranks on mesh "
                f"{self._meshes[attempt]}, got {hello.world_size} on {dict(mesh)}."
            )
        seen = joiner.last_seen(hello.rank)
        others = (
            [
                other
                for other in self.streams.values()
                if (other.attempt, other.rank) == (attempt, hello.rank)
                and other.name != hello.stream
                and not other.ended
            ]
            if seen is not None and stream is None
            else []
        )
        if others and seen is not None and now - seen < self.settings.joiner.lost_after_s / 6:
            return (
                f"Rank {hello.rank} of run {self.name!r} is being received from another process; "
                "give each job its own run."
            )
        return ""

    def _begin(self, attempt: int, world_size: int, mesh: dict[str, int], now: float) -> None:
        self._joiners[attempt] = Joiner(
            attempt,
            world_size,
            site=lambda index: self.writer.sites[index],
            settings=self.settings.joiner,
        )
        self._started[attempt] = now
        self._meshes[attempt] = mesh
        self._ranks[attempt] = {}

    def _introduce(self, attempt: int, hello: Hello) -> None:
        self._ranks[attempt][hello.rank] = RankInfo(
            rank=hello.rank,
            host=hello.host,
            process=hello.process,
            device=hello.device,
            coordinates={axis.name: axis.coordinate for axis in hello.mesh},
            facts=hello.facts,
        )
        self._unwritten.add(attempt)

    def _count_at(self, stream: Stream, schema: Schema, indices: Sequence[int]) -> list[CountedAt]:
        """Where the run keeps a schema's quantities; what it has no room for is told."""
        asked = [(indices[one.site], one.name) for one in schema.quantities]
        places = self.writer.add_quantities(asked)
        refused = {one for one, place in zip(asked, places, strict=True) if place is None}
        new = sorted(refused - self._refused[stream.attempt])
        if new:
            self._refused[stream.attempt].update(new)
            site, name = new[0]
            label = self.writer.sites[site].label
            text = (
                f"{len(new)} quantities are not stored, {name} of {label} the first: "
                f"a run has room for {MAX_NUMBERS} counts."
            )
            self._joiners[stream.attempt].tell("no-room", stream.rank, -1, text)
        return [
            CountedAt(one.site, place, quantity_named(one.name).shape)
            for one, place in zip(schema.quantities, places, strict=True)
        ]

    def _write_attempts(self) -> None:
        for attempt in sorted(self._unwritten & self._joiners.keys()):
            ranks = [info for _, info in sorted(self._ranks[attempt].items())]
            world_size = self._joiners[attempt].world_size
            self.writer.set_attempt(attempt, world_size, self._meshes[attempt], ranks)
        self._unwritten.clear()

    def _gather(self, now: float, everything: bool) -> Batch:
        gathered, index = Batch(), self.writer.next_record
        for attempt in sorted(self._joiners):
            most = _up_to_a_chunk(index, self.settings.commit_records)
            batch = self._joiners[attempt].tick(now, index, most=most, everything=everything)
            index += sum(record.index >= index for record in batch.records)
            gathered.records += batch.records
            gathered.events += map(self._dated, batch.events)
            gathered.alerts += batch.alerts
            gathered.released += batch.released
        return gathered

    def _dated(self, event: Event) -> Event:
        return event if event.time_ns else replace(event, time_ns=self._wall_ns())

    def _cursors(self, released: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Where each stream stands once these frames are durable, if that is not stored yet."""
        cursors = {
            name: stream.cursor.committed_after(released.get(name, ()))
            for name, stream in self.streams.items()
        }
        return {
            name: number for name, number in cursors.items() if number > self._stored.get(name, -1)
        }

    def _tell_gaps(self, stream: Stream, gaps: Sequence[Gap], missing: int, step: int) -> None:
        joiner = self._joiners[stream.attempt]
        for gap in gaps or [Gap(first_step=step, last_step=step, frames=missing, cause="unknown")]:
            frames = min(gap.frames, missing)
            text = (
                f"Rank {stream.rank} lost {frames} frames of steps {gap.first_step} to "
                f"{gap.last_step}: {gap.cause}."
            )
            joiner.tell("gap", stream.rank, gap.first_step, text)


def _up_to_a_chunk(index: int, most: int) -> int:
    """How many records from `index` on, of at most `most`, end with a chunk of the store.

    A chunk that is full need not be written again; where none ends there it is `most`.
    """
    end = (index + most) // CHUNK["tail"] * CHUNK["tail"]
    return end - index if end > index else most


def _by_stream(released: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = defaultdict(list)
    for name, pairs in groupby(released, key=lambda pair: pair[0]):
        grouped[name] += [sequence for _, sequence in pairs]
    return grouped


def _info(site: Site) -> SiteInfo:
    return SiteInfo(
        kind=site.kind,
        name=site.name,
        slot=site.slot,
        occurrence=site.occurrence,
        dtype=site.dtype,
        shape=tuple(site.shape),
        module=site.module,
        order=site.order,
        placement=dict(site.placement),
        aliases=tuple(site.aliases),
        checked=site.checked,
        whole=tuple(site.whole),
        cuts=tuple(site.cuts),
    )
