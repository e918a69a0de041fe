"""The recorder: between the hooks and the agent's thread, it keeps the step that is open.

Convention of steps: weights of step i are those used in step i; activations and gradients of step i
are under i; optimizer state of step i is that after its update. The last update's weights are
stored in a final record, numbered one beyond the last step, when the run is closed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from ...wire.messages import Gap, Placement
from ..reading import Reading
from ..sitebook import UNMEASURED, Key, SiteBook
from ..steptable import StepRing, StepTable
from ..stopwatch import Stopwatch
from ..telling import Telling
from ..timetable import Timetable
from .arrivals import Arrivals, Awaited, is_on_its_way
from .calls import Calls
from .counting import ToCount
from .device import DeviceMeter, is_capturing
from .eager import eager
from .found import Found, plain_piece
from .gradients import GradientHook
from .groups import Group, Preparing, Tensors, Way
from .local import (
    PLAIN,
    dtype_name,
    in_transform,
    inner_tensors,
    local_tensor,
    placement_of,
    untransformed,
)
from .megatron import Part
from .printouts import Printouts
from .readings import Readings
from .sampling import LEAST as LEAST_SAMPLED

logger = logging.getLogger(__name__)

NO_TABLE = "all step tables were still on their way out"
INTERRUPTED = "its end was interrupted, or failed"

DATA_KINDS = frozenset(
    {
        "input",
        "local_activation",
        "activation",
        "activation_gradient",
        "local_input_gradient",
        "input_gradient",
        "tap",
    }
)
"""Kinds whose tensors are different samples on each data-parallel rank."""
SCHEDULED_AS = {"print": "tap"}
"""By what is no kind of site: the kind with which it is due."""
WITH_MODES = frozenset({"tap", "print"})
LOCAL_GRADIENT = "local_weight_gradient"
"""The kind whose tensors are addends on each data-parallel rank."""


class Meter(Preparing, Protocol):
    """Summarises tensors of one kind of device into the open step."""

    @property
    def stale(self) -> int: ...
    def add(
        self,
        step: StepTable,
        row: int,
        tensor: torch.Tensor,
        how: Reading,
        to_count: ToCount | None = None,
    ) -> None: ...
    def read_briefs(self) -> None: ...
    def flush(self) -> None: ...
    def barrier(self) -> None: ...
    def settle(self, step: StepTable) -> None: ...


class Recorder(Telling):
    """Takes tensors by key while a step is open.

    Args:
        book: the sites and their rows.
        timetable: what is read in which step.
        data_axes: mesh axes along which ranks see different samples.
        stage_axes: mesh axes along which ranks hold other modules. What stages call alike, as the
            module around the layers of each, returns something else on each.
        make_meter: the meter of a device.
        printouts: take what is to be printed, and not measured.
    """

    def __init__(
        self,
        book: SiteBook,
        timetable: Timetable,
        data_axes: tuple[str, ...],
        stage_axes: tuple[str, ...],
        make_meter: Callable[[torch.device], Meter],
        printouts: Printouts,
    ) -> None:
        super().__init__()
        self.book = book
        self.timetable = timetable
        self._default_placement: dict[str, dict[str, Placement]] = {
            **dict.fromkeys(DATA_KINDS, dict.fromkeys((*data_axes, *stage_axes), "shard")),
            LOCAL_GRADIENT: dict.fromkeys(data_axes, "partial"),
        }
        self._make_meter = make_meter
        self._meters: dict[torch.device, Meter] = {}
        self._of_parent: dict[torch.device, Meter] = {}
        """In a forked child."""
        self._readings = Readings(book, self.report)
        self._arrivals = Arrivals()
        self.calls = Calls(self.report)
        """Says which calls of a tap are measured."""
        self.printouts = printouts
        self._ring = StepRing()
        self._open: StepTable | None = None
        self.stopwatch = Stopwatch()
        """Runs while the training thread is in the agent."""
        self._begun: float | None = None
        self._next = 0
        """The step to begin next."""
        self._awaited: deque[int] = deque()
        """The steps that were begun, until the agent's thread has them."""
        self.last_key: Key | None = None
        self.tensors = 0
        """How many were noted of the open step: where a job hangs it says which rank is behind."""
        self._captured = 0
        self.touched = 0.0
        """Monotonic time of the last sign of life of the training loop."""
        self.forward_listeners: list[Callable[[], None]] = []

    def prepare(self, device: torch.device) -> None:
        """Make the meter of a device before training begins, which may take a second."""
        self._meter(device)

    @property
    def last_site(self) -> str:
        """The site that was measured last."""
        return f"{self.last_key[0]}:{self.last_key[1]}" if self.last_key else ""

    @property
    def is_open(self) -> bool:
        """Whether a step is being recorded."""
        return self._open is not None

    def wants(self, kind: str, name: str) -> bool:
        """Whether sites of a kind and name are measured in the open step: it may be their turn."""
        return self._open is not None and self.timetable.how(kind, name) is not None

    def begin(self, step: int, *, anyway: bool = False) -> None:
        """Open `step`; it is dropped, and counted, where no step table is free.

        Args:
            anyway: whether it is recorded though no kind is due.
        """
        if self._begun is None:
            self._begun, self._next = time.monotonic(), step
        self._open, self.tensors = None, 0
        self.calls.forget()
        is_due = False
        for number in range(self._next, step + 1):  # those before it had an interrupted end
            is_due = self.timetable.begin(number) or (anyway and number == step)
            self._next = number + 1  # no signal can come between this and the next line
            if is_due:
                self._awaited.append(number)
        if is_due:
            self._take_table(step)
            if self._open is None:
                self.timetable.end()

    def begin_final(self, step: int) -> None:
        """Open the record of the weights after the last step, whatever their schedule."""
        self.timetable.begin_final()
        self._awaited.append(step)
        self._take_table(step)

    def handed_over(self, step: int) -> None:
        """The agent's thread has this one; those before it that it never got are lost."""
        while self._awaited and self._awaited[0] <= step:
            awaited = self._awaited.popleft()
            if awaited == step:
                return
            self.lose(Gap(first_step=awaited, last_step=awaited, frames=1, cause=INTERRUPTED))

    @eager
    def forward_runs(self) -> None:
        """A forward of the observed root begins, or has just ended: the weights are those used."""
        for listener in self.forward_listeners:
            listener()

    @eager
    def measure(
        self,
        key: Key,
        tensor: torch.Tensor,
        module: str = "",
        aliases: tuple[str, ...] = (),
        *,
        borrowed: bool = False,
        placed: Mapping[str, Placement] | None = None,
        part: Part | None = None,
    ) -> None:
        """Summarise `tensor` under `key`. Never raises: an error disables the site and is told.

        Args:
            borrowed: whether its memory may hold something else once the caller goes on.
            placed: how it relates to the whole by mesh axis, where it does not say so itself.
            part: which part of the whole it is, alike.
        """
        step = self._open
        if step is None:
            return
        if is_on_its_way(tensor):
            self.book.expect(key)
            self._arrivals.expect(Awaited(key, tensor, module, aliases, placed))
            return
        kind = SCHEDULED_AS.get(key[0], key[0])
        row, how = self.book.row(key), self.timetable.how(kind, key[1])
        if row == UNMEASURED or how is None:
            return
        try:
            if in_transform():
                with temporarily_clear_interpreter_stack():
                    tensor = untransformed(tensor)
                    self._add(step, row, key, tensor, how, module, aliases, borrowed, placed, part)
            else:
                self._add(step, row, key, tensor, how, module, aliases, borrowed, placed, part)
        except Exception as error:  # the law: counted and told, never raised
            self.report(f"Site {key[0]}:{key[1]} is no longer measured", error)
            self.counters["hook_errors"] += 1
            self.book.disable(key)

    def due(self, group: Group) -> Sequence[int]:
        """The places of those members of a group that may be measured in the open step."""
        if self._open is None or not self.timetable.due(group.kind):
            return ()
        turns = self.timetable.turns(group.kind)
        if turns is None:
            return range(len(group.members))
        return group.in_turn(turns, self._open.step)

    @eager
    def measure_group(self, group: Group, tensors: Tensors) -> None:
        """`measure` the tensors of a group: together where they lie as they did before."""
        step = self._open
        if step is None:
            return
        for how, mine in self._in_turn(group, tensors):
            way = group.ways[how.sentinel]
            for place in self._measure_together(step, group, way, mine):
                tensor, member = mine[place], group.members[place]
                if tensor is not None:
                    key, part = member.key, member.part_of(tensor)
                    aliases, placed = member.aliases, member.placed
                    self.measure(key, tensor, aliases=aliases, placed=placed, part=part)
                    if not group.is_apart:
                        self._learn(way, place, key, tensor, how, part)

    @eager
    def measure_gradient(
        self,
        key: Key,
        tensor: torch.Tensor,
        module: str = "",
        placed: Mapping[str, Placement] | None = None,
    ) -> None:
        """Summarise the gradient of `tensor` under `key` when backward reaches it."""
        if tensor.requires_grad and self.book.row(key) != UNMEASURED:
            awaited = self._arrivals.of(tensor)

            def arrives(gradient: torch.Tensor) -> None:
                self._gradient_arrives(key, gradient, module, placed, awaited())

            tensor.register_hook(GradientHook(arrives))

    def refuse(self, key: Key, value: object) -> None:
        """Say once, in the run and in the log, that something to be measured is no tensor."""
        if self.book.row(key) != UNMEASURED and not torch.compiler.is_compiling():
            self.book.disable(key)
            self.counters["tensors_unsupported"] += 1
            sentence = f"{key[0]}:{key[1]} is not measured, for {value!r:.80} is no tensor"
            self.report(sentence)
            logger.warning("%s.", sentence)

    @eager
    def arrivals(self) -> None:
        """Measure what was on its way from other ranks, and has arrived."""
        for one in self._arrivals.arrived():
            self.measure(one.key, one.tensor, one.module, one.aliases, placed=one.placed)

    @eager
    def read_briefs(self) -> None:
        """Return when what was noted of kinds that stay briefly is read."""
        for meter in self._meters.values():
            meter.read_briefs()

    @eager
    def barrier(self) -> None:
        """Return when all that was noted is read."""
        for meter in self._meters.values():
            meter.barrier()

    @eager
    def end(self) -> StepTable | None:
        """Close the open step and return it."""
        self.arrivals()
        self.counters["tensors_unsupported"] += self._arrivals.give_up()
        for key, held in self.calls.end():
            self.measure(key, held.tensor, placed=held.placed)
        self.printouts.forget()
        step, self._open = self._open, None
        self.timetable.end()
        if step is not None:
            if self.stopwatch.interrupted:
                self.report(
                    f"Step {step.step} was interrupted while the agent read it: some tensors of it "
                    "may be missing"
                )
            step.time_ns = time.time_ns()
            for meter in self._meters.values():
                try:
                    meter.flush()
                except Exception as error:  # the law: counted and told, never raised
                    self.report("Some tensors of a step could not be measured", error)
                    self.counters["hook_errors"] += 1
        self.stopwatch.interrupted = False
        return step

    def forget(self) -> None:
        """Record nothing more, and touch nothing: in a forked child, where no thread is left."""
        self._open = None
        self.calls.forget()
        self.timetable.end()
        # What its thread was reading is never read here; nor may memory of its devices be freed.
        self._of_parent, self._meters = self._meters, {}

    def seconds(self) -> float:
        """Wall time since the first step began."""
        return 0.0 if self._begun is None else time.monotonic() - self._begun

    def peek(self) -> StepTable | None:
        """The open step, for the agent's thread when training hangs."""
        return self._open

    def meters(self) -> list[Meter]:
        """Of all devices seen so far."""
        return list(self._meters.values())

    @property
    def stale(self) -> int:
        """Tensors that could not be read: changed before, or while a CUDA graph was captured."""
        return self._captured + sum(meter.stale for meter in self._meters.values())

    def release(self, step: StepTable) -> None:
        """Give a step's table back for its next use."""
        self._ring.give_back(step)

    def _gradient_arrives(
        self,
        key: Key,
        gradient: torch.Tensor,
        module: str,
        placed: Mapping[str, Placement] | None,
        awaited: Awaited | None,
    ) -> None:
        if self.timetable.due(SCHEDULED_AS.get(key[0], key[0])):
            with self.stopwatch:
                try:
                    if awaited is not None:
                        self._arrivals.used(awaited)
                    self.arrivals()
                    self.measure(key, gradient, module, placed=placed)
                except Exception as error:  # never into the training loop: told in the run
                    self.report(f"The gradient {key[0]}:{key[1]} could not be read", error)

    def _meter(self, device: torch.device) -> Meter:
        meter = self._meters.get(device)
        if meter is None:
            meter = self._meters[device] = self._make_meter(device)
        return meter

    def _add(
        self,
        step: StepTable,
        row: int | None,
        key: Key,
        tensor: torch.Tensor,
        how: Reading,
        module: str,
        aliases: tuple[str, ...],
        borrowed: bool,
        placed: Mapping[str, Placement] | None,
        part: Part | None,
    ) -> None:
        """Give a tensor to its device's meter; `row` is None at the first of its site."""
        piece = local_tensor(tensor)
        if piece is None:
            placed = {**(placed or {}), **placement_of(tensor)}
            self._add_parts(key, tensor, module, aliases, borrowed, placed)
            return
        called_with = piece if type(tensor) in PLAIN else tensor
        if key[0] in WITH_MODES and not self.calls.passes(key, called_with, placed):
            return
        if key[0] == "print":
            self.printouts.show(step.step, key, piece)
            return
        if row is None:
            row = self._new_site(key, tensor, piece, module, aliases, placed or {}, part)
        if row != UNMEASURED:
            elements, how = self._readings.reading(row, tensor, piece, how, part)
            counted = () if how.sentinel else self.book.counted.get(row, ())
            to_count = ToCount.of(piece, counted) if counted else None
            # Of what changes the values of a sparse tensor their version does not tell. A device
            # works off its queue in order.
            if (borrowed or tensor.is_sparse) and elements.is_cpu:
                elements = elements.clone()
                if to_count is not None:
                    to_count = replace(to_count, tensor=to_count.tensor.clone())
            if piece.is_cuda and is_capturing(piece.device):  # whose graph would keep our buffers
                self._captured += 1
                return
            self._meter(piece.device).add(step, row, elements, how, to_count)
            self.last_key, self.touched = key, time.monotonic()
            self.tensors += 1

    def _in_turn(self, group: Group, tensors: Tensors) -> Iterator[tuple[Reading, Tensors]]:
        """In which ways tensors of a group are read in this step; each with None for the others."""
        in_turn = self.timetable.turns(group.kind) is not None
        if in_turn or not self.timetable.takes_turns(group.kind):
            due = self.due(group)
            how = self.timetable.how(group.kind, group.members[due[0]].key[1]) if due else None
            if how is not None:
                yield how, _only(due, tensors) if in_turn else tensors
            return
        ways = [self.timetable.how(group.kind, member.key[1]) for member in group.members]
        for way in dict.fromkeys(filter(None, ways)):
            pairs = zip(tensors, ways, strict=True)
            yield way, [tensor if how == way else None for tensor, how in pairs]

    def _measure_together(
        self, step: StepTable, group: Group, way: Way, tensors: Tensors
    ) -> Sequence[int]:
        """Measure what can be at once; the places of those that are to be measured one by one."""
        if group.is_apart or in_transform():
            return range(len(tensors))
        left: list[int] = []
        try:
            stamp = self.book.disabled, len(self.book.synchronous)
            if way.stamp != stamp:
                measured = [self.book.row(one.key) != UNMEASURED for one in group.members]
                way.prepare(stamp, measured, self._meter)
            left += way.apart
            for prepared in way.prepared:
                if is_capturing(prepared.device):
                    left += prepared.places
                    continue
                pieces, there, others = prepared.pieces_of(tensors)
                left += others
                if there:
                    prepared.add(step, pieces)
                    self.last_key, self.touched = group.members[there[-1]].key, time.monotonic()
                    self.tensors += len(there)
        except Exception as error:  # the law: counted and told, never raised
            self.report(f"Some tensors of the kind {group.kind} could not be measured", error)
            self.counters["hook_errors"] += 1
            group.is_apart = True
        return left

    def _learn(
        self,
        way: Way,
        place: int,
        key: Key,
        tensor: torch.Tensor,
        how: Reading,
        part: Part | None,
    ) -> None:
        """Keep what was found out about a tensor that was just measured, if it can be used."""
        row, piece = self.book.row(key), plain_piece(tensor)
        if row is None or row == UNMEASURED or piece is None or row in self.book.counted:
            return
        if how.stride == 1 or row in self.book.whole:
            elements, how = self._readings.reading(row, tensor, piece.detach(), how, part)
            way.learn(place, Found.of(row, how, tensor, piece, elements))

    def _take_table(self, step: int) -> None:
        self._open = self._ring.take(step)
        if self._open is None:
            self._awaited.pop()
            self.counters["steps_dropped"] += 1
            self.lose(Gap(first_step=step, last_step=step, frames=1, cause=NO_TABLE))

    def _add_parts(
        self,
        key: Key,
        tensor: torch.Tensor,
        module: str,
        aliases: tuple[str, ...],
        borrowed: bool,
        placed: Mapping[str, Placement],
    ) -> None:
        """Measure what a wrapper of tensors is made of; of others count that they were not read."""
        kind, name, slot, occurrence = key
        parts = [
            (f"{slot}.{attribute}" if slot else attribute, part)
            for attribute, part in inner_tensors(tensor)
            if local_tensor(part) is not None or inner_tensors(part)
        ]
        for of_part, part in parts:
            key = (kind, name, of_part, occurrence)
            self.measure(key, part, module, aliases, borrowed=borrowed, placed=placed)
        self.counters["tensors_unsupported"] += not parts

    def _new_site(
        self,
        key: Key,
        tensor: torch.Tensor,
        piece: torch.Tensor,
        module: str,
        aliases: tuple[str, ...],
        placed: Mapping[str, Placement],
        part: Part | None,
    ) -> int:
        default = self._default_placement.get(key[0], {})
        cut = self._readings.cut(key[1], tensor, piece, part)
        row = self.book.add(
            key,
            dtype=dtype_name(piece.dtype),
            shape=tuple(piece.shape),
            module=module,
            placement={**default, **placed, **placement_of(tensor)},
            aliases=aliases,
            whole=cut.whole if cut else [],
            cuts=cut.order if cut else [],
            is_small=piece.numel() < LEAST_SAMPLED,
        )
        for sentence in self.book.shortages():
            self.report(sentence)
        return row


def _only(places: Sequence[int], tensors: Tensors) -> Tensors:
    """The tensors at those places alone."""
    chosen: list[torch.Tensor | None] = [None] * len(tensors)
    for place in places:
        chosen[place] = tensors[place]
    return chosen


def health_of(recorder: Recorder) -> dict[str, float]:
    """The recorder's counters, for a frame; all grow from 0."""
    meters = recorder.meters()
    dropped = sum(meter.dropped for meter in meters if isinstance(meter, DeviceMeter))
    return {
        **recorder.counters,
        "steps_dropped": float(recorder.counters["steps_dropped"] + dropped),
        "tensors_stale": float(recorder.stale),
        "sites_refused": float(recorder.book.refused),
        "exact_counts_refused": float(recorder.book.refused_exact_counts),
        "stretch": float(recorder.timetable.stretch),
        "wall_seconds": recorder.seconds(),
        "hook_seconds": recorder.stopwatch.seconds,
    }
