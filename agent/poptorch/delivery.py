"""From closed steps to frames, in order, on the agent's thread.

Where more than `MOST` steps wait, the thread that trains sketches its own; where `HELD` do, a step
is lost, and told as a gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from ...wire.messages import Gap
from ..alarm import ALARM_STEPS, Alarm
from ..framing import pack_step
from ..interruption import Lock
from ..kernel import absorb
from ..outbox import Outbox
from ..sitebook import SiteBook
from ..steptable import StepTable
from ..telling import FULL, UNSENT, Telling
from .sketching import Part, sketch

MOST, HELD = 4, 16


@dataclass(slots=True, kw_only=True)
class Parcel:
    """A closed step."""

    step: int
    parts: Sequence[Part]
    """What was read of it."""
    glances: Sequence[StepTable] = ()
    """What the device has told of it."""
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    partial: bool = False
    final: bool = False
    time_ns: int = field(default_factory=time.time_ns)
    table: StepTable | None = None


class Delivery:
    """Sends each closed step as one frame.

    Args:
        health: counters, for a frame.
    """

    def __init__(
        self,
        book: SiteBook,
        outbox: Outbox,
        telling: Telling,
        submit: Callable[[Callable[[], object]], None],
        health: Callable[[], dict[str, float]],
    ) -> None:
        self._book, self._outbox, self._telling = book, outbox, telling
        self._submit, self._health = submit, health
        self._alarm = Alarm(ALARM_STEPS, inf)
        self._told, self._waiting = 0, 0
        self._differing = set[int]()
        self._lock = Lock()
        self.lost = 0
        """Steps of which no frame was made."""

    def send(self, parcel: Parcel) -> None:
        """Take a closed step, on the training thread."""
        with self._lock:
            waiting = self._waiting
            self._waiting += waiting < HELD
        if waiting >= HELD:
            self._telling.counters["steps_dropped"] += 1
            self._lose(parcel.step, FULL)
            return
        try:
            if waiting >= MOST:
                self._sketch(parcel)
        finally:  # where that fails it is tried once more, and then counted
            self._submit(lambda: self._accept(parcel))

    def finish(self) -> None:
        """From the agent's thread, after the last step."""
        self._outbox.note_gaps(self._telling.take_lost())

    def _accept(self, parcel: Parcel) -> None:
        try:
            self._sketch(parcel)
            self._frame(parcel)
        except Exception as error:  # the law: counted and told, never raised
            self._telling.counters["hook_errors"] += 1
            self._telling.report(f"Step {parcel.step} could not be sent", error)
            self._lose(parcel.step, UNSENT)
        finally:
            with self._lock:
                self._waiting -= 1

    def _sketch(self, parcel: Parcel) -> None:
        if parcel.table is None:
            rows = len(self._book.sites)
            parcel.table, differ = sketch(parcel.step, parcel.parts, rows)
            parcel.parts = ()  # their memory is not needed any more
            self._tell_of(differ)

    def _frame(self, parcel: Parcel) -> None:
        table = parcel.table
        assert table is not None
        for glance in parcel.glances:
            rows = np.flatnonzero(glance.present)
            table.absorb(rows, glance.table.take(rows), np.ones(len(rows), np.bool_), absorb)
        table.training, table.time_ns = dict(parcel.numbers), parcel.time_ns
        table.final = parcel.final
        if len(self._book.sites) != self._told:
            sites, exact_counts = self._book.known()
            self._told = len(sites)
            self._outbox.set_sites(sites, exact_counts)
        self._outbox.note_gaps(self._telling.take_lost())
        packed = pack_step(
            table,
            health=self._health(),
            partial=parcel.partial,
            alarming=not parcel.final and len(self._alarm.newly_bad(table)) > 0,
            reports=self._telling.take_reports(),
        )
        self._outbox.send(packed)

    def _tell_of(self, differ: set[int]) -> None:
        """Of each site once."""
        new = sorted(differ - self._differing)
        self._differing |= differ
        for row in new:
            site = self._book.sites[row]
            self._telling.report(f"Replicas hold different copies of {site.kind}:{site.name}")

    def _lose(self, step: int, cause: str) -> None:
        self.lost += 1
        self._telling.lose(Gap(first_step=step, last_step=step, frames=1, cause=cause))
