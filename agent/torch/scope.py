"""The open observation of one model: the agent is on for the length of a `with` block."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...sketch.mesh_axes import EXPERT_PARALLEL, PIPELINE_PARALLEL
from ...wire.keys import AgentKeys
from ...wire.messages import PROTOCOL, Alerts, Hello, MeshAxis
from ..alarm import Alarm
from ..block import Block, numbers_given
from ..lifetime import OpenBlocks
from ..outbox import WINDOW_BYTES, Outbox, OutboxStatistics
from ..own_collector import collector_of
from ..printing import Printer
from ..ring import Ring
from ..selection import Counting, Placing, RankscopeWarning, Selection, Unchecked
from ..sitebook import SiteBook
from ..timetable import Timetable
from ..worker import Worker
from .axes import check_axes, enter_job, leave_job
from .delivery import Delivery
from .eager import eager
from .hooks import ModuleHooks
from .identity import (
    Rendezvous,
    data_axes,
    facts,
    identify,
    launch_token,
    meeting_of,
    named_launch,
    stage_axes,
)
from .ledger import Ledger
from .megatron import check_layers
from .meters import meter_maker
from .names import Names
from .optimizers import ParameterHooks, group_of
from .parallel import ParallelHooks
from .placements import ModulePlacements
from .printouts import Printouts, in_words
from .quantities import Quantities
from .recorder import Recorder, health_of
from .replaceable import ReplaceableOptimizers
from .scaling import LossScale
from .settings import devices_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

WITH_QUANTITIES = 128 << 20
"""Bytes that are kept until they are durable where quantities are asked for: a covariance of 1,024
features takes 4 MiB."""
_scopes = OpenBlocks["Scope"]()
leave_scopes = _scopes.leave


class Scope(Block):
    """The open observation of one model; made by `observe`."""

    _open_blocks = _scopes

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        run: str,
        to: str | None,
        keys: AgentKeys | None,
        directory: Path,
        timetable: Timetable,
        budget: float | None,
        ring: Ring | None,
        alarm: Alarm,
        selection: Selection,
        names: Names,
        counting: Counting,
        quantities: Quantities,
        scale: LossScale,
        mesh: DeviceMesh | Mapping[str, int] | None,
        placing: Placing,
        unchecked: Unchecked,
        modules: Sequence[type | str] | None,
        start: int,
        training_only: bool,
    ) -> None:
        super().__init__(run, directory, start, to)
        self.model = names.whole
        """What is observed."""
        self._optimizers = optimizers
        self._keys = keys
        self._timetable, self._budget = timetable, budget
        self._ring, self._alarm = ring, alarm
        self._selection, self._counting, self._modules = selection, counting, modules
        self._names, self._quantities = names, quantities
        self._scale = scale
        self._training_only = training_only
        self._mesh, self._placing, self._unchecked = mesh, placing, unchecked
        self._hooked = ExitStack()
        """Takes all hooks off."""

    @eager
    def step(self, **training: float | torch.Tensor | None) -> None:
        """Close the step that is open and begin the next; to be called after `optimizer.step()`.

        Args:
            training: numbers to keep with the step, as `loss=loss`; tensors of one element are
                copied without waiting for their device. None, as of a rank without a loss, is left
                out. Who multiplies the loss without a GradScaler tells by what as `loss_scale`.

        Raises:
            SettingError: called outside the `with` block.
        """
        self._end_step_by(lambda: self._end_step(numbers_given(training)))

    @eager
    def begin_forward(self) -> None:
        """Say that another forward begins, where the loop calls parts of the model, never itself.

        The calls of each module are counted from 0 again then, as micro-batches of a step need it.

        Raises:
            SettingError: called before the `with` block.
        """
        self._check_entered("begin_forward")
        self._hooks.begin_forward()
        self._parallel_hooks.begin_forward()

    @eager
    def end_update(self) -> None:
        """Say that the update is over, where gradients are set to zero before `step` is called.

        Those of an update that was skipped, as a GradScaler does at an overflow, are read then.

        Raises:
            SettingError: called before the `with` block.
        """
        self._check_entered("end_update")
        if not self._recorder.is_open:
            return
        with self._stopwatch:
            try:
                self._parameter_hooks.step_ends()
            except Exception as error:  # never into the training loop: told in the run
                self._report("What an update left could not be read", error)

    def tap(self, name: str, tensor: torch.Tensor, *, mode: str = "all") -> torch.Tensor:
        """Observe any tensor of the forward and its gradient, under the kind `tap`; returns it.

        Args:
            name: what it is called in the run; several calls of one name in a forward are numbered.
            tensor: of any shape, with floating-point or complex elements.
            mode: what is taken of it where a step has several forwards, of micro-batches say:
                `all`, merged; the `final` one; `every(4)`: the fourth, the eighth and so on; or
                `sum`: their sum element by element, in float32 if they have fewer bits. Its
                gradients are taken alike. `final` and `sum` keep a copy until the step ends.
        """
        if self._state != "new":  # a forward before the block is not of training
            self._hooks.tap(name, tensor, mode)
        return tensor

    def print(
        self,
        name: str,
        tensor: torch.Tensor,
        *,
        mode: str = "all",
        gradient: bool = True,
        threshold: int = 1000,
        edgeitems: int = 3,
        linewidth: int = 80,
        precision: int = 4,
        sci_mode: bool | None = None,
    ) -> torch.Tensor:
        """Print any tensor of the forward, and its gradient, in the steps of taps; returns it.

        A rank prints its own elements, on the agent's thread, once they have come from their
        device: training goes on. Where too many wait to be printed, further ones are left out, and
        a line says how many.

        Args:
            name: what it is called in what is printed, with the step and the rank.
            tensor: as of `tap`.
            mode: which of the micro-batches of a step are printed, or their sum, as of `tap`.
            gradient: whether its gradient is printed, too.
            threshold: elements beyond which a tensor is summarised.
            edgeitems: how many elements a summary has at both ends of each axis.
            linewidth: characters of a line.
            precision: digits after the point, at most.
            sci_mode: whether numbers are written with exponents; None: where they differ much.
        """
        words = in_words(
            mode,
            threshold=threshold,
            edgeitems=edgeitems,
            linewidth=linewidth,
            precision=precision,
            sci_mode=sci_mode,
        )
        if self._state != "new":
            self._hooks.print(name, tensor, words, gradient=gradient)
        return tensor

    def replace_optimizers(
        self,
        optimizers: ReplaceableOptimizers,
        new: torch.optim.Optimizer,
        old: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        """Observe an optimizer that the script has made meanwhile, and others no more.

        It is seen from the update on that it is about to make.

        Args:
            optimizers: those that `observe` was given.
            new: updates the model, too.
            old: those that it replaces.
        """
        if new in optimizers:
            return
        for one in old:
            optimizers.remove(one)
            self._parameter_hooks.part(one)
        optimizers.add(new)
        self._parameter_hooks.join(new)
        self._quantities.join(new)
        for name, group in group_of(self._names, optimizers).items():
            self._groups.setdefault(name, group)  # sites that are told have theirs
        instead = " and ".join(type(one).__name__ for one in old)
        self._report(
            f"The script has made another optimizer, {type(new).__name__}, which updates the model "
            f"from step {self._step} on" + (f" in place of {instead}" if instead else "")
        )

    def health(self) -> dict[str, float]:
        """Counters: what was dropped, unreadable or changed too early; and seconds in hooks.

        Raises:
            SettingError: called before the `with` block.
        """
        self._check_entered("health")
        return health_of(self._recorder)

    def _enter(self) -> None:
        identity = identify(self.model, self._mesh)
        self._job = identity.job
        check_axes(self.model, self._job)
        check_layers(self.model, self._job.axes)
        self._placing.check([axis.name for axis in self._job.axes])
        address, keys, launch = self._destination, self._keys, named_launch(self._run)
        if address is None or not launch:
            share = Rendezvous(identity).share
            launch = launch or share("launch", launch_token)
            if address is None:
                meeting = meeting_of(identity)
                address, keys = collector_of(
                    meeting, share, self._run, self._directory, self._own_collector
                )
        hello = Hello(
            protocol_min=PROTOCOL,
            protocol_max=PROTOCOL,
            run=self._run,
            launch=launch,
            stream=uuid.uuid4().hex,
            rank=identity.rank,
            world_size=identity.world_size,
            mesh=list(self._job.axes),
            host=identity.host,
            process=os.getpid(),
            device=str(next(self.model.parameters()).device),
            facts=facts(self._names.roots[0]),
            budget=self._budget or 0.0,
            keeps_back=self._timetable.leaves_out,
        )
        window_bytes = WITH_QUANTITIES if self._quantities else WINDOW_BYTES
        self._outbox = Outbox(address, hello, keys=keys, window_bytes=window_bytes)
        enter_job(self._job)
        try:
            self._attach(self._job.axes, identity.rank)
        except BaseException:
            self._detach()
            leave_job(self._job)
            raise

    def _prepare(self) -> None:
        for device in devices_of(self.model):
            self._recorder.prepare(device)

    def _begin(self) -> None:
        self._parameter_hooks.step_begins()
        self._recorder.begin(self._step, anyway=self._quantities_begin())
        if not self._recorder.is_open and self._quantities.is_due:  # no step table is free
            self._quantities.remove()

    def _send_rest(self, *, partial: bool) -> None:
        try:
            left = self._recorder.end()
            if left is None and partial:  # nothing was due in this step, but this is told
                self._recorder.begin_final(self._step)
                left = self._recorder.end()
            if left is not None:
                left.partial = True
                self._delivery.send(left)
            if not partial:
                self._record_final()
        finally:
            leave_job(self._job)

    def _finish(self, timeout_s: float) -> None:
        self._delivery.finish(timeout_s)
        self._printer.attend()

    def _detach(self) -> None:
        self._hooked.close()
        self._quantities.remove()

    def _forget(self) -> None:
        self._recorder.forget()
        self._quantities.forget()

    def _report(self, sentence: str, error: BaseException | None = None) -> None:
        self._recorder.report(sentence, error)

    def _transport(self) -> OutboxStatistics:
        return self._outbox.statistics()

    def _never_made(self) -> int:
        return self._delivery.lost

    def _warn_of_settings(self) -> None:
        updates = self._parameter_hooks.updates
        if updates > 1 and self._step == self._start:
            warnings.warn(
                f"{updates} updates, but scope.step() was never called: all is told as one step. "
                "Call it once a step, after optimizer.step().",
                RankscopeWarning,
                stacklevel=3,
            )
        if self._recorder.book.sites:
            labels = self._recorder.book.labels()
            self._counting.warn_of_strays(labels)
            self._placing.warn_of_strays(labels)
            self._unchecked.warn_of_strays(labels)

    def _attach(self, mesh: Sequence[MeshAxis], rank: int) -> None:
        axes = data_axes(mesh)
        for axis in mesh:
            if axis.name == PIPELINE_PARALLEL:
                self._names.number_stages(axis.coordinate, axis.size)
            if axis.name == EXPERT_PARALLEL:
                self._names.number_experts(axis.coordinate)
        self._groups = group_of(self._names, self._optimizers)
        book = SiteBook(
            self._selection.chooses,
            self._counting.of_site,
            self._placing.of_site,
            self._unchecked.leaves,
            self._groups,
        )
        self._worker = Worker(self._outbox, self._idle, self._job_failed)
        meters = meter_maker(book, self._worker.submit)
        self._printer = Printer(self._worker.submit)
        self._recorder = Recorder(
            book,
            self._timetable,
            axes,
            stage_axes(mesh),
            meters,
            Printouts(self._printer, rank),
        )
        self._stopwatch = self._recorder.stopwatch
        self._recorder.forward_listeners.append(self._scale.note)
        self._delivery = Delivery(
            self._recorder,
            self._outbox,
            self._worker.submit,
            self._ring,
            self._alarm,
            self._scale.first(),
        )
        self._ledger = Ledger()
        self._parameter_hooks = ParameterHooks(
            self._names, mesh, self._optimizers, self._recorder, self._ledger
        )
        self._parallel_hooks = ParallelHooks(self._names, mesh, self._recorder, self._ledger)
        placements = ModulePlacements(self.model, mesh)
        self._hooks = ModuleHooks(
            self._names,
            self._modules,
            self._recorder,
            placements,
            training_only=self._training_only,
        )
        for hooks in (self._parameter_hooks, self._parallel_hooks, self._hooks):
            self._hooked.callback(hooks.remove)
            hooks.attach()
        self._quantities.attach(
            report=self._recorder.report,
            optimizers=self._optimizers,
            recording=self._hooks.training,
            mesh=mesh,
            placements=placements,
            stopwatch=self._stopwatch,
        )

    def _end_step(self, training: Mapping[str, float | torch.Tensor]) -> None:
        if self._recorder.is_open:
            self._parameter_hooks.step_ends()
        taken = self._quantities.ends(self._step)
        self._hooks.forget_calls()
        self._parallel_hooks.step_ends()
        told = self._scale.take() | self._parameter_hooks.training()
        unmatched = self._ledger.end(optimizers=bool(self._optimizers))
        step = self._recorder.end()
        if step is not None:
            step.unmatched = unmatched
            self._delivery.send(step, {**told, **training}, taken)

    def _end_updated(self) -> None:
        if self._parameter_hooks.has_updated:  # and another optimizer was waited for
            self.step()

    def _quantities_begin(self) -> bool:
        timetable = self._timetable
        try:
            return self._quantities.begins(
                self._step,
                in_full=timetable.is_in_full(self._step),
                stretch=timetable.stretch_at(self._step),
            )
        except Exception as error:  # never into the training loop: told in the run
            self._recorder.report("Quantities could not be begun", error)
            return False

    def _record_final(self) -> None:
        self._recorder.begin_final(self._step)
        try:
            self._parameter_hooks.note_weights()
            self._recorder.barrier()
        except Exception as error:  # the law: told, never raised
            self._recorder.report("The last weights could not be measured", error)
        step = self._recorder.end()
        if step is not None:
            step.final = True
            self._delivery.send(step)

    def _idle(self, now: float) -> None:
        self._delivery.attend(now)
        self._printer.attend()
        control = self._outbox.control
        if control is not None:
            self._timetable.stretch_from(control.from_step, control.stretch)
        for told in self._outbox.take_alerts():
            self._heed(told)
        recorder = self._recorder
        self._outbox.beat(
            now,
            step=self._step,
            site=recorder.last_site,
            tensors=recorder.tensors,
            health=self.health,
        )

    def _heed(self, told: Alerts) -> None:
        """Something is wrong with the job: look closer, as all its ranks do."""
        if told.detail_steps:
            self._timetable.sketch_all(told.detail_from, told.detail_steps)
        if told.send_ring:
            self._delivery.send_kept()
        untold = self._callbacks.hear(told.alerts, told.more)
        self._recorder.counters["alerts_untold"] += untold


def observed_as(model: torch.nn.Module) -> str:
    """The run as which the script itself observes the model, or one of which it is a part."""
    own = set(map(id, model.parameters()))
    for scope in _scopes:
        if not scope.ends_with_process and any(id(one) in own for one in scope.model.parameters()):
            return scope.path.name
    return ""


def tap(name: str, tensor: torch.Tensor, *, mode: str = "all") -> torch.Tensor:
    """`Scope.tap` of the innermost open scope; only returns the tensor where there is none."""
    scope = _scopes.innermost
    return scope.tap(name, tensor, mode=mode) if scope is not None else tensor
