"""All quantities of one model: what is due in a step, and what was taken of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from ....wire.messages import MeshAxis
from ...schedule import Schedule
from ...stopwatch import Stopwatch
from ..names import Names
from ..placements import ModulePlacements
from .configuration import Configuration, Order, orders_of
from .parameters import ParameterTasks
from .placing import Places
from .quantity import PREVIOUS
from .room import Room
from .task import Fails, Plan, Taken, Task
from .watch import Watch

NAMED = 3
"""Of several modules that fail alike in a step, how many are named."""
Report = Callable[..., None]
"""Takes a sentence, and what was caught, if anything."""


class Quantities:
    """The quantities that were asked for, from step to step; on the training thread.

    Args:
        names: of the model's modules.
        orders: what was asked for.
        kinds: see the attribute.
    """

    def __init__(self, names: Names, orders: Sequence[Order], kinds: dict[str, Schedule]) -> None:
        self.kinds = kinds
        """Kinds of tensors that are to be sketched, for what is read off sketches, and when."""
        self._roots = names.roots
        self._report: Report = _nowhere
        self._told: set[object] = set()
        self._others: dict[tuple[str, str], list[str]] = {}
        """By quantity and class of error: modules that failed as one that was told of."""
        self._room = Room()
        self._orders = _grouped(orders, self._fails)
        self._stretch = 1
        self._gathers = any(task.gathers for task in self._orders)
        self._step: int | None = None
        self._in_full = False
        self._attached: tuple[Watch, ParameterTasks] | None = None

    @classmethod
    def of(
        cls, configuration: Configuration | None, names: Names, *, is_part: bool = False
    ) -> Quantities:
        """What a configuration asks for of a model; None: nothing.

        Args:
            is_part: whether other ranks hold other modules, so that a name may be theirs.

        Raises:
            SettingError: a module, class, quantity, option or schedule does not exist.
        """
        found = orders_of(configuration or {}, names, is_part=is_part)
        return cls(names, found.orders, found.kinds)

    def __bool__(self) -> bool:
        """Whether anything is computed at all."""
        return bool(self._orders)

    def attach(
        self,
        *,
        report: Report,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        recording: Callable[[], bool] = lambda: True,
        mesh: Sequence[MeshAxis] = (),
        placements: ModulePlacements | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """Get ready to take; no hook is on the model yet.

        Args:
            report: tells the run of an error.
            optimizers: all that update the model.
            recording: whether what modules return now belongs to training.
            mesh: the axes of the job's device mesh.
            placements: of what modules return, where the model is split.
            stopwatch: runs while the training thread is here.
        """
        self._report = report
        stopwatch = stopwatch or Stopwatch()
        of_modules, of_parameters = dict[Task, torch.nn.Module](), {}
        for task, order in self._orders.items():
            if task.quantity.is_of_parameters:
                of_parameters[task] = order.parameter
            elif order.module is not None:
                of_modules[task] = order.module
        places = Places(mesh, placements)
        self._attached = (
            Watch(self._roots, of_modules, recording, places, stopwatch),
            ParameterTasks(of_parameters, optimizers, stopwatch),
        )

    def join(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is one of all that update the model from now on, in the open step, too."""
        if self._attached is not None:
            self._attached[1].join(optimizer)

    def begins(self, step: int, *, in_full: bool = False, stretch: int = 1) -> bool:
        """Turn to a step, and put on the hooks that it needs; whether anything is due in it.

        Args:
            in_full: whether everything is, whatever the schedules say.
            stretch: how many times as rarely as they say it is to be.
        """
        self.remove()
        if stretch != self._stretch:
            self._stretch = stretch
            for plan in self._plans():
                plan.stretch(stretch)
        self._step, self._in_full = step, in_full
        schedules = {plan.stretched for plan in self._plans()}
        due = in_full or any(schedule.due(step) for schedule in schedules)
        next_due = any(schedule.due(step + 1) for schedule in schedules)
        if self._attached is None or not (due or next_due or self._gathers):
            self._step = None
            return False
        watch, parameters = self._attached
        for task in self._orders:
            task.begin(step, in_full=in_full)
        modules = [task for task in self._orders if not task.quantity.is_of_parameters]
        watch.install(
            [task for task in modules if not task.is_off and (task.is_due or task.gathers)]
        )
        parameters.begin(step)
        return self.is_due

    @property
    def is_due(self) -> bool:
        """Whether anything is due in the open step."""
        return self._step is not None and any(task.is_due for task in self._orders)

    def ends(self, step: int) -> list[Taken]:
        """What the step says under each series; its hooks are gone."""
        was_begun = self._step == step
        self.remove()
        if self._attached is None or not was_begun:
            return []
        watch, parameters = self._attached
        parameters.end()
        found = list[Taken]()
        for task in self._orders:
            if not task.is_due:
                continue
            try:
                if task.gathers:
                    watch.gathered(task)
                if not task.has_come:
                    self._nothing_came(task)
                found += filter(self._has_room, task.results(step, in_full=self._in_full))
            except Exception as error:  # never into the training loop: told in the run
                task.fail(error)
        self._tell_others()
        return found

    def held_bytes(self) -> int:
        """What is held for the next step."""
        return 0 if self._attached is None else self._attached[1].held_bytes()

    def remove(self) -> None:
        """Take all hooks off the model and the optimizers."""
        self._step = None
        for attached in self._attached or ():
            attached.remove()
        self._tell_others()

    def forget(self) -> None:
        """Take nothing more, and hold nothing: in a forked child, or when all is over."""
        self._step = None
        for task in self._orders:
            task.drop()
        for attached in self._attached or ():
            attached.forget()

    def _plans(self) -> Iterator[Plan]:
        return (plan for task in self._orders for plan in task.plans)

    def _fails(self, task: Task, error: Exception) -> None:
        """Tell of the first module of which a quantity cannot be computed; of others together."""
        label, key = task.quantity.label, (task.quantity.series, type(error))
        if key not in self._told:
            self._told.add(key)
            self._report(f"{label} of {task.name} is no longer computed", error)
        else:
            self._others.setdefault((label, type(error).__name__), []).append(task.name)

    def _tell_others(self) -> None:
        others, self._others = self._others, {}
        for (label, error), names in others.items():
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            named = ", ".join(names[:NAMED])
            self._report(f"{label} of {named}{more} is no longer computed, either: {error}")

    def _has_room(self, taken: Taken) -> bool:
        has_room = self._room.admits(taken.series)
        if not has_room and "room" not in self._told:
            self._told.add("room")
            self._report(
                f"There is no room for all quantities: {taken.series.readings[0].quantity} of "
                f"{taken.series.of} is the first that is left out; ask for fewer, or of fewer "
                "modules"
            )
        return has_room

    def _nothing_came(self, task: Task) -> None:
        may_be_first = any(need.startswith(PREVIOUS) for need in task.quantity.needs)
        if may_be_first and not task.why_nothing:
            return
        if task.quantity.series not in self._told:
            self._told.add(task.quantity.series)
            why = task.why_nothing or "its module did not run, runs compiled, or has no gradient"
            self._report(
                f"Nothing came of {task.quantity.label} of {task.name} in a step in which it was "
                f"due: {why}"
            )


def _nowhere(_: str, __: BaseException | None = None) -> None:
    """Before it is known whom to tell."""


def _grouped(orders: Sequence[Order], fails: Fails) -> dict[Task, Order]:
    """A task for all that is read off one array, with a plan for each schedule."""
    tasks: dict[tuple[object, ...], tuple[Task, Order]] = {}
    for order in orders:
        one = order.quantity
        # What is kept from step to step is used up when it is due.
        own = order.schedule if one.gathers else None
        key = order.name, one.series, own
        task, _ = tasks.setdefault(key, (Task(order.name, one, fails), order))
        task.read(one.reading, order.schedule)
    return dict(tasks.values())
