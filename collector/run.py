"""One run in the collector: its streams, its attempts, and the records in the making."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from ..merge.placement import Layout, groups_of
from ..sinks.fanout import Sinks
from ..store.record import Event
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
from .cursor import Cursor
from .joiner import UNREADABLE, Joiner
from .ranks import Place
from .room import Names
from .schemas import Schemas
from .settings import CollectorSettings
from .storing import Storing
from .stream import Stream
from .two_jobs import TwoJobs

Said = TypeVar("Said", FrameHeader, JoinedMember)

logger = logging.getLogger(__name__)

ELSEWHERE = "it is in the spool of a relay that the rank has left, or in a store that is gone"


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
        self._writer = writer
        self._catalog = writer.catalog
        self._wall_ns = wall_ns
        self._attempts: dict[int, Attempt] = {}
        """Those that have ranks which are heard of, or whose records are not all stored."""
        self._schemas = Schemas(name, writer.catalog, settings)
        self._elsewhere: dict[str, tuple[int, float]] = {}
        """Streams that wait for frames which lie in a spool: what was here, and since when."""
        self._training, self._health = Names(meta.training), Names(meta.health)
        self._told_of_names = False
        self._is_sealed = False
        self._two_jobs = TwoJobs()
        self.storing = Storing(
            name, writer, settings, self.streams, self._attempts, wall_ns, sinks or Sinks()
        )

    # Streams -------------------------------------------------------------------------------------

    def awaits(self, hello: Hello, now: float) -> str:
        """Why a stream is not to go on yet: a relay that it has left is to bring frames of it.

        They come in order or not at all. Nothing to be waited for, or no longer: an empty text.
        """
        stream = self.streams.get(hello.stream)
        stored = self.storing.stored.get(hello.stream, -1)
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
                cursor=Cursor(self.storing.stored.get(hello.stream, -1)),
            )
        stream.peer, stream.needs_schema, stream.ended, stream.user = peer, False, False, user
        stream.told_received = stream.told_committed = -2
        stream.told_failing = ""
        stream.told_control = None
        stream.is_leaving = stream.is_leave_gathered = False
        stream.excuse = ELSEWHERE if hello.durable > stream.cursor.received else ""
        self.storing.leave(number, back={hello.rank})
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
        if joiner.ranks.is_deserted:
            self.storing.hurry()

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

    def world_size(self, attempt: int) -> int:
        """How many ranks an attempt has."""
        return self._attempts[attempt].world_size

    @property
    def open_records(self) -> int:
        """How many records still wait for ranks."""
        return sum(one.joiner.open_records for one in self._attempts.values())

    def held_bytes(self) -> int:
        """What frames, and records that are not durable yet, take of memory."""
        frames = sum(one.joiner.held_bytes for one in self._attempts.values())
        return frames + self.storing.held_bytes

    @property
    def is_awaited(self) -> bool:
        """Whether another collector waits to write the run."""
        return self._writer.is_awaited

    def is_done(self, now: float) -> bool:
        """Whether every rank of every attempt has said goodbye or is gone, and all is stored."""
        return (
            self.storing.is_done
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
        if stream is None and len(self.storing.stored) >= self.settings.max_stored_streams:
            return f"Run {self.name!r} has had {len(self.storing.stored)} streams: take another."
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
        newest = self.storing.newest
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
        newest = self.storing.newest
        step = newest[1] if newest and newest[0] == number else 0
        gone = {*before.left, *lost_of(self._writer, number)}
        words = f"{AGAIN}; its last step that is stored is {step}."
        for rank in sorted({info.rank for info in before.ranks} - gone):
            text = f"Rank {rank} {words}"
            lost = Event(kind="rank-lost", attempt=number, rank=rank, step=step, text=text)
            self.storing.tell(lost)

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
