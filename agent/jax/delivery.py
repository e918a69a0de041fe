"""From what steps gave us to frames: in order, once the device has computed them.

The agent's thread reads and sends. JAX runs ahead of its devices, and what a step gives stays in
memory until it is read: where more than `MOST` steps wait, the thread that trains reads along, and
so waits for the oldest to be computed. Where `HELD` are not sent, whatever they wait for, a step
that comes is lost, and told as a gap.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, TypeVar

import jax
import numpy as np

from ...wire.messages import Gap
from ..alarm import ALARM_STEPS, Alarm
from ..framing import pack_step
from ..interruption import Lock
from ..outbox import Outbox
from ..printing import Printer
from ..telling import FULL, UNSENT, Telling
from .due import nothing_due
from .layout import Layout, Sites, Sketched
from .parcel import Number, Parcel, copy_of, value_of
from .streams import Streams
from .telemetry import Telemetry

MOST = 4
"""Steps that may wait to be read."""
HELD = 16
"""Steps that may wait to be sent, read or not."""
POLL_S = 0.002
TOO_LATE = "it had not been computed when the block was left"

N = TypeVar("N", bound=Number)


class Delivery:
    """Sends each closed step as one frame a device.

    Args:
        layout: says what is read of a step.
        streams: one a device.
        telling: what else is told.
        submit: hands a job to the agent's thread.
        health: counters, for a frame.
        printer: prints what is to be printed of a step.
    """

    def __init__(
        self,
        layout: Layout,
        streams: Streams,
        telling: Telling,
        submit: Callable[[Callable[[], object]], None],
        health: Callable[[], dict[str, float]],
        printer: Printer,
    ) -> None:
        self._printer = printer
        self._layout, self._streams, self._telling = layout, streams, telling
        self._submit, self._health = submit, health
        self._parcels = deque[Parcel]()
        self._alarms = list[Alarm]()
        self._told_sites: Sites | None = None
        self._lock = Lock()
        self._unreadable = set[str]()
        """Names of numbers that were told as such."""
        self.lost = 0
        """Frames that were never made: steps times devices."""

    def send(self, parcel: Parcel) -> None:
        """Take a closed step, on the training thread; the agent's does the rest."""
        self.put(parcel)
        while self._settle() and self._read_one(beyond=MOST):
            self._submit(self.attend)

    def put(self, parcel: Parcel) -> None:
        """The same, whatever waits to be read: it waits for nothing."""
        parcel.numbers = self._each(parcel.numbers, copy_of)
        with self._lock:
            is_full = len(self._parcels) >= HELD
            if not is_full:
                self._parcels.append(parcel)
        if is_full:
            self._telling.counters["steps_dropped"] += 1
            self._lose(parcel, FULL)
            return
        leaves: list[Any] = [*parcel.telemetry.numbers]  # who fetches a telemetry has NumPy's
        for leaf in leaves:
            if isinstance(leaf, jax.Array) and not leaf.is_deleted():
                leaf.copy_to_host_async()
        self._submit(self.attend)

    def attend(self) -> None:
        """From the agent's thread, now and then: read and send what is computed."""
        while self._settle() and self._parcels and self._parcels[0].is_computed:
            parcel = self._parcels[0]
            self._read_one(only=parcel)
            if not parcel.is_read:
                return  # the thread that trains is at it
            with self._lock:
                self._parcels.popleft()
            self._tell(parcel)

    def finish(self, timeout_s: float) -> None:
        """Wait on the agent's thread for what is not computed; what does not come is counted."""
        deadline = time.monotonic() + timeout_s
        try:
            self._settle(patience=-1)
            while self._parcels and time.monotonic() < deadline:
                self.attend()
                time.sleep(POLL_S if self._parcels else 0)
            self._open(())
        finally:
            with self._lock:
                left = list(self._parcels)
                self._parcels.clear()
            for parcel in left:
                self._lose(parcel, TOO_LATE)
            self._streams.note_gaps(self._telling.take_lost())

    def _settle(self, patience: int = MOST) -> bool:
        """Whether the devices are known: the first step says so that has more than numbers.

        Args:
            patience: where more steps have come, and nothing but numbers, these say it.
        """
        if self._layout.is_settled:
            return True
        with self._lock:
            steps = [parcel.telemetry for parcel in self._parcels]
        arrays = next(
            (step.leaves for step in steps if step.arrays or step.rows or step.prints), ()
        )
        if not arrays and len(steps) <= patience:
            return False
        self._open(arrays or [leaf for step in steps for leaf in step.leaves])
        return True

    def _open(self, arrays: Iterable[jax.Array]) -> None:
        try:
            self._layout.settle(arrays)
        except Exception as error:  # the law: counted and told, never raised
            self._fail("The devices of the job could not be found", error)

    def _read_one(self, *, only: Parcel | None = None, beyond: int = 0) -> bool:
        """Read that parcel, or the oldest if so many wait behind it; whether one was read."""
        thread = threading.get_ident()
        try:
            parcel = self._claim(thread, only, beyond)
            if parcel is not None:
                self._read(parcel)
            return parcel is not None
        finally:  # whatever a signal's handler raises: the other thread may read it then
            with self._lock:
                for held in self._parcels:
                    if held.reader == thread and not held.is_read:
                        held.reader = None

    def _claim(self, thread: int, only: Parcel | None, beyond: int) -> Parcel | None:
        with self._lock:
            waiting = [one for one in self._parcels if one.reader is None]
            chosen = waiting[0] if len(waiting) > beyond else None
            if chosen is None or (only is not None and chosen is not only):
                return None
            chosen.reader = thread
            return chosen

    def _read(self, parcel: Parcel) -> None:
        told = dict[str, float]()
        try:
            with nothing_due():
                sketched = self._layout.read(parcel.step, parcel.telemetry)
            told = _numbers_of(parcel.telemetry)
            for one in self._layout.printouts(parcel.step, parcel.telemetry):
                self._printer.put(one)
        except Exception as error:
            self._fail(f"Step {parcel.step} could not be read", error)
            sketched, parcel.partial = self._nothing(parcel), True
        told |= self._each(parcel.numbers, value_of)
        for table in sketched.tables if sketched is not None else ():
            table.training, table.time_ns = dict(told), parcel.time_ns
            table.partial = parcel.partial
        parcel.telemetry, parcel.numbers = Telemetry(), {}  # their memory is not needed any more
        parcel.sketched, parcel.is_read = sketched, True

    def _nothing(self, parcel: Parcel) -> Sketched | None:
        """What is told of a step that could not be read; None: there is no stream for it."""
        try:
            return self._layout.nothing(parcel.step)
        except Exception as error:
            self._fail(f"Step {parcel.step} could not be told", error)
            return None

    def _tell(self, parcel: Parcel) -> None:
        try:
            if parcel.sketched is not None:
                self._frame(parcel.sketched)
                return
        except Exception as error:
            self._fail(f"Step {parcel.step} could not be sent", error)
        self._lose(parcel, UNSENT)

    def _frame(self, sketched: Sketched) -> None:
        outboxes = self._streams.outboxes
        if sketched.sites is not self._told_sites:
            for outbox in outboxes:
                outbox.set_sites(sketched.sites.sites, sketched.sites.exact_counts)
            self._told_sites = sketched.sites
        while len(self._alarms) < len(outboxes):
            self._alarms.append(Alarm(ALARM_STEPS, inf))
        self._streams.note_gaps(self._telling.take_lost())
        reports, health = self._telling.take_reports(), self._health()
        triples = zip(outboxes, sketched.tables, self._alarms, strict=True)
        frames = [
            pack_step(
                table,
                health=health | _health_of(outbox),
                partial=table.partial,
                alarming=len(alarm.newly_bad(table)) > 0,
                reports=() if place else reports,
            )
            for place, (outbox, table, alarm) in enumerate(triples)
        ]
        for outbox, frame in zip(outboxes, frames, strict=True):
            outbox.send(frame)

    def _each(self, numbers: Mapping[str, Number], way: Callable[[Number], N]) -> dict[str, N]:
        """What `way` makes of each number; of those that are none the first is told."""
        made = dict[str, N]()
        for name, number in numbers.items():
            try:
                made[name] = way(number)
            except Exception as error:  # it alone is left out
                self._telling.counters["hook_errors"] += 1
                if name not in self._unreadable:
                    self._unreadable.add(name)
                    self._telling.report(f"`{name}` of scope.step() is not one number", error)
        return made

    def _fail(self, sentence: str, error: Exception) -> None:
        self._telling.counters["hook_errors"] += 1
        self._telling.report(sentence, error)

    def _lose(self, parcel: Parcel, cause: str) -> None:
        with self._lock:
            self.lost += max(len(self._streams.outboxes), 1)
        self._telling.lose(
            Gap(first_step=parcel.step, last_step=parcel.step, frames=1, cause=cause)
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
