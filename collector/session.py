"""What the collector makes of each message, and what it answers. No sockets, no clock.

The one rule of this file: nothing that a peer sends ends in an exception.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from traceback import format_exc
from typing import Literal, assert_never

from ..sinks.fanout import Sinks
from ..sketch.errors import BusyError, GoneError, NotARunError, ProtocolError, StoreError
from ..store.repository import first_line
from ..store.writer import RunWriter
from ..wire.codec import decode, encode, open_frame
from ..wire.complaints import Complaints
from ..wire.joined import open_joined
from ..wire.messages import (
    MAX_NAME,
    PROTOCOL,
    RUN_NAME,
    Ack,
    FrameHeader,
    Goodbye,
    Hello,
    JoinedHeader,
    Message,
    NeedSchema,
    Ping,
    Pong,
    Reject,
    Schema,
    State,
    Welcome,
)
from ..wire.sender import REFUSED
from ..wire.via import connection
from .joiner import UNREADABLE
from .keeper import keeps
from .overload import Overload
from .run import Run
from .settings import CollectorSettings
from .statistics import CollectorStatistics
from .stream import Stream

logger = logging.getLogger(__name__)

VERSION = version("rankscope")
PRUNE_S = 5.0
STEER_S = 0.5
"""How often it is looked whether agents keep to their budgets."""
BUSY_S = 5.0
"""Seconds after which an agent may ask again for a run that is held by another writer."""
ELSEWHERE_S = 1.0
"""And where frames of its stream are to come from a relay before."""
FULL_S = 30.0
"""And where there is no room for it, or for its sites."""

Code = Literal["protocol", "run", "malformed", "oversized", "stream", "schema", "full"]


class Collector:
    """Runs, streams and their dialogue.

    Args:
        open_run: opens the writer of a run, by name.
        settings: times, sizes and limits.
        wall_ns: the wall clock, nanoseconds since 1970.
        now: seconds, on the clock of all other calls.
        sinks: are told what is stored, and what was found wrong.
    """

    def __init__(
        self,
        open_run: Callable[[str], RunWriter],
        settings: CollectorSettings,
        wall_ns: Callable[[], int],
        now: float,
        sinks: Sinks | None = None,
    ) -> None:
        self.settings = settings
        self.outgoing: list[tuple[bytes, bytes]] = []
        """Peer and message: what is to be sent."""
        self._open_run = open_run
        self._sinks = sinks
        self._wall_ns = wall_ns
        self._started = now
        self._heard = self._is_sealed = False
        self._runs: dict[str, Run] = {}
        self._peers: dict[bytes, Stream] = {}
        self._touched: dict[str, Stream] = {}
        self._complaints = Complaints(logger)
        self._counts = CollectorStatistics()
        self._next_prune = now + PRUNE_S
        self._next_steer = now
        self._overload = Overload()

    # Messages ------------------------------------------------------------------------------------

    def receive(self, peer: bytes, parts: Sequence[bytes], now: float, user: str = "") -> None:
        """Take in one message of `peer`; answers are in `outgoing`.

        Args:
            user: public key of the peer; empty where there are no keys.
        """
        try:
            self._receive(peer, parts, now, user)
        except Exception:  # a fault of ours: one peer's message must not end what serves all
            self._counts.faults += 1
            self._complaints.say("fault", "A message could not be handled.", now, format_exc())

    def _receive(self, peer: bytes, parts: Sequence[bytes], now: float, user: str) -> None:
        stream = self._peers.get(peer)
        try:
            message = decode(parts[0] if parts else b"", "agent")
            if len(parts) != 1 + isinstance(message, FrameHeader | JoinedHeader):
                raise ProtocolError(f"A message came in {len(parts)} parts.")
        except ProtocolError as error:
            self._counts.malformed += 1
            self._complaints.say("malformed", f"{_who(stream)}: {error}", now)
            if stream is None:
                self._reject(peer, "malformed", str(error))
            else:
                self._unread(stream, str(error), is_frame=len(parts) > 1)
            return
        if isinstance(message, Ping):
            self._send(peer, Pong(protocol=PROTOCOL, version=VERSION, time_ns=self._wall_ns()))
        elif isinstance(message, Hello):
            self._hello(peer, message, now, user)
        elif stream is None and isinstance(message, JoinedHeader):
            self._joined(peer, None, message, parts[1], now)
        elif stream is None:
            self._reject(peer, "stream", "This collector does not know you: say hello.", 0.2)
        else:
            self._dispatch(stream, message, parts, now)

    def tick(self, now: float) -> None:
        """Commit what is due, and acknowledge what arrived and what is durable."""
        for run in list(self._runs.values()):
            self._advance(run, now)
        self.acknowledge()
        if now >= self._next_steer:
            self._next_steer = now + STEER_S
            self._steer(now)
        if now >= self._next_prune:
            self._next_prune = now + PRUNE_S
            self._prune(now)

    def is_behind(self, now: float) -> bool:
        """Whether `tick` has something to do at once."""
        return any(run.storing.is_behind(now) for run in self._runs.values())

    def is_done(self, now: float, *, connected: bool) -> bool:
        """Whether there is nothing left to do: see `--until-done`.

        Args:
            connected: somebody is, and may still say hello.
        """
        if not self._heard:
            return not connected and now - self._started > self.settings.first_hello_s
        return all(run.is_done(now) for run in self._runs.values())

    @property
    def is_awaited(self) -> bool:
        """Whether another collector waits for a run of this one, which had its ranks."""
        return self._heard and any(run.is_awaited for run in self._runs.values())

    def lose_absent(self, why: str) -> None:
        """No agent is connected, and this collector waits for none: tell who did not say goodbye.

        Args:
            why: after the name of a rank.
        """
        for run in self._runs.values():
            run.lose_absent(why)

    def seal(self) -> None:
        """Take in only what completes the records that are open: the next collector gets the rest.

        Otherwise each end would cut the steps that are under way into two records.
        """
        self._is_sealed = True
        for run in self._runs.values():
            run.seal()

    @property
    def is_awaiting(self) -> bool:
        """Whether an open record waits for a rank."""
        return any(run.is_awaiting for run in self._runs.values())

    def close(self, now: float) -> None:
        """Commit what there is, finish every run; what fails is logged."""
        for name in list(self._runs):
            self._finish(self._runs[name], now)

    def open(self, name: str, open_run: Callable[[str], RunWriter] | None = None) -> None:
        """Open a run before anybody asks for it.

        Args:
            open_run: does so in another way than for those that ask.

        Raises:
            StoreError: it cannot be opened.
        """
        try:
            writer = (open_run or self._open_run)(name)
        except StoreError:
            raise
        except Exception as error:  # whatever the store's engine raises
            raise StoreError(f"Run {name!r} cannot be opened: {first_line(error)}") from error
        try:
            self._runs[name] = Run(name, writer, self.settings, self._wall_ns, self._sinks)
        except Exception as error:  # of the store's engine, too: another try is to find it free
            writer.close()
            raise StoreError(f"Run {name!r} cannot be opened: {first_line(error)}") from error

    def statistics(self) -> CollectorStatistics:
        """What was done so far."""
        counts, runs = self._counts, self._runs.values()
        counts.streams, counts.runs = len(self._peers), len(self._runs)
        counts.held_bytes = sum(run.held_bytes() for run in runs)
        counts.open_records = sum(run.open_records for run in runs)
        counts.lag_s = max((run.storing.lag_s for run in runs), default=counts.lag_s)
        counts.commit_s = max((run.storing.commit_s for run in runs), default=counts.commit_s)
        return replace(
            counts,
            records=counts.records + sum(run.storing.records for run in runs),
            alerts=counts.alerts + sum(run.storing.alerts for run in runs),
            lost_frames=counts.lost_frames + sum(run.storing.lost_frames for run in runs),
        )

    @property
    def is_storing(self) -> bool:
        """Whether a commit is under way."""
        return any(run.storing.is_busy for run in self._runs.values())

    @property
    def is_full(self) -> bool:
        """Whether agents get no credit back, for want of memory."""
        return self._held_bytes() > self.settings.held_bytes

    @property
    def failing(self) -> str:
        """Why some run cannot be stored at the moment; empty where all can."""
        failures = (run.storing.failing for run in self._runs.values())
        return next(filter(None, failures), "")

    # Inside --------------------------------------------------------------------------------------

    def _dispatch(
        self,
        stream: Stream,
        message: Schema | FrameHeader | JoinedHeader | State | Goodbye,
        parts: Sequence[bytes],
        now: float,
    ) -> None:
        match message:
            case Schema():
                self._learn(stream, message, len(parts[0]), now)
            case FrameHeader():
                self._frame(stream, message, parts[1], now)
            case JoinedHeader():
                self._joined(stream.peer, stream, message, parts[1], now)
            case State():
                stream.unread_after = None
                self._runs[stream.run].hear(stream, message, now)
            case Goodbye():
                self._goodbye(stream, message)
            case _:
                assert_never(message)

    def _unread(self, stream: Stream, reason: str, *, is_frame: bool) -> None:
        """It sent what cannot be read: what is not here is to come again, all of it.

        Where that cannot be read either a frame is left out; of who says anything else in words
        that are none, nothing more is to be had.
        """
        again = stream.unread_after == stream.cursor.received
        stream.unread_after = stream.cursor.received
        if not again:
            self._dismiss(stream, "malformed", reason, 0.2)
        elif is_frame:
            stream.excuse = f"{UNREADABLE}: {reason.rstrip('.')}"
        else:
            goodbye = Goodbye(last=stream.cursor.received, reason=f"{REFUSED}: {reason}")
            self._runs[stream.run].leave(stream, goodbye)
            self._dismiss(stream, "malformed", reason, None)

    def _hello(self, peer: bytes, hello: Hello, now: float, user: str) -> None:
        refusal = self._refusal(hello)
        if refusal:
            self._reject(peer, *refusal)
            self._complaints.say("hello", f"A hello was refused: {refusal[1]}", now)
            return
        try:
            if hello.run not in self._runs:
                self.open(hello.run)
            run = self._runs[hello.run]
            missing = run.awaits(hello, now)
            if missing:
                self._reject(peer, "stream", missing, ELSEWHERE_S)
                self._complaints.say("elsewhere", missing, now)
                return
            before = run.peer_of(hello.stream)
            stream = run.join(hello, peer, now, user)
        except StoreError as error:
            retry_s = None if isinstance(error, NotARunError) else BUSY_S
            self._reject(peer, "run", str(error), retry_s)
            self._complaints.say("hello", f"A hello was refused: {error}", now)
            return
        if isinstance(stream, str):
            self._reject(peer, "stream", stream, BUSY_S)
            self._complaints.say("hello", f"A hello was refused: {stream}", now)
            return
        if self._peers.get(before) is stream:
            del self._peers[before]
        self._welcome(peer, stream)

    def _welcome(self, peer: bytes, stream: Stream) -> None:
        self._heard = True
        self._peers[peer] = stream
        stream.on_credit = stream.on_credit_bytes = 0
        welcome = Welcome(
            protocol=PROTOCOL,
            attempt=stream.attempt,
            committed=stream.cursor.committed,
            received=stream.cursor.received,
            credit_frames=self.settings.credit_frames,
            credit_bytes=self._credit_bytes(stream),
            joins=not keeps(self.settings.joiner.per_rank, stream.rank),
        )
        self._send(peer, welcome)

    def _credit_bytes(self, stream: Stream) -> int:
        """So that what all ranks have under way is bounded, however many there are."""
        settings = self.settings
        ranks = max(self._runs[stream.run].world_size(stream.attempt), len(self._peers))
        share = settings.held_bytes // 4 // ranks
        return min(settings.credit_bytes, max(share, settings.least_credit_bytes))

    def _refusal(self, hello: Hello) -> tuple[Code, str, float | None] | None:
        settings = self.settings
        if self._is_sealed:
            return "full", "This collector is about to end.", 1.0
        if not hello.protocol_min <= PROTOCOL <= hello.protocol_max:
            newest = hello.protocol_max
            theirs = f"{hello.protocol_min} to {newest}" if hello.protocol_min < newest else newest
            text = f"This collector speaks protocol {PROTOCOL}, the agent {theirs}: update one."
            return "protocol", text, None
        if not RUN_NAME.fullmatch(hello.run):
            text = f"A run's name is letters, digits and ._+=@ -, not {hello.run[:100]!r}."
            return "run", text, None
        if settings.runs and hello.run not in settings.runs:
            return "run", f"This collector does not take run {hello.run!r}.", None
        if hello.world_size > settings.max_world_size:
            return "full", f"This collector takes {settings.max_world_size} ranks a run.", None
        if not _mesh_fits(hello):
            text = f"Rank {hello.rank} of {hello.world_size} does not fit its mesh {hello.mesh}."
            return "malformed", text[:1000], None
        if hello.run not in self._runs and len(self._runs) >= settings.max_runs:
            return "full", f"This collector holds {settings.max_runs} runs already.", FULL_S
        if sum(len(run.streams) for run in self._runs.values()) >= settings.max_streams:
            return "full", f"This collector holds {settings.max_streams} streams already.", FULL_S
        return None

    def _learn(self, stream: Stream, schema: Schema, size_bytes: int, now: float) -> None:
        try:
            problem = self._runs[stream.run].learn(stream, schema, size_bytes)
        except StoreError as error:
            self._dismiss(stream, "full", str(error), FULL_S)
            self._complaints.say("store", str(error), now)
            return
        if problem:
            self._dismiss(stream, "schema", problem, None)
            self._complaints.say("schema", f"{_who(stream)}: {problem}", now)

    def _goodbye(self, stream: Stream, goodbye: Goodbye) -> None:
        if stream.is_held_off:  # frames before it were left to the next collector, and so is it
            return
        if stream.needs_schema:  # and were refused here: all of it comes again
            self._dismiss(stream, "stream", "Frames before the goodbye were refused.", 0.2)
            return
        self._runs[stream.run].leave(stream, goodbye)
        self._touched[stream.name] = stream

    def _frame(self, stream: Stream, header: FrameHeader, blob: bytes, now: float) -> None:
        self._touched[stream.name] = stream
        if stream.needs_schema or self._runs[stream.run].refuses([stream], header):
            return
        known = stream.schemas.get(header.schema)
        if known is None and header.sequence > stream.cursor.received:
            stream.needs_schema = True
            self._send(stream.peer, NeedSchema(hash=header.schema))
            return
        if self._held_bytes() > 2 * self.settings.held_bytes or stream.is_crowded():
            self._dismiss(stream, "full", "The store is behind and memory is full.", 2.0)
            return
        if stream.exceeds_credit(len(blob)):
            text = "More frames came than the credit that was given allows."
            self._dismiss(stream, "stream", text, BUSY_S)
            self._complaints.say("credit", f"{_who(stream)}: {text}", now)
            return
        if known is None:
            self._counts.duplicates += 1
            return
        self._counts.frames += 1
        self._counts.frame_bytes += len(blob)
        try:
            frame = open_frame(header, blob, known[0])
        except ProtocolError as error:
            self._counts.malformed += 1
            self._complaints.say("malformed", f"{_who(stream)}: {error}", now)
            self._runs[stream.run].skip(
                stream, header.sequence, header.step, header.gaps, str(error)
            )
            return
        if not self._runs[stream.run].feed(stream, frame, known[1], now):
            self._counts.duplicates += 1
            stream.told_received = -2

    def _joined(
        self, peer: bytes, first: Stream | None, header: JoinedHeader, blob: bytes, now: float
    ) -> None:
        """Take in what a relay has joined of frames of `first` and other streams of its."""
        known = None if first is None else first.schemas.get(header.schema)
        streams = [] if first is None else self._members(first, header)
        if first is None or known is None or not streams:
            # They say hello again, are told what arrived, and send the rest again.
            self._dismiss_members(peer, header, "stream", "Not all of these are known.", 0.2)
            return
        arrived = [
            member.sequence <= one.cursor.received
            for one, member in zip(streams, header.members, strict=True)
        ]
        if all(arrived):
            self._counts.duplicates += len(streams)
            for one in streams:
                one.told_received = -2
                self._touched[one.name] = one
            return
        if any(arrived):
            self._dismiss_members(peer, header, "stream", "Some of these came before.", 0.2)
            return
        if self._held_bytes() > 2 * self.settings.held_bytes:
            self._dismiss_members(peer, header, "full", "The store is behind.", 2.0)
            return
        for one in streams:
            self._touched[one.name] = one
        if self._runs[first.run].refuses(streams, header):
            return
        self._counts.frames += len(streams)
        self._counts.frame_bytes += len(blob)
        try:
            frame = open_joined(header, blob, known[0])
        except ProtocolError as error:
            self._counts.malformed += 1
            self._complaints.say("malformed", f"{_who(first)}: {error}", now)
            for one, member in zip(streams, header.members, strict=True):
                self._runs[one.run].skip(one, member.sequence, header.step, member.gaps, str(error))
            return
        self._runs[first.run].feed_joined(streams, frame, known[1], now)

    def _members(self, first: Stream, header: JoinedHeader) -> list[Stream]:
        """The streams that a joined frame is of, if each may send a frame now; else none."""
        found = [self._runs[first.run].streams.get(member.stream) for member in header.members]
        streams = [one for one in found if one is not None and self._may_send(one, first)]
        ranks = {one.rank for one in streams}
        return streams if len(ranks) == len(header.members) else []

    def _may_send(self, stream: Stream, first: Stream) -> bool:
        return (
            self._peers.get(stream.peer) is stream
            and connection(stream.peer) == connection(first.peer)
            and stream.attempt == first.attempt
            and not stream.needs_schema
            and not stream.ended
        )

    def _dismiss_members(
        self, peer: bytes, header: JoinedHeader, code: Code, reason: str, retry_s: float
    ) -> None:
        """Refuse all streams that a joined frame is of, for what some sent is not taken."""
        names, is_known = {member.stream for member in header.members}, peer in self._peers
        for one, stream in list(self._peers.items()):
            if stream.name in names and connection(one) == connection(peer):
                self._dismiss(stream, code, reason, retry_s)
        if not is_known:
            self._reject(peer, code, reason, retry_s)

    def _held_bytes(self) -> int:
        return sum(run.held_bytes() for run in self._runs.values())

    def _advance(self, run: Run, now: float) -> None:
        try:
            if run.storing.advance(now):
                self._touched |= run.streams
        except BusyError as error:
            self._counts.failed_commits += 1
            self._complaints.say("store", str(error), now)
            self._abandon(run, str(error), BUSY_S)
        except GoneError as error:
            self._counts.failed_commits += 1
            self._complaints.say("store", f"{error} It is begun again.", now)
            self._abandon(run, str(error), 0.2)
            self._heard, self._started = False, now  # its ranks are about to come back
        except StoreError as error:
            self._counts.failed_commits += 1
            self._complaints.say("store", str(error), now)
            self._touched |= run.streams

    def _abandon(self, run: Run, reason: str, retry_s: float) -> None:
        """Nothing more can be stored of it: its ranks may come again, with what was not stored."""
        for stream in run.streams.values():
            self._dismiss(stream, "run", reason, retry_s)
        run.storing.abandon()
        self._count(run)
        del self._runs[run.name]

    def _count(self, run: Run) -> None:
        """Keep what was counted of a run that goes."""
        storing = run.storing
        self._counts.records += storing.records
        self._counts.alerts += storing.alerts
        self._counts.lost_frames += storing.lost_frames
        self._counts.lag_s, self._counts.commit_s = storing.lag_s, storing.commit_s

    def _steer(self, now: float) -> None:
        try:
            if self._overload.look(self._held_bytes(), self.settings.held_bytes, now):
                for run in self._runs.values():
                    run.relieve(self._overload.stretch)
            for run in self._runs.values():
                for stream, control in run.steer():
                    self._send(stream.peer, control)
        except Exception:  # a fault of ours: what agents cost must not end what stores their frames
            self._counts.faults += 1
            self._complaints.say("fault", "Agents could not be steered.", now, format_exc())

    def acknowledge(self) -> None:
        """Say what has arrived, what is durable, and why no more is, where that is not known.

        `tick` does, too.
        """
        generous = not self.is_full
        for stream in self._touched.values():
            cursor = stream.cursor
            committed = cursor.committed
            received = max(cursor.received if generous else stream.told_received, committed)
            failing = self._failing(stream)
            told = (stream.told_received, stream.told_committed, stream.told_failing)
            # An answer to a goodbye says that all is durable, and that it left.
            waits = committed < cursor.received
            silent = stream.ended and (not failing if waits else stream.is_leaving)
            if (received, committed, failing) != told and not silent:
                if received > stream.told_received:
                    stream.give_credit(received)
                stream.told_received, stream.told_committed = received, committed
                stream.told_failing = failing
                left = stream.ended and not waits
                ack = Ack(received=received, committed=committed, failing=failing, left=left)
                self._send(stream.peer, ack)
        self._touched = {}

    def _failing(self, stream: Stream) -> str:
        """Why its run cannot be stored; empty where it can, or another collector writes it now."""
        run = self._runs.get(stream.run)
        return "" if run is None else run.storing.failing[:MAX_NAME]

    def _prune(self, now: float) -> None:
        for run in list(self._runs.values()):
            for stream in run.prune(now):
                self._peers.pop(stream.peer, None)
            if not run.streams and run.is_done(now) and run.name not in self.settings.runs:
                self._finish(run, now)

    def _finish(self, run: Run, now: float) -> None:
        try:
            run.storing.close(now)
            number = run.storing.records - run.storing.patches
            logger.info("Run %r is stored: %d records since we began.", run.name, number)
        except StoreError as error:
            logger.error("Run %r could not be finished: %s", run.name, error)
        self._count(run)
        self._touched |= run.streams
        self.acknowledge()
        for stream in run.streams.values():
            self._peers.pop(stream.peer, None)
        del self._runs[run.name]

    def _dismiss(self, stream: Stream, code: Code, reason: str, retry_s: float | None) -> None:
        """Refuse a stream on this connection; it may come back after `retry_s`."""
        self._reject(stream.peer, code, reason, retry_s)
        self._peers.pop(stream.peer, None)

    def _reject(self, peer: bytes, code: Code, reason: str, retry_s: float | None = None) -> None:
        self._counts.refused += 1
        self._send(peer, Reject(code=code, reason=reason[:1000], retry_s=retry_s))

    def _send(self, peer: bytes, message: Message) -> None:
        self.outgoing.append((peer, encode(message)))


def _mesh_fits(hello: Hello) -> bool:
    names = [axis.name for axis in hello.mesh]
    inside = all(axis.coordinate < axis.size for axis in hello.mesh)
    cells = math.prod(axis.size for axis in hello.mesh)
    return (
        hello.rank < hello.world_size
        and inside
        and len(set(names)) == len(names)
        and cells <= hello.world_size
    )


def _who(stream: Stream | None) -> str:
    if stream is None:
        return "An unknown peer"
    return f"Rank {stream.rank} of run {stream.run!r}"
