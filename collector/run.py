"""One run in the collector: its streams, the records in the making, and its commits.

A frame is acknowledged as durable only after the commit that holds its record.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from ..merge.placement import (
    CountedAt,
    DerivedAt,
    Layout,
    ReadingAt,
    cell_of,
    groups_of,
    lay_out,
    part_of,
)
from ..sinks.fanout import Sinks, Stored
from ..sketch.errors import StoreError
from ..sketch.exact_counts import MAX_NUMBERS, exact_count_named
from ..sketch.spectra import width_of
from ..store.incidents import IncidentLog
from ..store.layout import CHUNK
from ..store.record import Alert, Event, QuantityInfo, RankInfo, Record, SiteInfo
from ..store.writer import RunWriter
from ..wire.codec import PackedFrame
from ..wire.joined import JoinedFrame
from ..wire.messages import (
    LEAST_BUDGET,
    MAX_READ,
    Alerts,
    Control,
    FrameHeader,
    Gap,
    Goodbye,
    Hello,
    JoinedHeader,
    JoinedMember,
    Schema,
    Site,
    State,
)
from .budget import Budget
from .commits import Commits
from .cursor import Cursor
from .joiner import UNREADABLE, Batch, Joiner, Place
from .response import Response
from .room import Names
from .settings import CollectorSettings
from .stream import Known, Stream

logger = logging.getLogger(__name__)

Said = TypeVar("Said", FrameHeader, JoinedMember)

NOTICE_STEPS = 8
"""Agents hear some steps before of a change, so that most ranks begin it in the same."""
RECORDS_SHARE = 4
"""Of what may be held a fourth, at most, are records that wait to be durable: then no more are
made, but for those of one commit."""
RECALLED, RECALLED_ROWS = 64, 1 << 15
"""Records that rules are shown again when an attempt goes on after a restart, and rows of these."""
LAYOUT_BYTES = 64
"""What a site takes of each stream's memory, beside the schema."""


