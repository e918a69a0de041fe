"""Quantities of weights, their gradients, updates and optimizer state, each at its own moment.

Weights as a step uses them are read where it begins; gradients just before the update; updates and
optimizer state where the step ends. Copies are held of what is needed of the step before, and of
weights whose update is needed, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch

from ...stopwatch import Stopwatch
from ..local import gradient_of
from .passing import readable
from .placing import cuts_of
from .quantity import PREVIOUS, SLOT
from .task import Task
from .watch import undisturbed

Moment = Literal["begin", "update", "end"]


class ParameterTasks:
    """Tasks of parameters.

    Args:
        parameters: by task, what it is of; None where the module has no such parameter.
        optimizers: all that update them.
        stopwatch: runs while the training thread is here.
    """

    def __init__(
        self,
        parameters: Mapping[Task, torch.nn.Parameter | None],
        optimizers: Sequence[torch.optim.Optimizer],
        stopwatch: Stopwatch,
    ) -> None:
        self._parameters, self._optimizers = parameters, optimizers
        self._stopwatch = stopwatch
        self._moments = {task: _moment_of(task) for task in parameters}
        self._step = 0
        self._over: set[Task] = set()
        """Those that have been looked at in this step."""
        self._held: dict[Task, tuple[int, dict[str, torch.Tensor]]] = {}
        """The step that it is of, and by need a copy."""
        self._weights: dict[Task, torch.Tensor] = {}
        """Copies from before the update."""
        self._handles: list[Any] = []
        self._awaits = False
        """Whether something of the open step is to be read just before the update."""

    def begin(self, step: int) -> None:
        """Turn to a step, whose weights are there."""
        self._step = step
        self._over.clear()
        self._weights.clear()
        active = [task for task in self._parameters if task.is_due or task.is_due_next]
        self._look(task for task in active if self._moments[task] == "begin")
        later = [task for task in active if self._moments[task] != "begin"]
        if later and not self._optimizers:  # nobody will say when the weights change
            self._keep(later)
        self._awaits = bool(later)
        for optimizer in self._optimizers:
            self.join(optimizer)

    def join(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at the updates of an optimizer in the open step."""
        if self._awaits:
            self._handles.append(optimizer.register_step_pre_hook(self._before_update))

    def end(self) -> None:
        """The step ends: what has not been looked at is now."""
        active = [task for task in self._parameters if task.is_due or task.is_due_next]
        self._look(task for task in active if task not in self._over)
        self._weights.clear()

    def remove(self) -> None:
        """Take all hooks off the optimizers."""
        handles, self._handles, self._awaits = self._handles, [], False
        for handle in handles:
            handle.remove()

    def held_bytes(self) -> int:
        """What is held for the next step."""
        held = [tensor for _, tensors in self._held.values() for tensor in tensors.values()]
        return sum(tensor.nbytes for tensor in [*held, *self._weights.values()])

    def forget(self) -> None:
        """Hold nothing."""
        self._held.clear()
        self._weights.clear()

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        with self._stopwatch:
            held = {one for group in optimizer.param_groups for one in group["params"]}
            theirs = [
                task
                for task, parameter in self._parameters.items()
                if parameter in held and (task.is_due or task.is_due_next)
            ]
            self._keep(theirs)
            self._look(
                task
                for task in theirs
                if self._moments[task] == "update" and task not in self._over
            )

    def _keep(self, tasks: Collection[Task]) -> None:
        """Copy weights of which is needed what they were before the update."""
        for task in tasks:
            needs = _plain_needs(task)
            if self._moments[task] != "end" or task in self._weights or task.is_off:
                continue
            if "update" in needs or "weight" in needs:
                try:
                    self._weights[task] = _copy_of(readable(self._parameters[task]))
                except Exception as error:  # never into the training loop: told in the run
                    task.fail(error)

    def _look(self, tasks: Iterable[Task]) -> None:
        """Compute what is due, and hold what the next step needs."""
        for task in tasks:
            self._over.add(task)
            parameter = self._parameters[task]
            if task.is_off:
                continue
            try:
                if parameter is None:
                    raise ValueError("its module has no parameter `weight`")
                with undisturbed(parameter.device.type):
                    self._look_at(task, parameter)
            except Exception as error:  # never into the training loop: told in the run
                task.fail(error)

    def _look_at(self, task: Task, parameter: torch.nn.Parameter) -> None:
        needs = task.quantity.needs
        _check(task, parameter)
        now = {need: self._tensor(task, parameter, need) for need in _plain_needs(task)}
        step, before = self._held.pop(task, (None, {}))
        found = dict[str, torch.Tensor | None](now)
        if step == self._step - 1:
            found.update((f"{PREVIOUS}{need}", tensor) for need, tensor in before.items())
        tensors = [found[need] for need in needs if found.get(need) is not None]
        missing = sorted(need for need, tensor in now.items() if tensor is None)
        if missing:
            task.misses(self._why_not(parameter, missing[0]))
        if task.is_due and len(tensors) == len(needs):
            task.take_parameter([one for one in tensors if one is not None], cuts_of(parameter))
        kept = {need.removeprefix(PREVIOUS) for need in needs if need.startswith(PREVIOUS)}
        held = {need: now[need] for need in kept}
        if task.is_due_next and kept:
            copies = {need: one.clone() for need, one in held.items() if one is not None}
            self._held[task] = self._step, copies

    def _tensor(self, task: Task, parameter: torch.nn.Parameter, need: str) -> torch.Tensor | None:
        """A local tensor of this step; None where there is none."""
        if need == "weight":
            return self._weights.get(task, readable(parameter))
        if need == "weight_gradient":
            return readable(gradient_of(parameter))
        if need == "update":
            before, after = self._weights.get(task), readable(parameter)
            return None if before is None or after is None else after - before
        slot = need.removeprefix(SLOT)
        states = self._states_of(parameter)
        return next((readable(state[slot]) for state in states if slot in state), None)

    def _states_of(self, parameter: torch.nn.Parameter) -> list[dict[str, Any]]:
        return [one.state[parameter] for one in self._optimizers if parameter in one.state]

    def _why_not(self, parameter: torch.nn.Parameter, need: str) -> str:
        """Why there is no such tensor in this step."""
        if need == "update":
            return "no optimizer that is observed has updated it"
        if not need.startswith(SLOT):
            return f"it has no {need.replace('weight_', '')}"
        known = sorted({slot for state in self._states_of(parameter) for slot in state})
        has = f"it has {', '.join(known)}" if known else "it has none"
        return f"there is no {need.removeprefix(SLOT)!r} in the optimizer's state of it; {has}"


