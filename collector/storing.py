"""From records that are complete to what is durable, and what follows from it.

A frame is acknowledged as durable only after the commit that holds its record.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from ..sinks.fanout import Sinks, Stored
from ..sinks.troubles import troubles_of
from ..sketch.errors import StoreError
from ..store.layout import CHUNK
from ..store.record import Alert, Event, Record
from ..store.writer import RunWriter
from .attempt import Attempt
from .commits import Commits
from .joiner import Batch
from .settings import CollectorSettings
from .stream import Stream

logger = logging.getLogger(__name__)

RECORDS_SHARE = 4
"""Of what may be held a fourth, at most, are records that wait to be durable: then no more are
made, but for those of one commit."""


class Storing:
    """Gathers what the attempts of one run have ready, commits it, and lets others know.

    Args:
        name: of the run.
        writer: the only one of its store.
        streams: of the run, by name; they hear what of them is durable.
        attempts: of the run, by number.
        wall_ns: the wall clock, nanoseconds since 1970.
        sinks: are told what is stored, and what was found wrong.
    """

    def __init__(
        self,
        name: str,
        writer: RunWriter,
        settings: CollectorSettings,
        streams: Mapping[str, Stream],
        attempts: Mapping[int, Attempt],
        wall_ns: Callable[[], int],
        sinks: Sinks,
    ) -> None:
        self.records = 0
        """Committed, patches among them."""
        self.patches = 0
        """Of records that were committed before."""
        self.alerts = 0
        self.lost_frames = 0
        self.lag_s = 0.0
        """From the end of the newest step that is stored to when it was."""
        self.newest = writer.newest()
        """Attempt and step of the newest record."""
        self._name = name
        self._writer = writer
        self._catalog = writer.catalog
        self._settings = settings
        self._streams = streams
        self._attempts = attempts
        self._wall_ns = wall_ns
        self._sinks = sinks
        self._commits = Commits(writer, settings)
        self._ready: Batch | None = None
        """What was gathered, and is to be stored with the next commit."""
        self._next_record = writer.next_record
        self._committed = writer.next_record - 1
        """Index of the newest record that is durable."""
        self._usual_bytes = 0
        """What a record takes of memory, by the last."""
        self._gathered_at = float("-inf")
        self._began_at = float("-inf")
        """When the last commit with records began."""
        self._everyone_left = False
        """Whether all ranks of an attempt have left, and wait for what they sent to be durable."""

    @property
    def failing(self) -> str:
        """Why the last commit did not work; empty if it did."""
        return self._commits.failing

    @property
    def is_busy(self) -> bool:
        """Whether a commit is under way."""
        return self._commits.is_busy

    @property
    def is_done(self) -> bool:
        """Whether all that was gathered is durable."""
        return self._ready is None and self._commits.is_free

    @property
    def stored(self) -> Mapping[str, int]:
        """By stream the sequence number up to which all is durable."""
        return self._commits.stored

    @property
    def held_bytes(self) -> int:
        """What the records take that are not durable yet."""
        return self._commits.held_bytes + (0 if self._ready is None else self._ready.size_bytes)

    def is_behind(self, now: float) -> bool:
        """Whether there is something to gather at once."""
        return self._due(now) > 0

    @property
    def commit_s(self) -> float:
        """How long the last commit took."""
        return self._commits.last_s

    def leave(
        self, attempt: int, ranks: Collection[int] = (), *, back: Collection[int] = ()
    ) -> None:
        """Have it stored with the next commit who has left, and who has come back."""
        known = set(self._catalog.meta.attempts[attempt].left)
        left = (known | set(ranks)) - set(back)
        if left != known:
            self._catalog.set_left(attempt, left)

    def hurry(self) -> None:
        """All ranks of an attempt have left, and wait for what they sent to be durable."""
        self._everyone_left = True

    def tell(self, event: Event) -> None:
        """Have an event stored with the next commit."""
        self._ready = self._ready or Batch()
        self._ready.events.append(self._dated(event))

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
            raise StoreError(f"Run {self._name!r} could not be finished: {error}") from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let the store go without storing what is here: the ranks will send it again."""
        self._commits.close()
        self._writer.close()
        self._sinks.ended(self._name)

    # Inside --------------------------------------------------------------------------------------

    def _due(self, now: float) -> int:
        """How many records are to be gathered now, at most; 0: it is not time yet."""
        if self.held_bytes > self._settings.held_bytes // RECORDS_SHARE:
            return 0
        if now - self._gathered_at >= self._settings.commit_s or self._is_rested(now):
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
            now - self._began_at >= self._settings.commit_s
            and not (self._ready and self._ready.records)
            and any(one.joiner.ready(1) for one in self._attempts.values())
        )

    def _most_records(self) -> int:
        """How many records a commit has, at most."""
        room = self._settings.held_bytes // RECORDS_SHARE // max(self._usual_bytes, 1)
        return max(min(self._settings.commit_records, room), 1)

    def _gather(self, now: float, most: int, *, everything: bool = False) -> None:
        """Add what is ready, at most so many records, to what the next commit is to store."""
        self._gathered_at = now
        self._take_farewells()
        self._ready = gathered = self._ready or Batch()
        for number, attempt in sorted(self._attempts.items()):
            batch = attempt.joiner.tick(now, self._next_record, most=most, everything=everything)
            self.leave(number, attempt.joiner.ranks.take_left_again())
            for record in batch.records:
                if record.index == self._next_record:
                    self._next_record, self.newest = record.index + 1, (number, record.step)
                self._usual_bytes = record.size_bytes
            attempt.pace(batch.records)
            self._alarm(attempt, batch.alerts)
            batch.events = list(map(self._dated, batch.events))
            gathered.add(batch)
        self._everyone_left = self._everyone_left and len(gathered.records) > 0
        for stream in self._streams.values():
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
            self._sinks.alarm(self._name, launch, alert)
        for incident in attempt.incidents.add(alerts, sites):
            self._sinks.found(self._name, launch, incident)

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
        self._tell_sinks(stored.records)
        attempts = self._catalog.meta.attempts
        for one in troubles_of(stored.events, run=self._name, attempts=attempts):
            logger.warning("Run %r: %s", self._name, one.text)
            self._sinks.trouble(one)
        self._judge_quantities(stored.records)
        for name, sequences in _by_stream(stored.released).items():
            if name in self._streams:
                self._streams[name].cursor.release(sequences)
        for name in stored.left:
            if name in self._streams:
                self._streams[name].is_leaving = False

    def _tell_sinks(self, records: Sequence[Record]) -> None:
        """Sinks hear of records that are durable."""
        if records:
            newest_ns = max(record.time_ns for record in records)
            self.lag_s = max((self._wall_ns() - newest_ns) / 1e9, 0.0)
        for record in records:
            self._sinks.stored(
                Stored(
                    run=self._name,
                    launch=self._launch(record.attempt),
                    record=record,
                    sites=self._catalog.meta.sites,
                )
            )

    def _launch(self, attempt: int) -> str:
        return self._catalog.meta.attempts[attempt].launch

    def _take_farewells(self) -> None:
        """Tell what was lost at the end of streams whose frames are all durable, and so once."""
        for stream in self._streams.values():
            if stream.farewell and len(stream.cursor.waiting) == 1:
                [last] = stream.cursor.waiting
                self._attempts[stream.attempt].joiner.lose(
                    stream.rank, stream.name, last, stream.farewell
                )
                stream.farewell = ()

    def _leavers(self, released: Mapping[str, Sequence[int]]) -> list[str]:
        """Streams of which all is durable once these frames are; that they left is stored, too."""
        leaving = [
            stream
            for stream in self._streams.values()
            if stream.is_leaving
            and stream.is_leave_gathered
            and stream.cursor.committed_after(released.get(stream.name, ()))
            >= stream.cursor.received
        ]
        for attempt in {stream.attempt for stream in leaving}:
            self.leave(attempt, {one.rank for one in leaving if one.attempt == attempt})
        return [stream.name for stream in leaving]

    def _dated(self, event: Event) -> Event:
        return event if event.time_ns else replace(event, time_ns=self._wall_ns())

    def _cursors(self, released: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Where each stream stands once these frames are durable, if that is not stored yet."""
        cursors = {
            name: stream.cursor.committed_after(released.get(name, ()))
            for name, stream in self._streams.items()
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
