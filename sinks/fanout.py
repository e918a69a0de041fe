"""From the collector to all sinks: what is durable is summed up here once, on a thread of its own.

The collector's loop only hands records over. They are the ones that it has just stored, and are let
go, the oldest first and counted, when too many of them wait.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Condition, Thread
from traceback import format_exc

from ..store.incidents import Incident
from ..store.record import Alert, Record, SiteInfo
from ..wire.complaints import Complaints
from .feed import Feed, FeedCounts
from .news import Alarm, Ended, Found, Numbers, Trouble
from .numbers import exponents_of, numbers_of, table_of

logger = logging.getLogger(__name__)

MOST_BYTES = 64 << 20
"""Of records that wait to be summed up."""
TABLE_S = 60.0
"""How often a run's table of all sites is told; also with its final record."""
CLOSE_S = 5.0
"""How long all sinks together may take to write out what is left."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """A record that has become durable, and what it takes to read it."""

    run: str
    launch: str
    """Token of its attempt's start."""
    record: Record
    sites: Sequence[SiteInfo]
    """Of the run."""


class Sinks:
    """All sinks of a collector; there may be none. No call but `close` ever waits for a sink.

    Args:
        feeds: one for each sink. They are closed with this.
        most_bytes: of records that may wait to be summed up.
    """

    def __init__(self, feeds: Sequence[Feed] = (), *, most_bytes: int = MOST_BYTES) -> None:
        self.pipeline: Mapping[str, float] = {}
        """How the collector is: it goes out with each record's numbers, as `pipeline/…`."""
        self._feeds = feeds
        self._most_bytes = most_bytes
        self._waiting = deque[Stored | Ended]()
        self._bytes = 0
        self._left_out = 0
        self._changed = Condition()
        self._is_ending = False
        self._told_tables: dict[str, float] = {}
        self._complaints = Complaints(logger)
        self._thread = Thread(target=self._serve, name="rankscope-sinks", daemon=True)
        if feeds:
            self._thread.start()

    @property
    def are_there(self) -> bool:
        """Whether anybody hears what is told."""
        return bool(self._feeds)

    def stored(self, stored: Stored) -> None:
        """Tell the numbers of a record that has become durable."""
        if self._feeds:
            self._put(stored)

    def alarm(self, run: str, launch: str, alert: Alert) -> None:
        """Tell at once that an alert has begun, or ended."""
        for feed in self._feeds:
            feed.put(Alarm(run=run, launch=launch, alert=alert))

    def found(self, run: str, launch: str, incident: Incident) -> None:
        """Tell at once that an incident has begun, or is over."""
        for feed in self._feeds:
            feed.put(Found(run=run, launch=launch, incident=incident))

    def trouble(self, trouble: Trouble) -> None:
        """Tell at once that ranks were lost, or ended early."""
        for feed in self._feeds:
            feed.put(trouble)

    def ended(self, run: str) -> None:
        """Tell that nothing more comes of a run."""
        if self._feeds:
            self._put(Ended(run=run))

    def counts(self) -> dict[str, FeedCounts]:
        """By sink how it keeps up; records that were never summed up are dropped of all."""
        counts = {feed.name: feed.counts() for feed in self._feeds}
        with self._changed:
            left_out = self._left_out
        return {
            name: FeedCounts(
                delivered=one.delivered,
                retried=one.retried,
                dropped=one.dropped + left_out,
                waiting=one.waiting,
            )
            for name, one in counts.items()
        }

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Let sinks write out what is left, as far as they can in time."""
        if not self._feeds:
            return
        until = time.monotonic() + timeout_s
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        # The rest of the time is for the sinks.
        self._thread.join(timeout_s / 2)
        for feed in self._feeds:
            feed.end()
        for feed in self._feeds:
            feed.join(until)

    def _put(self, news: Stored | Ended) -> None:
        with self._changed:
            self._waiting.append(news)
            self._bytes += _size(news)
            while self._bytes > self._most_bytes and len(self._waiting) > 1:
                self._leave_out()
            self._changed.notify()

    def _leave_out(self) -> None:
        """The oldest record."""
        oldest = next(one for one in self._waiting if isinstance(one, Stored))
        self._waiting.remove(oldest)
        self._bytes -= _size(oldest)
        self._left_out += 1

    # On the thread -------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (news := self._next()) is not None:
            try:
                told = self._sum_up(news, time.monotonic()) if isinstance(news, Stored) else news
            except Exception:  # a fault of ours must not end what serves all sinks
                with self._changed:
                    self._left_out += 1
                text = f"A record of run {news.run!r} could not be summed up for sinks."
                self._complaints.say("sum", text, time.monotonic(), format_exc())
                continue
            if isinstance(told, Ended):
                self._told_tables.pop(told.run, None)
            for feed in self._feeds:
                feed.put(told)

    def _next(self) -> Stored | Ended | None:
        with self._changed:
            while not self._waiting and not self._is_ending:
                self._changed.wait()
            if not self._waiting:
                return None
            news = self._waiting.popleft()
            self._bytes -= _size(news)
            return news

    def _sum_up(self, stored: Stored, now: float) -> Numbers:
        record, sites = stored.record, stored.sites
        pipeline = {f"pipeline/{name}": value for name, value in self.pipeline.items()}
        told_at = self._told_tables.get(stored.run, float("-inf"))
        is_due = record.final or now - told_at >= TABLE_S
        if is_due:
            self._told_tables[stored.run] = now
        return Numbers(
            run=stored.run,
            attempt=record.attempt,
            launch=stored.launch,
            record=record.index,
            step=record.step,
            time_ns=record.time_ns,
            values=numbers_of(record, sites) | pipeline,
            exponents=exponents_of(record, sites),
            table=table_of(record, sites) if is_due else None,
        )


def _size(news: Stored | Ended) -> int:
    return news.record.size_bytes if isinstance(news, Stored) else 0
