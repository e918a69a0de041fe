"""An open observation of a PopTorch model, which is a `with` block."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ...sketch.errors import SettingError
from ...sketch.labels import site_label
from ..block import Block, numbers_given
from ..lifetime import OpenBlocks
from ..outbox import Outbox, OutboxStatistics
from ..own_collector import Meeting, collector_of
from ..sitebook import UNMEASURED, SiteBook
from ..steptable import StepTable
from ..stopwatch import Stopwatch
from ..telling import Telling
from ..warming import warm
from ..worker import Worker
from .compiling import LASTING, Compiled, Taken, compiled
from .delivery import Delivery, Parcel
from .identity import hello_of
from .names import numbers_of
from .settings import Settings
from .sketching import CODES, Part
from .training_model import TrainingModel

if TYPE_CHECKING:
    from .on_device import Statistics

MOST_CALLS = 16
"""Calls of the model in one step whose tensors are kept until it ends."""

_scopes = OpenBlocks["Scope"]()
leave_scopes = _scopes.leave


class Scope(Block):
    """The open observation of one loop; made by `observe`."""

    _open_blocks = _scopes

    def __init__(self, settings: Settings, model: Any, options: Any, optimizer: Any) -> None:
        super().__init__(settings.run, settings.directory, settings.start, settings.to)
        self._settings, self._model, self._options = settings, model, options
        self._optimizer = optimizer
        """Whose hyper-parameters are recorded."""
        self._compiled: Compiled | None = None
        self._device_statistics: Statistics | None = None
        self._calls = 0
        """Of the model, in the open step."""
        self._shapes = dict[str, tuple[int, ...]]()
        self._parts = dict[int, list[Part]]()
        """Of the open step, by row."""
        self._weights = dict[int, list[Part]]()
        """As the open step leaves them: those that the next one uses."""
        self._glances = list[StepTable]()
        """What the device told of the open step."""
        self._telling, self._stopwatch = Telling(), Stopwatch()
        self._begun = time.monotonic()
        self._untold = set[str]()
        """Of which it was not told yet that it cannot be read."""
        self._book = SiteBook(lambda _: True, leaves_unchecked=settings.unchecked.leaves)

    def training_model(self, *inputs: Any, **named: Any) -> TrainingModel:
        """Compile the model for such inputs: in place of `poptorch.trainingModel`.

        It is compiled twice, the first time for the names of its tensors, unless `observe` was
        given these. Call it in the block, before the first step.

        Args:
            inputs, named: as the model will be called with.

        Raises:
            SettingError: it was called outside of the block, or for a second time, or what is to be
                observed is not there.
            Exception: PopTorch cannot compile the model; what it says.
        """
        if self._state != "open" or self._compiled is not None:
            raise SettingError(
                "scope.training_model() must be called once, in its block: "
                "`with observe(…) as scope: model = scope.training_model(x, y)`."
            )
        settings = self._settings
        weights = {name: one.detach() for name, one in self._model.named_parameters()}
        self._shapes = {name: tuple(one.shape) for name, one in weights.items()}
        with self._on_device():
            made = compiled(settings, self._model, self._options, self._optimizer, inputs, named)
        if self._device_statistics is not None:
            self._device_statistics.check(made.returned)
        self._compiled = made
        self._note_first(weights)
        return TrainingModel(made.executor, self._ran, self._took)

    def step(self, **training: Any) -> None:
        """Close the step that is open and begin the next; to be called after the model.

        Args:
            training: numbers to keep with the step, as `loss=loss`; of a tensor of several
                elements, as one of each replica, the mean is kept; None is left out.

        Raises:
            SettingError: called outside the `with` block.
        """
        self._end_step_by(lambda: self._end_step(numbers_given(training)))

    def health(self) -> dict[str, float]:
        """Counters: what was dropped or unreadable; and seconds in the agent."""
        return {
            **{name: float(count) for name, count in self._telling.counters.items()},
            "tensors_stale": 0.0,
            "sites_refused": float(self._book.refused),
            "stretch": 1.0,
            "wall_seconds": time.monotonic() - self._begun,
            "hook_seconds": self._stopwatch.seconds,
        }

    def _on_device(self) -> AbstractContextManager[object]:
        """Where a model is compiled: in it, its modules tell of their outputs, if they are to."""
        if not self._settings.on_device:
            return nullcontext()
        from .on_device import Statistics  # it imports torch

        self._device_statistics = Statistics(self._model, self._settings.selection.chooses)
        return self._device_statistics

    def _took(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def _ran(self, returned: Any) -> Any:
        """The model has run: read what it has made, and return what is the user's."""
        told = None
        if self._device_statistics is not None:
            returned, *told = returned
        if self._state == "open":
            with self._stopwatch:
                try:
                    self._read_call(told)
                except Exception as error:  # never into the training loop: told in the run
                    self._fail("What a call has made could not be read", error)
        return returned

    def _read_call(self, told: Sequence[Any] | None) -> None:
        made, self._calls = self._compiled, self._calls + 1
        is_kept = self._calls <= MOST_CALLS
        if self._calls == MOST_CALLS + 1:
            self._telling.report(
                f"Step {self._step} has more than {MOST_CALLS} calls of the model: of the further "
                "ones only weights and optimizer state are read"
            )
        for taken in made.taken if made is not None else ():
            if is_kept or taken.anchor.key[0] in LASTING:
                self._read_guarded(taken)
        is_due = is_kept and self._is_due("activation", self._step)
        if self._device_statistics is not None and told and is_due:
            self._glances.append(self._device_statistics.read(self._step, told, self._book))

    def _is_due(self, kind: str, step: int) -> bool:
        schedule = self._settings.schedules.get(kind)
        return schedule is not None and schedule.due(step)

    def _note_first(self, weights: Mapping[str, Any]) -> None:
        """The weights of the first step, as they are on the host."""
        assert self._compiled is not None
        for taken in self._compiled.taken:
            if taken.anchor.key[0] == "weight" and self._is_due("weight", self._step):
                name = taken.anchor.key[1]
                tensor = weights[name].clone().contiguous()
                row = self._row(taken, tensor)
                if row != UNMEASURED:
                    self._parts[row] = [Part(row, tensor, 0, tensor.numel())]

    def _read_guarded(self, taken: Taken) -> None:
        kind, step = taken.anchor.key[0], self._step
        if not self._is_due(kind, step + (kind == "weight")):
            return
        try:
            parts = self._read(taken)
        except Exception as error:
            self._fail(f"{site_label(*taken.anchor.key)} could not be read", error)
            return
        if parts:
            row, into = parts[0].row, self._weights if kind == "weight" else self._parts
            into[row] = parts if kind in LASTING else into.get(row, []) + parts

    def _read(self, taken: Taken) -> list[Part]:
        """The parts of what came back for an anchor.

        Raises:
            AssertionError: nothing did; PopTorch's words.
            ValueError: it has not the size of its parameter.
        """
        assert self._compiled is not None
        returned, executor = self._compiled.returned, self._compiled.executor
        tensor = executor.getAnchoredTensor(taken.anchor.short_name).detach()
        own, rest = divmod(tensor.numel(), returned.repeats)
        shape = self._shapes.get(taken.anchor.key[1])
        if rest or (shape is not None and own != math.prod(shape)):
            raise ValueError(
                f"{tuple(tensor.shape)} came back for {returned.repeats} times {shape or 'it'}"
            )
        if taken.is_summed:
            tensor = tensor.float().reshape(returned.groups, -1).sum(0)
        row = self._row(taken, tensor)
        if row == UNMEASURED:
            return []
        flat, replicas = tensor.contiguous(), range(returned.replicas)
        groups = [0] if taken.is_summed else taken.groups
        places = [group * returned.replicas + replica for group in groups for replica in replicas]
        is_lasting = taken.anchor.key[0] in LASTING
        return [
            Part(row, flat, place * own, own, place % returned.replicas if is_lasting else 0)
            for place in places
        ]

    def _row(self, taken: Taken, tensor: Any) -> int:
        key = taken.anchor.key
        row = self._book.row(key)
        if row is not None:
            return row
        dtype = str(tensor.dtype)
        if dtype not in CODES:
            self._telling.counters["tensors_unsupported"] += 1
            self._telling.report(f"{site_label(*key)} is not read, for it is of {dtype}")
            self._book.disable(key)
            return UNMEASURED
        shape = self._shapes.get(key[1], tuple(tensor.shape))
        return self._book.add(key, dtype=dtype.removeprefix("torch."), shape=shape, placement={})

    def _end_step(self, training: Mapping[str, Any]) -> None:
        parts, self._parts, self._weights = self._parts, self._weights, {}
        for sentence in self._book.shortages():
            self._telling.report(sentence)
        glances, self._glances, self._calls = self._glances, [], 0
        if any(self._is_due(kind, self._step) for kind in self._settings.schedules):
            numbers = {**self._hyperparameters(), **self._numbers(training)}
            self._delivery.send(
                Parcel(step=self._step, parts=_all_of(parts), glances=glances, numbers=numbers)
            )

    def _numbers(self, training: Mapping[str, Any]) -> dict[str, float]:
        numbers = dict[str, float]()
        for name, value in training.items():
            try:
                one = value.detach().double().mean() if hasattr(value, "detach") else value
                numbers[name] = float(one)
            except Exception as error:  # it alone is left out
                self._fail(f"`{name}` of scope.step() is no number", error)
        return numbers

    def _hyperparameters(self) -> dict[str, float]:
        """From the optimizer's state, where it is PopTorch's own."""
        if self._optimizer is None or not self._settings.hyperparameters.due(self._step):
            return {}
        try:
            return numbers_of(self._optimizer.state_dict().get("ipu_param") or {})
        except Exception as error:
            self._fail("The optimizer's hyper-parameters could not be read", error)
            return {}

    def _fail(self, sentence: str, error: Exception) -> None:
        self._telling.counters["hook_errors"] += 1
        if sentence not in self._untold:
            self._untold.add(sentence)
            self._telling.report(sentence, error)

    def _enter(self) -> None:
        settings = self._settings
        to, keys = settings.to, settings.keys
        hello = hello_of(settings.run, self._model, self._options)
        if to is None:
            to, keys = collector_of(
                Meeting(host=hello.host, is_on_one_host=True, address=""),
                lambda _, make: make(),
                settings.run,
                settings.directory,
                self._own_collector,
            )
        self._outbox = Outbox(to, hello, keys=keys)
        self._worker = Worker(self._outbox, self._idle, self._job_failed)
        self._delivery = Delivery(
            self._book, self._outbox, self._telling, self._worker.submit, self.health
        )

    def _prepare(self) -> None:
        warm()
        self._begun = time.monotonic()

    def _begin(self) -> None:
        """What is due is asked where it is read."""

    def _send_rest(self, *, partial: bool) -> None:
        """What a step has that is cut off; else the weights that the last one left."""
        if partial:
            parts, glances = _all_of(self._parts), self._glances
            self._delivery.send(Parcel(step=self._step, parts=parts, glances=glances, partial=True))
        elif (
            self._compiled is not None
            and self._step > self._settings.start
            and "weight" in self._settings.schedules
        ):
            try:
                parts = self._last_weights()
                self._delivery.send(Parcel(step=self._step, parts=parts, final=True))
            except Exception as error:
                self._fail("The last weights could not be read", error)

    def _last_weights(self) -> list[Part]:
        taken = self._compiled.taken if self._compiled is not None else ()
        weights = [one for one in taken if one.anchor.key[0] == "weight"]
        return [part for one in weights for part in self._read(one)]

    def _finish(self, timeout_s: float) -> None:
        self._delivery.finish()

    def _detach(self) -> None:
        """The model is the user's own: it holds nothing of ours."""

    def _forget(self) -> None:
        """What was read stays with the parent."""

    def _report(self, sentence: str, error: BaseException | None = None) -> None:
        self._telling.report(sentence, error)

    def _transport(self) -> OutboxStatistics:
        return self._outbox.statistics()

    def _never_made(self) -> int:
        return self._delivery.lost

    def _warn_of_settings(self) -> None:
        if self._compiled is not None:
            self._settings.selection.warn_of_strays(
                [*self._shapes, *(site.name for site in self._book.sites)]
            )
            self._settings.unchecked.warn_of_strays(self._book.labels())

    def _idle(self, now: float) -> None:
        for alerts in self._outbox.take_alerts():
            untold = self._callbacks.hear(alerts.alerts, alerts.more)
            self._telling.counters["alerts_untold"] += untold
        self._outbox.beat(
            now, step=self._step, site="", tensors=len(self._book.sites), health=self.health
        )


def _all_of(parts: Mapping[int, Sequence[Part]]) -> list[Part]:
    return [part for some in parts.values() for part in some]