class Run:
    """The session of one run.

    Args:
        name: of the run.
        writer: the only one of its store.
        wall_ns: the wall clock, nanoseconds since 1970.
        sinks: are told what is stored, and what was found wrong.
    """

    def __init__(
        self,
        name: str,
        writer: RunWriter,
        settings: CollectorSettings,
        wall_ns: Callable[[], int],
        sinks: Sinks | None = None,
    ) -> None:
        meta = writer.catalog.meta
        self.name = name
        self.settings = settings
        self.streams: dict[str, Stream] = {}
        self.records = 0
        self.alerts = 0
        self.lost_frames = 0
        self.lag_s = 0.0
        """From the end of the newest step that is stored to when it was."""
        self._writer = writer
        self._catalog = writer.catalog
        self._commits = Commits(writer, settings)
        self._ready: Batch | None = None
        """What was gathered, and is to be stored with the next commit."""
        self._next_record = writer.next_record
        self._usual_bytes = 0
        """What a record takes of memory, by the last."""
        self._newest = writer.newest()
        """Attempt and step of the newest record."""
        self._wall_ns = wall_ns
        self._sinks = sinks or Sinks()
        self._joiners: dict[int, Joiner] = {}
        self._budgets: dict[int, Budget] = {}
        self._relief: dict[int, Control] = {}
        """By attempt: what an overloaded collector asks for."""
        self._responses: dict[int, Response] = {}
        self._started: dict[int, float] = {}
        self._incidents: dict[int, IncidentLog] = {}
        self._ranks: dict[int, dict[int, RankInfo]] = {}
        self._meshes: dict[int, dict[str, int]] = {}
        self._training, self._health = Names(meta.training), Names(meta.health)
        self._told_of_names = False
        self._shared: WeakValueDictionary[bytes, Schema] = WeakValueDictionary()
        """Schemas by hash: ranks that have the same one share it."""
        self._schema_bytes = self._site_bytes = 0
        self._refused: defaultdict[int, set[tuple[int, str]]] = defaultdict(set)
        """By attempt: exact counts for which the run has no room, of which an event told."""
        self._cramped: set[int] = set()
        """Attempts with quantities for which the run has no room, of which an event told."""
        self._unwritten: set[int] = set()
        self._is_sealed = False
        self._gathered_at = float("-inf")
        self._everyone_left = False
        """Whether all ranks of an attempt have left, and wait for what they sent to be durable."""

    # Streams -------------------------------------------------------------------------------------

    def join(self, hello: Hello, peer: bytes, now: float, user: str = "") -> Stream | str:
        """The stream of `hello`, on a new connection; or why it is refused, in one sentence.

        Args:
            user: public key of who says it; empty where there are no keys.

        Raises:
            StoreError: the attempt cannot be registered.
        """
        launches = [attempt.launch for attempt in self._catalog.meta.attempts]
        is_new = hello.launch not in launches
        attempt = len(launches) if is_new else launches.index(hello.launch)
        mesh = {axis.name: axis.size for axis in hello.mesh}
        refusal = self._refusal(hello, attempt, mesh, now, user)
        if refusal:
            return refusal
        self._catalog.attempt_of(hello.launch)
        if attempt not in self._joiners:
            self._begin(attempt, hello.world_size, mesh, now)
        stream = self.streams.get(hello.stream)
        if stream is None:
            stream = self.streams[hello.stream] = Stream(
                name=hello.stream,
                run=self.name,
                settings=self.settings,
                attempt=attempt,
                rank=hello.rank,
                mesh=hello.mesh,
                groups=groups_of(hello.mesh, hello.host),
                peer=peer,
                cursor=Cursor(self._commits.stored.get(hello.stream, -1)),
            )
        stream.peer, stream.needs_schema, stream.ended, stream.user = peer, False, False, user
        stream.told_received = stream.told_committed = -2
        stream.told_control = None
        stream.is_leaving = stream.is_leave_gathered = False
        self._leave(attempt, back={hello.rank})
        if hello.budget >= LEAST_BUDGET:
            self._budgets.setdefault(attempt, Budget(hello.budget))
        self._responses[attempt].is_of_use |= hello.keeps_back
        self._joiners[attempt].hear(hello.rank, now)
        self._introduce(attempt, hello)
        return stream

    def peer_of(self, name: str) -> bytes:
        """The connection of a stream; empty if there is none."""
        stream = self.streams.get(name)
        return b"" if stream is None else stream.peer

    def learn(self, stream: Stream, schema: Schema, size_bytes: int) -> str:
        """Keep a schema of `stream`; why it is refused, or nothing.

        Args:
            size_bytes: what it takes on the wire.

        Raises:
            StoreError: there is no room for it, or for its sites.
        """
        infos = [_info(site, stream.attempt) for site in schema.sites]
        if len({info.label for info in infos}) < len(infos):
            return "A schema names a site twice."
        self._forget(stream.schemas.pop(schema.hash, None))
        shared = self._shared.get(schema.hash)
        charge = LAYOUT_BYTES * len(infos) + (size_bytes if shared is None else 0)
        self._check_room(infos, size_bytes, charge)
        indices = self._catalog.add_sites(infos)
        schema = self._shared.setdefault(schema.hash, schema)
        counted = self._count_at(stream, schema, indices)
        derived = self._derive_at(stream, schema)
        layout = lay_out(schema.sites, indices, stream.mesh, counted, stream.groups, derived)
        layout = replace(layout, schema=schema)
        stream.schemas[schema.hash] = Known(schema, layout, charge)
        self._schema_bytes += charge
        stream.needs_schema = False
        while len(stream.schemas) > self.settings.max_schemas:
            self._forget(stream.schemas.popitem(last=False)[1])
        return ""

    def feed(self, stream: Stream, frame: PackedFrame, layout: Layout, now: float) -> bool:
        """Take in a frame; False if it had come before."""
        frame = self._with_known_names(stream, frame)
        header = frame.header
        missing = stream.cursor.receive(header.sequence, frame.size_bytes)
        joiner = self._joiners[stream.attempt]
        if missing is None:
            joiner.hear(stream.rank, now)
            return False
        lost = _lost(header.gaps, missing, header.step)
        joiner.feed(stream.rank, stream.name, frame, layout, now, lost)
        budget = self._budgets.get(stream.attempt)
        if budget is not None and stream.attempt not in self._relief:
            budget.hear(stream.rank, header.step, header.health)
        return True

    def feed_joined(
        self, streams: Sequence[Stream], frame: JoinedFrame, layout: Layout, now: float
    ) -> None:
        """Take in a joined frame of these streams, of which none of its frames had come before."""
        frame = self._with_members_known_names(streams, frame)
        header, first = frame.header, streams[0]
        names = tuple(stream.name for stream in streams)
        of_all = first.layouts.get((header.schema, names))
        if of_all is None:
            groups = [name for stream in streams for name in stream.groups]
            while len(first.layouts) >= self.settings.max_schemas:
                first.layouts.popitem(last=False)
            of_all = first.layouts[header.schema, names] = replace(layout, groups=groups)
        lost = dict[int, Sequence[Gap]]()
        for stream, member in zip(streams, header.members, strict=True):
            share = frame.size_bytes // len(streams)
            missing = stream.cursor.receive(member.sequence, share) or 0
            lost[stream.rank] = _lost(member.gaps, missing, header.step)
            budget = self._budgets.get(stream.attempt)
            if budget is not None and stream.attempt not in self._relief:
                budget.hear(stream.rank, header.step, member.health)
        self._joiners[first.attempt].feed_joined(list(lost), frame, of_all, now, lost)

    def refuses(self, streams: Sequence[Stream], header: FrameHeader | JoinedHeader) -> bool:
        """Whether a frame, and so all later ones of its streams, is left to the next collector."""
        joiner, final = self._joiners[streams[0].attempt], header.final
        kept = isinstance(header, FrameHeader) and header.kept
        if self._is_sealed and any(
            one.is_held_off or joiner.begins(one.rank, header.step, final=final, kept=kept)
            for one in streams
        ):
            for one in streams:
                one.is_held_off = True
                joiner.pass_over(one.rank)
        return any(one.is_held_off for one in streams)

    def seal(self) -> None:
        """Begin no record any more: complete those that are open."""
        self._is_sealed = True

    @property
    def is_awaiting(self) -> bool:
        """Whether an open record waits for a rank."""
        return any(joiner.is_awaiting for joiner in self._joiners.values())

    def skip(
        self, stream: Stream, sequence: int, step: int, gaps: Sequence[Gap], reason: str
    ) -> None:
        """A frame cannot be read: tell it, and the gaps that it told; the stream goes on after."""
        missing = stream.cursor.receive(sequence, 0)
        if missing is not None:
            cause = f"{UNREADABLE}: {reason.rstrip('.')}"
            own = Gap(first_step=step, last_step=step, frames=1, cause=cause)
            lost = [*_lost(gaps, missing, step), own]
            self._joiners[stream.attempt].lose(stream.rank, stream.name, sequence, lost)

    def hear(self, stream: Stream, state: State, now: float) -> None:
        """A sign of life."""
        place = Place(state.step, state.tensors, state.site)
        self._joiners[stream.attempt].hear(stream.rank, now, place)

    def leave(self, stream: Stream, goodbye: Goodbye) -> None:
        """The stream has ended; it gets an answer once all of it is durable, this too."""
        missing = stream.cursor.receive(goodbye.last, 0)
        if missing is not None:  # it has a number of its own, or frames before it never came
            step = self._joiners[stream.attempt].newest_step()
            stream.farewell = _lost(goodbye.gaps, missing + (not goodbye.gaps), step)
        stream.ended = stream.is_leaving = True
        stream.told_committed = -2
        joiner = self._joiners[stream.attempt]
        joiner.leave(stream.rank, goodbye.reason)
        self._everyone_left = self._everyone_left or joiner.is_deserted

    def steer(self) -> Iterator[tuple[Stream, Control | Alerts]]:
        """Which streams are to be told how to go on, if some do not know it."""
        told = {attempt: response.take() for attempt, response in self._responses.items()}
        for attempt, budget in self._budgets.items():
            joiner = self._joiners[attempt]
            change = budget.decide(joiner.present())
            if change is not None:
                joiner.tell("budget", change.rank, change.step, change.text)
        for stream in self.streams.values():
            budget = self._budgets.get(stream.attempt)
            asked = (budget and budget.control, self._relief.get(stream.attempt))
            control = max((one for one in asked if one), key=_stretch, default=None)
            if stream.ended:
                continue
            yield from ((stream, alerts) for alerts in told[stream.attempt])
            if control is not None and control != stream.told_control:
                stream.told_control = control
                yield stream, control

    def relieve(self, stretch: int) -> None:
        """Have all agents measure so many times as rarely: the collector does not keep up."""
        for attempt, joiner in self._joiners.items():
            step = joiner.newest_step() + NOTICE_STEPS
            self._relief[attempt] = Control(stretch=stretch, from_step=step)
            often = f"{stretch} times as rarely as asked for" if stretch > 1 else "as asked for"
            why = "does not keep up" if stretch > 1 else "keeps up again"
            text = f"The collector {why}: from step {step} on each site is sketched {often}."
            joiner.tell("overload", -1, step, text)

    def lose_absent(self, why: str) -> None:
        """Tell all ranks as lost that have not said goodbye; see `Joiner.lose_absent`."""
        for joiner in self._joiners.values():
            joiner.lose_absent(why)

    # Commits -------------------------------------------------------------------------------------

    @property
    def failing(self) -> str:
        """Why the last commit did not work; empty if it did."""
        return self._commits.failing

    @property
    def is_storing(self) -> bool:
        """Whether a commit is under way."""
        return self._commits.is_busy

    def is_behind(self, now: float) -> bool:
        """Whether there is something to gather at once."""
        return self._due(now) > 0

    @property
    def commit_s(self) -> float:
        """How long the last commit took."""
        return self._commits.last_s

    def advance(self, now: float) -> bool:
        """Gather what is due and go on with storing; whether something has become durable.

        Raises:
            StoreError: a commit failed; it is kept for another try.
            BusyError: another collector has taken the run over; nothing more can be stored here.
        """
        stored = self._commits.take(now)
        if stored is not None:
            self._release(stored)
        most = self._due(now)
        if most:
            self._gather(now, most)
        if self._ready is not None and self._commits.is_free:
            self._begin_commit(self._ready)
        return stored is not None

    def world_size(self, attempt: int) -> int:
        """How many ranks an attempt has."""
        return self._joiners[attempt].world_size

    @property
    def open_records(self) -> int:
        """How many records still wait for ranks."""
        return sum(joiner.open_records for joiner in self._joiners.values())

    def held_bytes(self) -> int:
        """What frames, and records that are not durable yet, take of memory."""
        return self._record_bytes() + sum(one.held_bytes for one in self._joiners.values())

    @property
    def is_awaited(self) -> bool:
        """Whether another collector waits to write the run."""
        return self._writer.is_awaited

    def is_done(self, now: float) -> bool:
        """Whether every rank of every attempt has said goodbye or is gone, and all is stored."""
        return (
            self._ready is None
            and self._commits.is_free
            and all(
                joiner.open_records == 0 and joiner.everyone_is_gone(now, self._started[attempt])
                for attempt, joiner in self._joiners.items()
            )
        )

    def prune(self, now: float) -> Iterator[Stream]:
        """Forget the streams that have ended and are wholly durable, and attempts without any."""
        for stream in list(self.streams.values()):
            joiner = self._joiners[stream.attempt]
            gone = joiner.last_seen(stream.rank) is None
            answered = stream.told_committed >= stream.cursor.committed or not stream.ended
            if gone and answered and not stream.cursor.waiting:
                for known in stream.schemas.values():
                    self._forget(known)
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
                self._relief.pop(attempt, None)
                self._responses.pop(attempt, None)
                self._refused.pop(attempt, None)
                self._incidents.pop(attempt, None)

    def close(self, now: float) -> None:
        """Commit all there is, mark the run as finished and let its store go.

        Raises:
            StoreError: something could not be stored.
        """
        try:
            self._wait_for_commit(now)
            self._gather(now, self._most_records(), everything=True)
            while self._ready is not None and self._begin_commit(self._ready):
                self._wait_for_commit(now)
                self._gather(now, self._most_records(), everything=True)
            self._writer.finish()
        except StoreError:
            raise
        except Exception as error:  # whatever the store's engine raises
            raise StoreError(f"Run {self.name!r} could not be finished: {error}") from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let the store go without storing what is here: the ranks will send it again."""
        self._commits.close()
        self._writer.close()
        self._sinks.ended(self.name)

    # Inside --------------------------------------------------------------------------------------

    def _refusal(
        self, hello: Hello, attempt: int, mesh: Mapping[str, int], now: float, user: str
    ) -> str:
        joiner, stream = self._joiners.get(attempt), self.streams.get(hello.stream)
        if stream is not None and (stream.attempt, stream.rank) != (attempt, hello.rank):
            return f"Stream {hello.stream} belongs to rank {stream.rank} already."
        if stream is not None and stream.user != user and not stream.ended:
            return f"Stream {hello.stream} belongs to an agent with another key."
        if attempt >= self.settings.max_attempts:
            return (
                f"Run {self.name!r} was started {self.settings.max_attempts} times: take another."
            )
        if stream is None and len(self._commits.stored) >= self.settings.max_stored_streams:
            return f"Run {self.name!r} has had {len(self._commits.stored)} streams: take another."
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

    def _check_room(self, infos: Sequence[SiteInfo], size_bytes: int, charge: int) -> None:
        """Refuse a schema that takes the run's memory, or makes what it stores of sites endless."""
        if self._schema_bytes + charge > self.settings.schema_bytes:
            raise StoreError(
                f"The schemas of run {self.name!r} would take more than "
                f"{self.settings.schema_bytes >> 20} MiB."
            )
        if not self._catalog.knows(infos):
            if self._site_bytes + size_bytes > self.settings.site_bytes:
                raise StoreError(f"Run {self.name!r} was told of new sites too often.")
            self._site_bytes += size_bytes

    def _forget(self, known: Known | None) -> None:
        if known is not None:
            self._schema_bytes -= known.size_bytes

    def _with_known_names(self, stream: Stream, frame: PackedFrame) -> PackedFrame:
        """The frame without the numbers for whose names the run has no room, which is told."""
        header = self._known(stream, frame.header)
        return frame if header is frame.header else replace(frame, header=header)

    def _with_members_known_names(
        self, streams: Sequence[Stream], frame: JoinedFrame
    ) -> JoinedFrame:
        """The same of all members of a joined one."""
        pairs = zip(streams, frame.header.members, strict=True)
        members = [self._known(stream, member) for stream, member in pairs]
        return replace(frame, header=msgspec.structs.replace(frame.header, members=members))

    def _known(self, stream: Stream, said: Said) -> Said:
        world_size = self._joiners[stream.attempt].world_size
        training = self._training.fit(said.training, world_size)
        health = self._health.fit(said.health, world_size)
        if training is None and health is None:
            return said
        if not self._told_of_names:
            self._told_of_names = True
            text = "Numbers with new names are not stored: the run has no room for more of them."
            self._joiners[stream.attempt].tell("no-room", stream.rank, -1, text)
        return msgspec.structs.replace(
            said,
            training=said.training if training is None else training,
            health=said.health if health is None else health,
        )

    def _begin(self, attempt: int, world_size: int, mesh: dict[str, int], now: float) -> None:
        self._joiners[attempt] = Joiner(
            attempt,
            world_size,
            site=lambda index: self._catalog.meta.site(index, attempt),
            settings=self.settings.joiner,
        )
        place = {site.label: index for index, site in enumerate(self._catalog.meta.sites)}
        last_step = self._newest[1] if self._newest and self._newest[0] == attempt else None
        if self._catalog.meta.attempts[attempt].ranks:
            self._recall_lost(attempt)
        self._joiners[attempt].recall_left(self._catalog.meta.attempts[attempt].left)
        if last_step is not None:
            self._recall(attempt, world_size)
        self._joiners[attempt].watch.resume(
            self._writer.alerts(attempt), place.__getitem__, last_step
        )
        self._incidents[attempt] = IncidentLog(
            self._writer.alerts(attempt), self._catalog.meta.sites
        )
        self._responses[attempt] = Response(self.settings.joiner.rules.closer)
        self._started[attempt] = now
        self._meshes[attempt] = mesh
        self._catalog.set_attempt(attempt, world_size, mesh, ())
        self._ranks[attempt] = {}

    def _recall(self, attempt: int, world_size: int) -> None:
        """Let rules remember the last records of an attempt that an earlier collector began."""
        most = min(RECALLED, RECALLED_ROWS // max(len(self._catalog.meta.sites), 1))
        try:
            records = self._writer.replay(attempt, most)
            self._joiners[attempt].watch.recall(records, world_size=world_size)
        except Exception as error:  # whatever the store's engine raises: no frame waits for it
            text = "Rules remember nothing of run %r from before: %r"
            logger.warning(text, self.name, error)

    def _recall_lost(self, attempt: int) -> None:
        """Which ranks of an attempt that an earlier collector began are told as lost."""
        try:
            self._joiners[attempt].recall_lost(self._writer.lost(attempt))
        except Exception as error:  # whatever the store's engine raises: no frame waits for it
            text = "Who was lost of run %r before is not known: %r"
            logger.warning(text, self.name, error)

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
        """Where the run keeps a schema's exact counts; what it has no room for is told."""
        asked = [(indices[one.site], one.name) for one in schema.exact_counts]
        places = self._catalog.add_exact_counts(asked)
        refused = {one for one, place in zip(asked, places, strict=True) if place is None}
        new = sorted(refused - self._refused[stream.attempt])
        if new:
            self._refused[stream.attempt].update(new)
            site, name = new[0]
            label = self._catalog.meta.sites[site].label
            text = (
                f"{len(new)} exact counts are not stored, {name} of {label} the first: "
                f"a run has room for {MAX_NUMBERS} counts."
            )
            self._joiners[stream.attempt].tell("no-room", stream.rank, -1, text)
        return [
            CountedAt(one.site, place, exact_count_named(one.name).shape)
            for one, place in zip(schema.exact_counts, places, strict=True)
        ]

    def _derive_at(self, stream: Stream, schema: Schema) -> list[DerivedAt]:
        """Where the run keeps what is read off a schema's series; what has no room is told."""
        infos = [
            QuantityInfo(
                name=reading.quantity,
                of=one.of,
                part=part_of(one.axes, stream.mesh),
                width=width_of(reading.statistic, one.size),
                is_vector=reading.statistic in ("values", "spectrum") and one.size > 1,
                start=0,
            )
            for one in schema.series
            for reading in one.readings
        ]
        places = iter(pairs := list(zip(infos, self._catalog.add_quantities(infos), strict=True)))
        refused = [info.label for info, place in pairs if place is None]
        if refused and stream.attempt not in self._cramped:
            self._cramped.add(stream.attempt)
            text = (
                f"{len(refused)} quantities are not stored, {refused[0]} the first: "
                f"a run has room for {MAX_READ} numbers of them."
            )
            self._joiners[stream.attempt].tell("no-room", stream.rank, -1, text)
        return [
            DerivedAt(
                one.form,
                one.size,
                one.merge,
                cell_of(one.axes, stream.mesh),
                tuple(
                    ReadingAt(reading.statistic, reading.bound, place)
                    for reading, (_, place) in zip(one.readings, places, strict=False)
                    if place is not None
                ),
            )
            for one in schema.series
        ]

    def _write_attempts(self) -> None:
        for attempt in sorted(self._unwritten & self._joiners.keys()):
            ranks = [info for _, info in sorted(self._ranks[attempt].items())]
            world_size = self._joiners[attempt].world_size
            self._catalog.set_attempt(attempt, world_size, self._meshes[attempt], ranks)
        self._unwritten.clear()

    def _due(self, now: float) -> int:
        """How many records are to be gathered now, at most; 0: it is not time yet."""
        if self._record_bytes() > self.settings.held_bytes // RECORDS_SHARE:
            return 0
        if now - self._gathered_at >= self.settings.commit_s:
            return _up_to_a_chunk(self._next_record, self._most_records())
        most, waiting = self._most_records(), self._ready.records if self._ready else ()
        if self._everyone_left and not waiting:
            return _up_to_a_chunk(self._next_record, most)
        # One chunk of the store at a time: messages are answered in between.
        some = min(_up_to_a_chunk(self._next_record, CHUNK["tail"]), most)
        ready = sum(joiner.ready(some) for joiner in self._joiners.values())
        return some if ready >= some <= most - len(waiting) else 0

    def _record_bytes(self) -> int:
        """What the records take that are not durable yet."""
        return self._commits.held_bytes + (0 if self._ready is None else self._ready.size_bytes)

    def _most_records(self) -> int:
        """How many records a commit has, at most."""
        room = self.settings.held_bytes // RECORDS_SHARE // max(self._usual_bytes, 1)
        return max(min(self.settings.commit_records, room), 1)

    def _gather(self, now: float, most: int, *, everything: bool = False) -> None:
        """Add what is ready, at most so many records, to what the next commit is to store."""
        self._gathered_at = now
        self._take_farewells()
        self._ready = gathered = self._ready or Batch()
        for attempt in sorted(self._joiners):
            batch = self._joiners[attempt].tick(
                now, self._next_record, most=most, everything=everything
            )
            for record in batch.records:
                if record.index == self._next_record:
                    self._next_record, self._newest = record.index + 1, (attempt, record.step)
                self._usual_bytes = record.size_bytes
            self._responses[attempt].pace(batch.records)
            self._alarm(attempt, batch.alerts)
            batch.events = list(map(self._dated, batch.events))
            gathered.add(batch)
        self._everyone_left = self._everyone_left and len(gathered.records) > 0
        for stream in self.streams.values():
            stream.is_leave_gathered = stream.is_leaving

    def _judge_quantities(self, records: Sequence[Record]) -> None:
        """What is found in records that are durable is stored with the next."""
        meta = self._catalog.meta
        for record in records:
            joiner = self._joiners.get(record.attempt)
            if joiner is not None and record.derived.numbers().values:
                alerts = joiner.judge_quantities(record, meta.quantities, meta.sites)
                self._alarm(record.attempt, alerts)
                if alerts:
                    self._ready = self._ready or Batch()
                    self._ready.alerts += alerts

    def _alarm(self, attempt: int, alerts: Sequence[Alert]) -> None:
        """Agents and sinks hear at once of what was found, stored or not."""
        self._respond(attempt, alerts)
        if not (alerts and self._sinks.are_there):
            return
        launch, sites = self._launch(attempt), self._catalog.meta.sites
        for alert in alerts:
            self._sinks.alarm(self.name, launch, alert)
        for incident in self._incidents[attempt].add(alerts, sites):
            self._sinks.found(self.name, launch, incident)

    def _respond(self, attempt: int, alerts: Sequence[Alert]) -> None:
        """Agents look closer where it is worth that."""
        response, joiner = self._responses[attempt], self._joiners[attempt]
        begun = [alert for alert in alerts if alert.last_step is None]
        step = joiner.newest_step()
        free = attempt not in self._budgets and attempt not in self._relief
        asked = response.add(begun, step, may_detail=free)
        if asked:
            joiner.tell("closer-look", -1, step, asked)

    def _begin_commit(self, batch: Batch) -> bool:
        """Have it stored; False if there is nothing to store."""
        self._ready = None
        released = _by_stream(batch.released)
        cursors, batch.left = self._cursors(released), self._leavers(released)
        if not (batch.records or batch.events or batch.alerts or cursors or batch.left):
            self._release(batch)
            return False
        self._write_attempts()
        self._commits.begin(batch, cursors)
        return True

    def _wait_for_commit(self, now: float) -> None:
        self._commits.wait()
        stored = self._commits.take(now)
        if stored is not None:
            self._release(stored)

    def _release(self, stored: Batch) -> None:
        """All of it is durable."""
        self.records += len(stored.records)
        self.alerts += sum(alert.last_step is None for alert in stored.alerts)
        self.lost_frames += sum(event.frames for event in stored.events)
        self._tell(stored.records)
        self._judge_quantities(stored.records)
        for name, sequences in _by_stream(stored.released).items():
            if name in self.streams:
                self.streams[name].cursor.release(sequences)
        for name in stored.left:
            if name in self.streams:
                self.streams[name].is_leaving = False

    def _tell(self, records: Sequence[Record]) -> None:
        """Sinks hear of records that are durable."""
        if records:
            newest_ns = max(record.time_ns for record in records)
            self.lag_s = max((self._wall_ns() - newest_ns) / 1e9, 0.0)
        for record in records:
            self._sinks.stored(
                Stored(
                    run=self.name,
                    launch=self._launch(record.attempt),
                    record=record,
                    sites=self._catalog.meta.sites,
                    formats=self._writer.formats,
                )
            )

    def _launch(self, attempt: int) -> str:
        return self._catalog.meta.attempts[attempt].launch

    def _take_farewells(self) -> None:
        """Tell what was lost at the end of streams whose frames are all durable, and so once."""
        for stream in self.streams.values():
            if stream.farewell and len(stream.cursor.waiting) == 1:
                [last] = stream.cursor.waiting
                self._joiners[stream.attempt].lose(stream.rank, stream.name, last, stream.farewell)
                stream.farewell = ()

    def _leavers(self, released: Mapping[str, Sequence[int]]) -> list[str]:
        """Streams of which all is durable once these frames are; that they left is stored, too."""
        leaving = [
            stream
            for stream in self.streams.values()
            if stream.is_leaving
            and stream.is_leave_gathered
            and stream.cursor.committed_after(released.get(stream.name, ()))
            >= stream.cursor.received
        ]
        for attempt in {stream.attempt for stream in leaving}:
            self._leave(attempt, {one.rank for one in leaving if one.attempt == attempt})
        return [stream.name for stream in leaving]

    def _leave(
        self, attempt: int, ranks: Collection[int] = (), *, back: Collection[int] = ()
    ) -> None:
        """Have it stored with the next commit who has left, and who has come back."""
        known = set(self._catalog.meta.attempts[attempt].left)
        left = (known | set(ranks)) - set(back)
        if left != known:
            self._catalog.set_left(attempt, left)

    def _dated(self, event: Event) -> Event:
        return event if event.time_ns else replace(event, time_ns=self._wall_ns())

    def _cursors(self, released: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Where each stream stands once these frames are durable, if that is not stored yet."""
        cursors = {
            name: stream.cursor.committed_after(released.get(name, ()))
            for name, stream in self.streams.items()
        }
        stored = self._commits.stored
        return {name: number for name, number in cursors.items() if number > stored.get(name, -1)}


def _lost(told: Sequence[Gap], missing: int, step: int) -> list[Gap]:
    """What a frame says was lost before it; and what was jumped over and it does not explain."""
    unknown = missing - sum(gap.frames for gap in told)
    if unknown <= 0:
        return list(told)
    return [*told, Gap(first_step=step, last_step=step, frames=unknown, cause="unknown")]


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


def _info(site: Site, attempt: int) -> SiteInfo:
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
        group=site.group,
        attempt=attempt,
    )


def _stretch(control: Control) -> int:
    return control.stretch
