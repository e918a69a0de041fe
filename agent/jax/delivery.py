"""From what steps gave us to frames: in order, once the device has computed them.

The agent's thread reads and sends. JAX runs ahead of its devices, and what a step gives stays in
memory until it is read: where more than `MOST` steps wait, the thread that trains reads along, and
so waits for the oldest to be computed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import jax
import numpy as np

from ...wire.messages import Gap
from ..alarm import Alarm
from ..framing import pack_step
from ..outbox import Outbox
from ..telling import Telling
from .layout import Layout, Sites, Sketched
from .streams import Streams
from .telemetry import Telemetry

MOST = 4
"""Steps that may wait to be read."""
ALARM_STEPS = 16
"""What was wrong in one of so many steps before is no news."""
POLL_S = 0.002
TOO_LATE = "it had not been computed when the block was left"

Number = float | jax.Array


@dataclass(slots=True, eq=False)
class Parcel:
    """A closed step."""

    step: int
    telemetry: Telemetry
    numbers: Mapping[str, Number]
    time_ns: int = field(default_factory=time.time_ns)
    partial: bool = False
    claimed: bool = False
    """Whether a thread reads it."""
    sketched: Sketched | None = None
    """Once it is read."""

    @property
    def is_computed(self) -> bool:
        """Whether to read it waits for nothing."""
        told = [number for number in self.numbers.values() if isinstance(number, jax.Array)]
        leaves: list[Any] = [*self.telemetry.leaves, *told]  # `is_ready` is not in JAX's types
        # To ask a deleted array whether it is ready crashes jaxlib 0.10.2.
        return all(leaf.is_deleted() or leaf.is_ready() for leaf in leaves)


class Delivery:
    """Sends each closed step as one frame a device.

    Args:
        layout: says what is read of a step.
        streams: one a device.
        telling: what else is told.
        submit: hands a job to the agent's thread.
        health: counters, for a frame.
    """

    def __init__(
        self,
        layout: Layout,
        streams: Streams,
        telling: Telling,
        submit: Callable[[Callable[[], object]], None],
        health: Callable[[], dict[str, float]],
    ) -> None:
        self._layout, self._streams, self._telling = layout, streams, telling
        self._submit, self._health = submit, health
        self._parcels = deque[Parcel]()
        self._alarms = list[Alarm]()
        self._told_sites: Sites | None = None
        self._lock = threading.Lock()
        self.lost = 0
        """Steps that had not been computed when the block was left."""

    def send(self, parcel: Parcel) -> None:
        """Take a closed step, on the training thread; the agent's does the rest."""
        for leaf in parcel.telemetry.numbers:
            leaf.copy_to_host_async()
        with self._lock:
            self._parcels.append(parcel)
        self._submit(self.attend)
        while (oldest := self._claim(beyond=MOST)) is not None:
            self._read(oldest)
            self._submit(self.attend)

    def attend(self) -> None:
        """From the agent's thread, now and then: read and send what is computed."""
        while self._parcels and self._parcels[0].is_computed:
            parcel = self._parcels[0]
            if (claimed := self._claim(first=parcel)) is not None:
                self._read(claimed)
            if parcel.sketched is None:
                return  # the thread that trains is at it
            with self._lock:
                self._parcels.popleft()
            self._frame(parcel.sketched)

    def finish(self, timeout_s: float) -> None:
        """Wait on the agent's thread for what is not computed; what does not come is counted."""
        deadline = time.monotonic() + timeout_s
        while self._parcels and time.monotonic() < deadline:
            self.attend()
            time.sleep(POLL_S if self._parcels else 0)
        self.lost = len(self._parcels)
        for parcel in self._parcels:
            self._telling.lose(_gap(parcel, TOO_LATE))
        self._layout.settle(())
        self._streams.note_gaps(self._telling.take_lost())

    def _claim(self, *, first: Parcel | None = None, beyond: int = 0) -> Parcel | None:
        """A parcel for this thread to read: that one, or the oldest if so many wait behind it."""
        with self._lock:
            waiting = [one for one in self._parcels if not one.claimed]
            chosen = waiting[0] if len(waiting) > beyond else None
            if chosen is None or (first is not None and chosen is not first):
                return None
            chosen.claimed = True
            return chosen

    def _read(self, parcel: Parcel) -> None:
        told = dict[str, float]()
        try:
            sketched = self._layout.read(parcel.step, parcel.telemetry)
            told = _numbers_of(parcel.telemetry)
            told |= {name: float(np.asarray(one)) for name, one in parcel.numbers.items()}
        except Exception as error:  # the law: counted and told, never raised
            self._telling.report(f"Step {parcel.step} could not be read", error)
            self._telling.counters["hook_errors"] += 1
            sketched, parcel.partial = self._layout.nothing(parcel.step), True
        for table in sketched.tables:
            table.training, table.time_ns = dict(told), parcel.time_ns
            table.partial = parcel.partial
        parcel.telemetry = Telemetry()  # its memory is not needed any more
        parcel.sketched = sketched

    def _frame(self, sketched: Sketched) -> None:
        outboxes = self._streams.outboxes
        if sketched.sites is not self._told_sites:
            self._told_sites = sketched.sites
            for outbox in outboxes:
                outbox.set_sites(sketched.sites.sites, sketched.sites.quantities)
        while len(self._alarms) < len(outboxes):
            self._alarms.append(Alarm(ALARM_STEPS, inf))
        self._streams.note_gaps(self._telling.take_lost())
        reports, health = self._telling.take_reports(), self._health()
        triples = zip(outboxes, sketched.tables, self._alarms, strict=True)
        for place, (outbox, table, alarm) in enumerate(triples):
            outbox.send(
                pack_step(
                    table,
                    health=health | _health_of(outbox),
                    partial=table.partial,
                    alarming=len(alarm.newly_bad(table)) > 0,
                    reports=() if place else reports,
                )
            )


def _numbers_of(telemetry: Telemetry) -> dict[str, float]:
    if not telemetry.numbers:
        return {}
    names, values = telemetry.plan.numbers, np.asarray(telemetry.numbers[0].addressable_data(0))
    # `pmap` and `lax.scan` stack: of several the last are told.
    return dict(zip(names, values.reshape(-1, len(names))[-1].tolist(), strict=True))


def _health_of(outbox: Outbox) -> dict[str, float]:
    sent = outbox.statistics()
    return {"bytes_sent": float(sent.sent_bytes), "frames_dropped": float(sent.dropped_frames)}


def _gap(parcel: Parcel, cause: str) -> Gap:
    return Gap(first_step=parcel.step, last_step=parcel.step, frames=1, cause=cause)
