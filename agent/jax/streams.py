"""One stream of frames for each device of this process, all on the agent's thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields

from ...sketch.errors import AddressError
from ...wire.complaints import Complaints
from ...wire.connection import Connection
from ...wire.messages import Alerts, Gap
from ..outbox import Outbox, OutboxStatistics
from .meshes import Ranks

logger = logging.getLogger(__name__)

LOOK_S = 0.01
AGAIN_S = 60.0
"""What several devices have to say is logged once in so long."""


class Streams:
    """Those of this process; there are none before `open`.

    Args:
        make: the outbox of a rank.
    """

    def __init__(self, make: Callable[[Ranks, int], Outbox]) -> None:
        self._make = make
        self.outboxes: list[Outbox] = []
        """By device of this process."""
        self._complaints = Complaints(logger, every_s=AGAIN_S)
        self._early: Connection | None = None

    def announce(self, connection: Connection) -> None:
        """Be connected until `open`: a collector ends where nobody is, and nobody says hello."""
        self._early = connection

    def open(self, ranks: Ranks) -> None:
        """Have each device of this process say who it is."""
        self.outboxes = [self._make(ranks, rank) for rank, _ in ranks.local()]

    def warn(self, text: str) -> None:
        """Log what a device's outbox warns of, for all that warn of the same."""
        self._complaints.say(text, text, time.monotonic())

    def poll(self, now: float) -> None:
        """`Outbox.poll` of all; once they have said hello nothing else need be connected."""
        for outbox in self.outboxes:
            outbox.poll(now)
        if self._early is None:
            return
        if self.outboxes:
            self._end_early()
        elif self._early.is_open and self._early.is_broken():
            self._early.drop(now)
        else:
            with suppress(AddressError):  # the outboxes will say so
                self._early.open(now)

    def beat(
        self, now: float, *, step: int, tensors: int, health: Callable[[], dict[str, float]]
    ) -> None:
        """`Outbox.beat` of all."""
        for outbox in self.outboxes:
            outbox.beat(now, step=step, site="", tensors=tensors, health=health)

    def note_gaps(self, gaps: Sequence[Gap]) -> None:
        """Have steps told as lost that never became frames."""
        for outbox in self.outboxes:
            outbox.note_gaps(gaps)

    def take_alerts(self) -> list[Alerts]:
        """What the collector found wrong; it tells all ranks the same."""
        taken = [outbox.take_alerts() for outbox in self.outboxes]
        return taken[0] if taken else []

    def close(self, *, timeout_s: float) -> bool:
        """Say goodbye for all, and wait at most so long for all frames to be durable."""
        deadline = time.monotonic() + timeout_s
        # All together: what a rank has sent may wait for the others, and so does its goodbye.
        while not self._take_leave(now := time.monotonic()) and now < deadline:
            time.sleep(LOOK_S)
        left = [outbox.close(timeout_s=0.0) for outbox in self.outboxes]
        self._end_early()
        return all(left)

    def statistics(self) -> OutboxStatistics:
        """What became of the frames of all."""
        each = [outbox.statistics() for outbox in self.outboxes]
        numbers = {
            one.name: sum(getattr(statistics, one.name) for statistics in each)
            for one in fields(OutboxStatistics)
            if one.name not in ("connected", "address", "answered", "rejected")
        }
        return OutboxStatistics(
            **numbers,
            connected=bool(each) and all(one.connected for one in each),
            address=next((one.address for one in each), ""),
            answered=bool(each) and all(one.answered for one in each),
            rejected=next((one.rejected for one in each if one.rejected), ""),
        )

    def _end_early(self) -> None:
        if self._early is not None:
            self._early.close(linger_ms=0)
            self._early = None

    def _take_leave(self, now: float) -> bool:
        """`Outbox.take_leave` of all."""
        left = [outbox.take_leave(now) for outbox in self.outboxes]
        return all(left)