def _plain_needs(task: Task) -> set[str]:
    """What it needs of this step, be it for the next."""
    return {need.removeprefix(PREVIOUS) for need in task.quantity.needs}


def _check(task: Task, parameter: torch.nn.Parameter) -> None:
    """Refuse tensors of which the numbers would be those of another one.

    Raises:
        ValueError: of a complex weight only the parts are at hand, and of a sparse gradient the
            values, which stand for other elements in each step.
    """
    if task.quantity.form != "values" and parameter.is_complex():
        raise ValueError("matrices of complex numbers are not computed")
    gradient = gradient_of(parameter) if "weight_gradient" in _plain_needs(task) else None
    if gradient is not None and gradient.is_sparse and len(task.quantity.needs) > 1:
        raise ValueError("its gradient is sparse, and has other elements in each step")


def _moment_of(task: Task) -> Moment:
    needs = _plain_needs(task)
    if needs <= {"weight"}:
        return "begin"
    return "update" if needs <= {"weight", "weight_gradient"} else "end"


def _copy_of(weight: torch.Tensor | None) -> torch.Tensor:
    """A copy, in float32 where it is narrower: there differences of unequal numbers are not 0."""
    if weight is None:
        raise ValueError("there is no weight")
    return weight.to(torch.promote_types(weight.dtype, torch.float32), copy=True)
