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

import msgspec

from ..merge.placement import Layout, groups_of
from ..sinks.fanout import Sinks, Stored
from ..sinks.troubles import troubles_of
from ..sketch.errors import StoreError
from ..store.layout import CHUNK
from ..store.record import Alert, Event, Record
from ..store.writer import RunWriter
from ..wire.codec import PackedFrame
from ..wire.joined import JoinedFrame
from ..wire.messages import (
    Alerts,
    Control,
    FrameHeader,
    Gap,
    Goodbye,
    Hello,
    JoinedHeader,
    JoinedMember,
    Schema,
    State,
)
from .attempt import AGAIN, Attempt, lost_of
from .commits import Commits
from .cursor import Cursor
from .joiner import UNREADABLE, Batch, Joiner
from .ranks import Place
from .room import Names
from .schemas import Schemas
from .settings import CollectorSettings
from .stream import Stream
from .two_jobs import TwoJobs

Said = TypeVar("Said", FrameHeader, JoinedMember)

logger = logging.getLogger(__name__)

ELSEWHERE = "it is in the spool of a relay that the rank has left, or in a store that is gone"

RECORDS_SHARE = 4
"""Of what may be held a fourth, at most, are records that wait to be durable: then no more are
made, but for those of one commit."""


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
        """Committed, patches among them."""
        self.patches = 0
        """Of records that were committed before."""
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
        self._committed = writer.next_record - 1
        """Index of the newest record that is durable."""
        self._usual_bytes = 0
        """What a record takes of memory, by the last."""
        self._newest = writer.newest()
        """Attempt and step of the newest record."""
        self._wall_ns = wall_ns
        self._sinks = sinks or Sinks()
        self._attempts: dict[int, Attempt] = {}
        """Those that have ranks which are heard of, or whose records are not all stored."""
        self._schemas = Schemas(name, writer.catalog, settings)
        self._elsewhere: dict[str, tuple[int, float]] = {}
        """Streams that wait for frames which lie in a spool: what was here, and since when."""
        self._training, self._health = Names(meta.training), Names(meta.health)
        self._told_of_names = False
        self._is_sealed = False
        self._gathered_at = float("-inf")
        self._began_at = float("-inf")
        """When the last commit with records began."""
        self._two_jobs = TwoJobs()
        self._everyone_left = False
        """Whether all ranks of an attempt have left, and wait for what they sent to be durable."""

    # Streams -------------------------------------------------------------------------------------

    def awaits(self, hello: Hello, now: float) -> str:
        """Why a stream is not to go on yet: a relay that it has left is to bring frames of it.

        They come in order or not at all. Nothing to be waited for, or no longer: an empty text.
        """
        stream = self.streams.get(hello.stream)
        stored = self._commits.stored.get(hello.stream, -1)
        cursor = Cursor(stored) if stream is None else stream.cursor
        before = self._elsewhere.get(hello.stream)
        if before is None or before[0] < cursor.received:
            before = cursor.received, now
        wait_s = self.settings.joiner.deadline_s
        is_over = now - before[1] >= wait_s or len(self._elsewhere) >= self.settings.max_streams
        if hello.durable <= cursor.committed or is_over:
            self._elsewhere.pop(hello.stream, None)
            return ""
        self._elsewhere[hello.stream] = before
        return (
            f"Frames of rank {hello.rank} of run {self.name!r} lie in the spool of a relay that it "
            f"has left: the relay is to bring them first, and is waited for, for {wait_s:g} s."
        )

    def join(self, hello: Hello, peer: bytes, now: float, user: str = "") -> Stream | str:
        """The stream of `hello`, on a new connection; or why it is refused, in one sentence.

        Args:
            user: public key of who says it; empty where there are no keys.

        Raises:
            StoreError: the attempt cannot be registered.
        """
        launches = [attempt.launch for attempt in self._catalog.meta.attempts]
        is_new = hello.launch not in launches
        number = len(launches) if is_new else launches.index(hello.launch)
        mesh = {axis.name: axis.size for axis in hello.mesh}
        refusal = self._refusal(hello, number, mesh, now, user)
        if refusal:
            return refusal
        self._catalog.attempt_of(hello.launch)
        if is_new:
            self._two_jobs.begin(number, self._wall_ns())
        if is_new and number:
            self._lose_those_of(number - 1)
        attempt = self._attempts.get(number) or self._begin(number, hello.world_size, mesh, now)
        stream = self.streams.get(hello.stream)
        if stream is None:
            stream = self.streams[hello.stream] = Stream(
                name=hello.stream,
                run=self.name,
                settings=self.settings,
                attempt=number,
                rank=hello.rank,
                mesh=hello.mesh,
                groups=groups_of(hello.mesh, hello.host),
                peer=peer,
                cursor=Cursor(self._commits.stored.get(hello.stream, -1)),
            )
        stream.peer, stream.needs_schema, stream.ended, stream.user = peer, False, False, user
        stream.told_received = stream.told_committed = -2
        stream.told_failing = ""
        stream.told_control = None
        stream.is_leaving = stream.is_leave_gathered = False
        stream.excuse = ELSEWHERE if hello.durable > stream.cursor.received else ""
        self._leave(number, back={hello.rank})
        attempt.introduce(hello, now)
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
        return self._schemas.learn(stream, self._attempts[stream.attempt], schema, size_bytes)

    def feed(self, stream: Stream, frame: PackedFrame, layout: Layout, now: float) -> bool:
        """Take in a frame; False if it had come before."""
        frame = self._with_known_names(stream, frame)
        header = frame.header
        missing = stream.cursor.receive(header.sequence, frame.size_bytes)
        attempt = self._attempts[stream.attempt]
        if missing is None:
            attempt.joiner.ranks.hear(stream.rank, now)
            return False
        lost = self._lost(stream, header.gaps, missing, header.step)
        self._tell_two_jobs(stream, header.step, header.time_ns)
        attempt.joiner.feed(stream.rank, stream.name, frame, layout, now, lost)
        attempt.hear_health(stream.rank, header.step, header.health)
        return True

    def feed_joined(
        self, streams: Sequence[Stream], frame: JoinedFrame, layout: Layout, now: float
    ) -> None:
        """Take in a joined frame of these streams, of which none of its frames had come before."""
        frame = self._with_members_known_names(streams, frame)
        header, first = frame.header, streams[0]
        attempt = self._attempts[first.attempt]
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
            lost[stream.rank] = self._lost(stream, member.gaps, missing, header.step)
            attempt.hear_health(stream.rank, header.step, member.health)
        self._tell_two_jobs(first, header.step, header.members[0].time_ns)
        attempt.joiner.feed_joined(list(lost), frame, of_all, now, lost)

    def refuses(self, streams: Sequence[Stream], header: FrameHeader | JoinedHeader) -> bool:
        """Whether a frame, and so all later ones of its streams, is left to the next collector."""
        joiner, final = self._joiner_of(streams[0]), header.final
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
        return any(one.joiner.is_awaiting for one in self._attempts.values())

    def skip(
        self, stream: Stream, sequence: int, step: int, gaps: Sequence[Gap], reason: str
    ) -> None:
        """A frame cannot be read: tell it, and the gaps that it told; the stream goes on after."""
        missing = stream.cursor.receive(sequence, 0)
        if missing is not None:
            cause = f"{UNREADABLE}: {reason.rstrip('.')}"
            own = Gap(first_step=step, last_step=step, frames=1, cause=cause)
            lost = [*self._lost(stream, gaps, missing, step), own]
            self._joiner_of(stream).lose(stream.rank, stream.name, sequence, lost)

    def hear(self, stream: Stream, state: State, now: float) -> None:
        """A sign of life."""
        place = Place(state.step, state.tensors, state.site)
        self._joiner_of(stream).ranks.hear(stream.rank, now, place)

    def leave(self, stream: Stream, goodbye: Goodbye) -> None:
        """The stream has ended; it gets an answer once all of it is durable, this too."""
        missing = stream.cursor.receive(goodbye.last, 0)
        if missing is not None:  # it has a number of its own, or frames before it never came
            missing += not goodbye.gaps
            step = self._joiner_of(stream).ranks.newest_step()
            stream.farewell = self._lost(stream, goodbye.gaps, missing, step)
        stream.ended = stream.is_leaving = True
        stream.told_committed = -2
        joiner = self._joiner_of(stream)
        joiner.leave(stream.rank, goodbye.reason)
        self._everyone_left = self._everyone_left or joiner.ranks.is_deserted

    def steer(self) -> Iterator[tuple[Stream, Control | Alerts]]:
        """Which streams are to be told how to go on, if some do not know it."""
        steered = {number: attempt.steer() for number, attempt in self._attempts.items()}
        for stream in self.streams.values():
            if stream.ended:
                continue
            alerts, control = steered[stream.attempt]
            yield from ((stream, one) for one in alerts)
            if control is not None and control != stream.told_control:
                stream.told_control = control
                yield stream, control

    def relieve(self, stretch: int) -> None:
        """Have all agents measure so many times as rarely: the collector does not keep up."""
        for attempt in self._attempts.values():
            attempt.relieve(stretch)

    def lose_absent(self, why: str) -> None:
        """Tell all ranks as lost that have not said goodbye; see `Joiner.lose_absent`."""
        for attempt in self._attempts.values():
            attempt.joiner.lose_absent(why)

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
            GoneError: its store was moved or deleted, likewise.
        """
        stored = self._commits.take(now)
        if stored is not None:
            self._release(stored)
        most = self._due(now)
        if most:
            self._gather(now, most)
        if self._ready is not None and self._commits.is_free:
            self._begin_commit(self._ready, now)
        return stored is not None

    def world_size(self, attempt: int) -> int:
        """How many ranks an attempt has."""
        return self._attempts[attempt].world_size

    @property
    def open_records(self) -> int:
        """How many records still wait for ranks."""
        return sum(one.joiner.open_records for one in self._attempts.values())

    def held_bytes(self) -> int:
        """What frames, and records that are not durable yet, take of memory."""
        return self._record_bytes() + sum(one.joiner.held_bytes for one in self._attempts.values())

    @property
    def is_awaited(self) -> bool:
        """Whether another collector waits to write the run."""
        return self._writer.is_awaited

    def is_done(self, now: float) -> bool:
        """Whether every rank of every attempt has said goodbye or is gone, and all is stored."""
        return (
            self._ready is None
            and self._commits.is_free
            and not self._elsewhere
            and all(attempt.is_over(now) for attempt in self._attempts.values())
        )

    def prune(self, now: float) -> Iterator[Stream]:
        """Forget the streams that have ended and are wholly durable, and attempts without any."""
        for stream in list(self.streams.values()):
            gone = self._joiner_of(stream).ranks.last_seen(stream.rank) is None
            answered = stream.told_committed >= stream.cursor.committed or not stream.ended
            if gone and answered and not stream.cursor.waiting:
                self._schemas.forget(stream)
                del self.streams[stream.name]
                yield stream
        for name, (_, since) in list(self._elsewhere.items()):
            if now - since > 2 * self.settings.joiner.deadline_s:  # it has not come again
                del self._elsewhere[name]
        used = {stream.attempt for stream in self.streams.values()}
        latest = max(self._attempts, default=0)
        for number, attempt in list(self._attempts.items()):
            if number not in used and number != latest and attempt.is_over(now):
                del self._attempts[number]

    def close(self, now: float) -> None:
        """Commit all there is, mark the run as finished and let its store go.

        Raises:
            StoreError: something could not be stored.
        """
        try:
            self._wait_for_commit(now)
            self._gather(now, self._most_records(), everything=True)
            while self._ready is not None and self._begin_commit(self._ready, now):
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
        self, hello: Hello, number: int, mesh: Mapping[str, int], now: float, user: str
    ) -> str:
        attempt, stream = self._attempts.get(number), self.streams.get(hello.stream)
        if stream is not None and (stream.attempt, stream.rank) != (number, hello.rank):
            return f"Stream {hello.stream} belongs to rank {stream.rank} already."
        if stream is not None and stream.user != user and not stream.ended:
            return f"Stream {hello.stream} belongs to an agent with another key."
        if number >= self.settings.max_attempts:
            return (
                f"Run {self.name!r} was started {self.settings.max_attempts} times: take another."
            )
        if stream is None and len(self._commits.stored) >= self.settings.max_stored_streams:
            return f"Run {self.name!r} has had {len(self._commits.stored)} streams: take another."
        if attempt is None:
            return ""
        if (attempt.world_size, attempt.mesh) != (hello.world_size, mesh):
            return (
                f"This start of run {self.name!r} has {attempt.world_size} ranks on mesh "
                f"{attempt.mesh}, got {hello.world_size} on {dict(mesh)}."
            )
        seen = attempt.joiner.ranks.last_seen(hello.rank)
        others = (
            [
                other
                for other in self.streams.values()
                if (other.attempt, other.rank) == (number, hello.rank)
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

    def _tell_two_jobs(self, stream: Stream, step: int, time_ns: int) -> None:
        text = self._two_jobs.find(stream.attempt, time_ns)
        if text:
            logger.warning("Run %r: %s", self.name, text)
            self._joiner_of(stream).telling.tell("two-jobs", stream.rank, step, text)

    def _known(self, stream: Stream, said: Said) -> Said:
        world_size = self.world_size(stream.attempt)
        training = self._training.fit(said.training, world_size)
        health = self._health.fit(said.health, world_size)
        if training is None and health is None:
            return said
        if not self._told_of_names:
            self._told_of_names = True
            text = "Numbers with new names are not stored: the run has no room for more of them."
            self._joiner_of(stream).telling.tell("no-room", stream.rank, -1, text)
        return msgspec.structs.replace(
            said,
            training=said.training if training is None else training,
            health=said.health if health is None else health,
        )

    def _begin(self, number: int, world_size: int, mesh: dict[str, int], now: float) -> Attempt:
        newest = self._newest
        attempt = self._attempts[number] = Attempt(
            number,
            world_size,
            mesh,
            now,
            writer=self._writer,
            settings=self.settings.joiner,
            last_step=newest[1] if newest and newest[0] == number else None,
        )
        return attempt

    def _lose_those_of(self, number: int) -> None:
        """Tell as lost who has not left a start that is over, if nobody else can tell it.

        That is where its collector was killed, too, as when a machine goes down.
        """
        before = self._catalog.meta.attempts[number]
        if number in self._attempts:  # its joiner tells it, once they have been silent for long
            return
        step = self._newest[1] if self._newest and self._newest[0] == number else 0
        gone = {*before.left, *lost_of(self._writer, number)}
        words = f"{AGAIN}; its last step that is stored is {step}."
        for rank in sorted({info.rank for info in before.ranks} - gone):
            text = f"Rank {rank} {words}"
            lost = Event(kind="rank-lost", attempt=number, rank=rank, step=step, text=text)
            self._ready = self._ready or Batch()
            self._ready.events.append(self._dated(lost))

    def _lost(self, stream: Stream, told: Sequence[Gap], missing: int, step: int) -> Sequence[Gap]:
        """What a frame says was lost before it, and what was jumped over and it does not say."""
        cause, stream.excuse = stream.excuse or "unknown", ""
        unknown = missing - sum(gap.frames for gap in told)
        if unknown <= 0:
            return told
        last = self._joiner_of(stream).ranks.last_step(stream.rank)
        first = step if told or last is None else last + 1
        first, end = (first, step - 1) if first < step else (step, step)
        return [*told, Gap(first_step=first, last_step=end, frames=unknown, cause=cause)]

    def _joiner_of(self, stream: Stream) -> Joiner:
        return self._attempts[stream.attempt].joiner

    def _due(self, now: float) -> int:
        """How many records are to be gathered now, at most; 0: it is not time yet."""
        if self._record_bytes() > self.settings.held_bytes // RECORDS_SHARE:
            return 0
        if now - self._gathered_at >= self.settings.commit_s or self._is_rested(now):
            return _up_to_a_chunk(self._next_record, self._most_records())
        most, waiting = self._most_records(), self._ready.records if self._ready else ()
        if self._everyone_left and not waiting:
            return _up_to_a_chunk(self._next_record, most)
        # One chunk of the store at a time: messages are answered in between.
        some = min(_up_to_a_chunk(self._next_record, CHUNK["tail"]), most)
        ready = sum(one.joiner.ready(some) for one in self._attempts.values())
        return some if ready >= some <= most - len(waiting) else 0

    def _is_rested(self, now: float) -> bool:
        """Whether a record is complete that need wait for no others: none was stored lately."""
        return (
            now - self._began_at >= self.settings.commit_s
            and not (self._ready and self._ready.records)
            and any(one.joiner.ready(1) for one in self._attempts.values())
        )

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
        for number, attempt in sorted(self._attempts.items()):
            batch = attempt.joiner.tick(now, self._next_record, most=most, everything=everything)
            self._leave(number, attempt.joiner.ranks.take_left_again())
            for record in batch.records:
                if record.index == self._next_record:
                    self._next_record, self._newest = record.index + 1, (number, record.step)
                self._usual_bytes = record.size_bytes
            attempt.pace(batch.records)
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
            attempt = self._attempts.get(record.attempt)
            if attempt is not None:
                alerts = attempt.joiner.judge_quantities(record, meta.quantities, meta.sites)
                self._alarm(attempt, alerts)
                if alerts:
                    self._ready = self._ready or Batch()
                    self._ready.alerts += alerts

    def _alarm(self, attempt: Attempt, alerts: Sequence[Alert]) -> None:
        """Agents and sinks hear at once of what was found, stored or not."""
        attempt.respond(alerts)
        if not (alerts and self._sinks.are_there):
            return
        launch, sites = self._launch(attempt.number), self._catalog.meta.sites
        for alert in alerts:
            self._sinks.alarm(self.name, launch, alert)
        for incident in attempt.incidents.add(alerts, sites):
            self._sinks.found(self.name, launch, incident)

    def _begin_commit(self, batch: Batch, now: float) -> bool:
        """Have it stored; False if there is nothing to store."""
        self._ready = None
        released = _by_stream(batch.released)
        cursors, batch.left = self._cursors(released), self._leavers(released)
        if not (batch.records or batch.events or batch.alerts or cursors or batch.left):
            self._release(batch)
            return False
        for _, attempt in sorted(self._attempts.items()):
            attempt.write()
        self._commits.begin(batch, cursors)
        if batch.records:
            self._began_at = now
        return True

    def _wait_for_commit(self, now: float) -> None:
        self._commits.wait()
        stored = self._commits.take(now)
        if stored is not None:
            self._release(stored)

    def _release(self, stored: Batch) -> None:
        """All of it is durable."""
        self.records += len(stored.records)
        for one in stored.records:
            self.patches += one.index <= self._committed
            self._committed = max(self._committed, one.index)
        self.alerts += sum(alert.last_step is None for alert in stored.alerts)
        self.lost_frames += sum(event.frames for event in stored.events)
        self._tell(stored.records)
        attempts = self._catalog.meta.attempts
        for one in troubles_of(stored.events, run=self.name, attempts=attempts):
            logger.warning("Run %r: %s", self.name, one.text)
            self._sinks.trouble(one)
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
                )
            )

    def _launch(self, attempt: int) -> str:
        return self._catalog.meta.attempts[attempt].launch

    def _take_farewells(self) -> None:
        """Tell what was lost at the end of streams whose frames are all durable, and so once."""
        for stream in self.streams.values():
            if stream.farewell and len(stream.cursor.waiting) == 1:
                [last] = stream.cursor.waiting
                self._joiner_of(stream).lose(stream.rank, stream.name, last, stream.farewell)
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
