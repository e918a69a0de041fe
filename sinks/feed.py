"""Hands news to one sink on a thread of its own: in order, patiently, in bounded memory."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Condition, Event, Thread

from ..wire.complaints import Complaints
from .news import News, Numbers, Rejected, Sink

logger = logging.getLogger(__name__)

MOST_WAITING = 512
"""News that waits for a slow sink; beyond it numbers give way, the oldest first, then all else."""
PAUSES_S = (0.5, 1.0, 2.0)
"""Before each new try of what a sink did not take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedCounts:
    """How one sink keeps up."""

    delivered: int = 0
    retried: int = 0
    dropped: int = 0
    """What it did not take, or had no time for: it is in the store only."""
    waiting: int = 0


class Feed:
    """The way to one sink.

    Args:
        name: of the sink, as counters and log lines call it.
        most: news that may wait.
        pauses_s: before each new try.
    """

    def __init__(
        self,
        name: str,
        sink: Sink,
        *,
        most: int = MOST_WAITING,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self.name = name
        self._sink = sink
        self._most = most
        self._pauses_s = pauses_s
        self._waiting = deque[News]()
        self._changed = Condition()
        self._ending = Event()
        self._counts = FeedCounts()
        self._complaints = Complaints(logger)
        # A daemon: a sink that hangs must not keep the process from ending.
        self._thread = Thread(target=self._serve, name=f"rankscope-sink-{name}", daemon=True)
        self._thread.start()

    def put(self, news: News) -> None:
        """Have the sink take it some time; never waits and never raises."""
        with self._changed:
            if self._ending.is_set():
                self._count(dropped=1)
                return
            if len(self._waiting) >= self._most:
                self._make_room()
            self._waiting.append(news)
            self._changed.notify()

    def counts(self) -> FeedCounts:
        """How the sink keeps up."""
        with self._changed:
            return replace(self._counts, waiting=len(self._waiting))

    def end(self) -> None:
        """Take nothing any more, and pause no more between tries; see `join`."""
        with self._changed:
            self._ending.set()
            self._changed.notify()

    def join(self, until: float) -> bool:
        """Wait for what is left; whether the sink has taken it in time. What it has not is dropped.

        Args:
            until: on the monotonic clock.
        """
        self._thread.join(max(until - time.monotonic(), 0.0))
        in_time = not self._thread.is_alive()
        if not in_time:
            with self._changed:
                left = len(self._waiting)
                self._waiting.clear()
                self._count(dropped=left + 1)
            text = "The sink %s hangs: what it was given last is dropped, and %d more."
            logger.warning(text, self.name, left)
        return in_time

    # Inside --------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        oldest = next((one for one in self._waiting if isinstance(one, Numbers)), self._waiting[0])
        self._waiting.remove(oldest)
        self._count(dropped=1)

    def _count(self, *, delivered: int = 0, retried: int = 0, dropped: int = 0) -> None:
        counts = self._counts
        self._counts = FeedCounts(
            delivered=counts.delivered + delivered,
            retried=counts.retried + retried,
            dropped=counts.dropped + dropped,
        )

    # On the thread -------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (news := self._next()) is not None:
            self._deliver(news)
        try:
            self._sink.close()
        except Exception as error:  # whatever its library raises
            self._complain(f"could not be closed: {error!r}")

    def _next(self) -> News | None:
        with self._changed:
            while not self._waiting and not self._ending.is_set():
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None

    def _deliver(self, news: News) -> None:
        for pause_s in (*self._pauses_s, None):
            try:
                self._sink.take(news)
            except Exception as error:  # whatever its library raises
                self._complain(f"did not take {type(news).__name__} of {news.run}: {error!r}")
                if pause_s is None or isinstance(error, Rejected):
                    break
                with self._changed:
                    self._count(retried=1)
                self._ending.wait(pause_s)
            else:
                with self._changed:
                    self._count(delivered=1)
                return
        with self._changed:
            self._count(dropped=1)

    def _complain(self, text: str) -> None:
        self._complaints.say("sink", f"The sink {self.name} {text}", time.monotonic())
