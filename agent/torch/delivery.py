"""From closed steps to frames, on the agent's thread: in order, once their copies have arrived."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ...sketch.labels import site_label
from ...sketch.matrices import Weighted
from ...wire.codec import Packed
from ...wire.messages import Gap, Series
from ..alarm import Alarm
from ..framing import pack_step
from ..outbox import Outbox
from ..ring import Ring
from ..steptable import StepTable
from ..telling import UNSENT
from .device import Copy, DeviceMeter, has_passed
from .quantities.task import Taken
from .recorder import Recorder, health_of
from .scaling import LOSS_SCALE

logger = logging.getLogger(__name__)

HANG_S = 1.0
"""After so long without a sign of training the open step is told as it is, in seconds."""
RING_HANG_S = 30.0
"""The same where there is a ring, which is sent then: slow steps are no reason to."""
NO_BUFFER = "all host buffers were on their way: what its devices hold is left out"
TOO_LATE = "it had not come home from its device when the block was left"
POLL_S = 0.002
"""How often the end of a copy is asked for, once there is nothing else to do."""


@dataclass(slots=True)
class _Parcel:
    """A closed step, and what of it is still on its way from a device."""

    step: StepTable
    copies: list[tuple[DeviceMeter, Copy]]
    numbers: list[tuple[str, torch.Tensor]] = field(default_factory=list[tuple[str, torch.Tensor]])
    taken: list[Taken] = field(default_factory=list[Taken])
    """What quantities are read off, on the host."""
    ready: list[tuple[torch.cuda.Event, torch.device]] = field(
        default_factory=list[tuple[torch.cuda.Event, torch.device]]
    )
    """One of each device from which numbers and series come."""

    def arrived(self) -> bool:
        there = all(has_passed(*event) for event in self.ready)
        return there and all(meter.arrived(copy) for meter, copy in self.copies)

    def bring(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """float64 on the host, to be read once they have arrived."""
        devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
        home = [_on_its_way_home(one) if one.device in devices else one for one in tensors]
        for device in devices:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            self.ready.append((event, device))
        return home


class Delivery:
    """Sends each closed step as one frame.

    Args:
        ring: keeps what schedules leave out, for when something goes wrong; None: they say what is
            read, too.
        alarm: says in which steps something goes wrong.
        loss_scale: that of the first step, as far as it is known.
    """

    def __init__(
        self,
        recorder: Recorder,
        outbox: Outbox,
        submit: Callable[[Callable[[], None]], None],
        ring: Ring | None,
        alarm: Alarm,
        loss_scale: Mapping[str, float],
    ) -> None:
        self._recorder, self._outbox, self._submit = recorder, outbox, submit
        self._ring, self._alarm = ring, alarm
        self._loss_scale = loss_scale
        """The last that is known: a step that has not ended cannot wait for its own."""
        self._parcels: deque[_Parcel] = deque()
        self._known = -1, -1
        """Sites and series that the outbox was told of."""
        self._series: list[Series] = []
        self._numbers: dict[int, int] = {}
        """By identity of a series, its place among them."""
        self._told: StepTable | None = None
        """The open step, once it was told as one that hangs."""
        self._looked_at = 0.0
        """When the last tensor had been seen, as the open step was last looked at for that."""
        self._strays = set[str]()
        """Names under which something else than a number was given."""
        self.lost = 0
        """Steps of which no frame was made."""

    def send(
        self,
        step: StepTable,
        training: Mapping[str, float | torch.Tensor] | None = None,
        taken: Sequence[Taken] = (),
    ) -> None:
        """Start the copies of a closed step, on the training thread; the agent's does the rest."""
        parcel = _Parcel(step, [])
        for meter in self._recorder.meters():
            if isinstance(meter, DeviceMeter):
                self._send_home(meter, parcel)
        try:
            self._note_numbers(parcel, training or {})
            arrays = parcel.bring([one.values for one in taken])
            parcel.taken = [
                Taken(one.series, one.weight, array)
                for one, array in zip(taken, arrays, strict=True)
            ]
        except Exception as error:
            self._recorder.report("Numbers of a step could not be sent", error)
            parcel.numbers = []
        self._submit(lambda: self._accept(parcel))

    def finish(self, timeout_s: float) -> None:
        """Wait on the agent's thread for what is on its way; what does not come is counted."""
        deadline = time.monotonic() + timeout_s
        while self._parcels and time.monotonic() < deadline:
            self.attend(0.0)
            time.sleep(POLL_S)
        self.lost += len(self._parcels)
        for parcel in self._parcels:
            self._recorder.lose(_gap(parcel.step, TOO_LATE))
        self._recorder.handed_over(2**63 - 1)
        self._outbox.note_gaps(self._recorder.take_lost())

    def attend(self, now: float) -> None:
        """From the agent's thread, now and then: send what has arrived, and tell of a hang."""
        while self._parcels and self._is_over(self._parcels[0]):
            self._send(self._parcels.popleft())
        step = self._recorder.peek()
        if step is None or step is self._told or not self._hangs(now):
            return
        if (touched := self._recorder.touched) != self._looked_at:
            self._looked_at = touched
            self._tell_open_step(step)

    def send_kept(self) -> None:
        """From the agent's thread: send what a ring keeps, for something is wrong on some rank."""
        if self._ring is not None:
            self._empty(self._ring, np.empty(0, np.intp))

    def _accept(self, parcel: _Parcel) -> None:
        self._recorder.handed_over(parcel.step.step)
        self._parcels.append(parcel)
        self.attend(0.0)

    def _send_home(self, meter: DeviceMeter, parcel: _Parcel) -> None:
        before = meter.dropped
        try:
            copy = meter.send_home()
        except Exception as error:
            self._recorder.report("What a device holds of a step could not be sent", error)
            self._recorder.lose(_gap(parcel.step, UNSENT))
            return
        if copy is not None:
            parcel.copies.append((meter, copy))
        elif meter.dropped > before:
            self._recorder.lose(_gap(parcel.step, NO_BUFFER))

    def _is_over(self, parcel: _Parcel) -> bool:
        """Whether it has arrived, or never will."""
        try:
            return parcel.arrived()
        except Exception:  # of its device, which `_send` meets, too
            return True

    def _send(self, parcel: _Parcel) -> None:
        try:
            self._make(parcel)
        except Exception as error:  # the law: counted and told, and the next are sent
            self._recorder.report(f"Step {parcel.step.step} could not be sent", error)
            self._recorder.lose(_gap(parcel.step, UNSENT))
            self.lost += 1
        finally:
            self._told = None
            self._recorder.release(parcel.step)

    def _make(self, parcel: _Parcel) -> None:
        step = parcel.step
        for meter in self._recorder.meters():
            meter.settle(step)
        for meter, copy in parcel.copies:
            meter.receive(copy, step)
        step.training.update({name: float(value) for name, value in parcel.numbers})
        if LOSS_SCALE in step.training:
            self._loss_scale = {LOSS_SCALE: step.training[LOSS_SCALE]}
        for series, weight, values in parcel.taken:
            step.series[self._number(series)] = Weighted(weight, values.numpy())
        something = step.present.any() or not step.partial or self._recorder.has_reports
        bad = np.empty(0, np.intp) if step.final else self._alarm.newly_bad(step)
        if something and self._ring is not None and not step.final:
            self._send_or_keep(step, self._ring, bad)
        elif something:
            self._frame(step, partial=step.partial, alarming=len(bad) > 0)

    def _hangs(self, now: float) -> bool:
        limit_s = HANG_S if self._ring is None else RING_HANG_S
        return self._recorder.touched > 0 and now - self._recorder.touched > limit_s

    def _tell_open_step(self, step: StepTable) -> None:
        for meter in self._recorder.meters():
            if not isinstance(meter, DeviceMeter):  # whose rows come home at the step's end
                meter.barrier()
                meter.settle(step)
        now = time.monotonic()  # the barrier takes its time, in which training may have gone on
        if step is self._recorder.peek() and step.present.any() and self._hangs(now):
            self._told = step
            idle_s = now - self._recorder.touched
            self._recorder.report(
                f"No tensor was seen for {idle_s:.0f} s; last was {self._recorder.last_site}"
            )
            if self._ring is not None:
                self._empty(self._ring, np.empty(0, np.intp))
            self._frame(step, partial=True)

    def _send_or_keep(self, step: StepTable, ring: Ring, bad: NDArray[np.intp]) -> None:
        """Send a step that is scheduled, or bad, and with that all that was kept; else keep it."""
        if len(bad) or step.partial:
            self._empty(ring, bad)
        scheduled = self._recorder.timetable.is_scheduled(step.step)
        if len(bad) or step.partial or scheduled or step is self._told:
            self._frame(step, partial=step.partial, alarming=len(bad) > 0)
        else:
            ring.keep(self._packed(step, kept=True))

    def _empty(self, ring: Ring, bad: NDArray[np.intp]) -> None:
        """Send what was kept, and tell why."""
        kept = ring.take()
        self._outbox.note_gaps(ring.take_lost())
        self._tell_sites()
        for packed in kept:
            self._outbox.send(packed)
        if len(bad):
            site = self._recorder.book.sites[bad[0]]
            label = site_label(site.kind, site.name, site.slot, site.occurrence)
            self._recorder.report(
                f"{label} has values that are not finite or overflow, and had none in the steps "
                f"before; {len(kept)} steps were kept, and are sent"
            )

    def _tell_sites(self) -> None:
        book = self._recorder.book
        if (len(book.sites), len(self._series)) != self._known:
            sites, exact_counts = book.known()
            self._known = len(sites), len(self._series)
            self._outbox.set_sites(sites, exact_counts, self._series)

    def _number(self, series: Series) -> int:
        """The place of a series, which is the same object in every step."""
        number = self._numbers.setdefault(id(series), len(self._series))
        if number == len(self._series):
            self._series.append(series)
        return number

    def _frame(self, step: StepTable, *, partial: bool, alarming: bool = False) -> None:
        self._tell_sites()
        if partial:
            for name, value in self._loss_scale.items():  # training may be adding its numbers
                step.training.setdefault(name, value)
        reports = self._recorder.take_reports()
        self._outbox.note_gaps(self._recorder.take_lost())
        self._outbox.send(self._packed(step, partial=partial, alarming=alarming, reports=reports))

    def _packed(
        self,
        step: StepTable,
        *,
        partial: bool = False,
        kept: bool = False,
        alarming: bool = False,
        reports: Sequence[str] = (),
    ) -> Packed:
        return pack_step(
            step,
            health=self._health(),
            partial=partial,
            kept=kept,
            alarming=alarming,
            reports=reports,
        )

    def _health(self) -> dict[str, float]:
        """The counters of a frame, on the agent's thread."""
        sent = self._outbox.statistics()
        return {
            **health_of(self._recorder),
            "thread_seconds": time.thread_time(),
            "bytes_sent": float(sent.sent_bytes),
            "frames_dropped": float(sent.dropped_frames),
            "ring_steps_dropped": 0.0 if self._ring is None else float(self._ring.dropped),
        }

    def _note_numbers(self, parcel: _Parcel, training: Mapping[str, float | torch.Tensor]) -> None:
        for name, value in training.items():
            try:
                _note_number(parcel, name, value)
            except Exception as error:  # it alone is left out
                self._tell_stray(name, error)

    def _tell_stray(self, name: str, error: Exception) -> None:
        """Tell once, in the run and in the log, of what was given as a number and is none."""
        if name not in self._strays:
            self._strays.add(name)
            self._recorder.report(f"`{name}` of scope.step() is no number", error)
            logger.warning("`%s` of scope.step() is no number, and is left out: %s", name, error)


def _note_number(parcel: _Parcel, name: str, value: float | torch.Tensor) -> None:
    if isinstance(value, torch.Tensor) and value.device.type == "cuda":
        [home] = parcel.bring([value.detach().reshape(())])
        parcel.numbers.append((name, home))
    else:
        own = value.detach() if isinstance(value, torch.Tensor) else value
        parcel.step.training[name] = float(own)


def _on_its_way_home(tensor: torch.Tensor) -> torch.Tensor:
    """float64 in pinned memory, to be read once an event after it has passed."""
    host = torch.empty(tensor.shape, dtype=torch.float64, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    return host


def _gap(step: StepTable, cause: str) -> Gap:
    return Gap(first_step=step.step, last_step=step.step, frames=1, cause=cause)
