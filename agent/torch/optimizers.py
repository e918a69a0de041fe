"""Weights, their gradients and optimizer state: seen at the optimizer's own moments.

Weights are noted when the step's first forward begins, or when it ends if the model is compiled,
and are read before the optimizer changes them. Gradients are read just before the update: after
reduction, unscaling and clipping; just after it where a closure made them. State is noted just
after the update and read before the next. State belongs to a parameter by identity. What updates
changed is noted when the step ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ...wire.messages import MeshAxis
from ..sitebook import Key
from .ledger import Ledger
from .local import gradient_of, placement_of, slot_of
from .megatron import part_of, placement_in_mesh, tensor_parallel_axis
from .names import Names
from .recorder import Recorder
from .updates import KIND as UPDATE
from .updates import Updates

MAX_GROUPS = 64
"""Parameter groups whose learning rates are told."""


class ParameterHooks:
    """Hooks on optimizers, and the parameters of the model.

    Args:
        names: of the model's parameters.
        mesh: of the job.
        optimizers: all that update it; none where the caller steps by hand.
        recorder: takes what is seen.
        ledger: told of updates, and of gradients that are read.
    """

    def __init__(
        self,
        names: Names,
        mesh: Sequence[MeshAxis],
        optimizers: Sequence[torch.optim.Optimizer],
        recorder: Recorder,
        ledger: Ledger,
    ) -> None:
        self._ledger = ledger
        self._parameters = names.parameters()
        self._placed = {
            one: placement_in_mesh(name, one, mesh) for one, (name, _) in self._parameters.items()
        }
        axis = tensor_parallel_axis(mesh)
        self._part = {one: part_of(one, axis) for one in self._parameters}
        """What Megatron says; a DTensor says it itself."""
        self._optimizers = optimizers
        self._recorder = recorder
        self._updates = Updates()
        self._noted: set[Key] = set()
        self._told: dict[str, float | torch.Tensor] = {}
        self._rates: dict[torch.optim.Optimizer, list[object]] = {}
        """Of the groups of each, as of its last update in this step."""
        self.updates = 0
        """How many there were."""
        recorder.forward_listeners.append(self._forward_runs)
        self._handles: list[Any] = []
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before_update))
            self._handles.append(optimizer.register_step_post_hook(self._after_update))

    def remove(self) -> None:
        """Take all hooks off the optimizers."""
        for handle in self._handles:
            handle.remove()

    def note_weights(self) -> None:
        """Measure all weights as they are now, once a step."""
        if self._recorder.timetable.due("weight"):
            for parameter, (name, _) in self._parameters.items():
                self._note(("weight", name, "", 0), parameter, parameter)

    def step_ends(self) -> None:
        """Measure what no optimizer brought up in this step: it was skipped, or there is none."""
        before = len(self._noted)
        self.note_weights()
        self._note_gradients(self._parameters)
        if len(self._noted) > before:
            self._recorder.barrier()
        for parameter, change in self._updates.take():
            self._note((UPDATE, self._parameters[parameter][0], "", 0), change, parameter)

    def step_begins(self) -> None:
        """Forget the step before, whose end may have been interrupted."""
        self._noted.clear()
        self._updates.forget()

    def training(self) -> dict[str, float | torch.Tensor]:
        """What optimizers say of the step that ends.

        `lr` of the first parameter group, as its update took it, whatever a scheduler has made of
        it since; `lr.n` of group n, counted from 0 over all optimizers, where that is another; and
        `gradient_scale` where a fused optimizer takes gradients as a GradScaler scaled them, and
        divides by it inside.
        """
        told, self._told = self._told, {}
        taken, self._rates = self._rates, {}
        rates = [rate for one in self._optimizers for rate in taken.get(one) or _rates_of(one)]
        return {**_learning_rates(rates), **told}

    def _forward_runs(self) -> None:
        self.note_weights()
        if not self._optimizers:  # nobody will say when the weights change
            self._keep(self._parameters)
            self._recorder.barrier()

    def _before_update(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self._ledger.update()
        self.updates += 1
        with self._recorder.stopwatch:
            try:
                self._rates[optimizer] = _rates_of(optimizer)
                self.note_weights()
                held, comes = _held_by(optimizer), _makes_gradients(args, keywords)
                if not comes:
                    self._note_gradients(held)
                self._keep(
                    one
                    for one in held
                    if gradient_of(one) is not None or (comes and one.requires_grad)
                )
                self._recorder.barrier()
                scale = getattr(optimizer, "grad_scale", None)
                if isinstance(scale, torch.Tensor) and self._recorder.is_open:
                    self._told["gradient_scale"] = scale.clone()
            except Exception as error:  # never into the training loop: told in the run
                self._recorder.report("Gradients could not be read before the update", error)

    def _after_update(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        with self._recorder.stopwatch:
            try:
                if _makes_gradients(args, keywords):
                    self._note_gradients(_held_by(optimizer))
                    self._recorder.barrier()
                if not self._recorder.timetable.due("optimizer_state"):
                    return
                for parameter, state in _state_of(optimizer).items():
                    if isinstance(parameter, torch.nn.Parameter) and parameter in self._parameters:
                        self._note_state(optimizer, parameter, state)
            except Exception as error:  # never into the training loop: told in the run
                self._recorder.report("What an update left could not be read", error)

    def _note(self, key: Key, tensor: torch.Tensor, parameter: torch.nn.Parameter) -> None:
        """Measure once a step, however many optimizers and updates there are."""
        if key not in self._noted and self._recorder.wants(key[0], key[1]):
            self._noted.add(key)
            aliases, placed = self._parameters[parameter][1], self._placed[parameter]
            part = self._part[parameter] if tensor.shape == parameter.shape else None
            self._recorder.measure(key, tensor, aliases=aliases, placed=placed, part=part)

    def _note_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        if not self._recorder.timetable.due("weight_gradient"):
            return
        for parameter in parameters:
            gradient = gradient_of(parameter)
            if gradient is not None and parameter in self._parameters:
                name = self._parameters[parameter][0]
                self._ledger.take(name)
                self._note(("weight_gradient", name, slot_of(gradient), 0), gradient, parameter)

    def _keep(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Hold what weights are before they change, where that is due."""
        if self._recorder.timetable.due(UPDATE):
            self._updates.keep(
                one
                for one in parameters
                if one in self._parameters
                and self._recorder.wants(UPDATE, self._parameters[one][0])
            )

    def _note_state(
        self, optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, state: dict[str, Any]
    ) -> None:
        name, _ = self._parameters[parameter]
        for slot, value in state.items():
            if not isinstance(value, torch.Tensor) or value.dim() == 0:  # `step` is a scalar tensor
                continue
            if _is_of_all(value, parameter, optimizer):
                self._note_whole(("optimizer_state", self._called(optimizer), str(slot), 0), value)
            else:
                self._note(("optimizer_state", name, str(slot), 0), value, parameter)

    def _note_whole(self, key: Key, tensor: torch.Tensor) -> None:
        """Measure once a step what is of all parameters, and says itself how it is cut."""
        if key not in self._noted and self._recorder.wants(key[0], key[1]):
            self._noted.add(key)
            self._recorder.measure(key, tensor, placed=placement_of(tensor))

    def _called(self, optimizer: torch.optim.Optimizer) -> str:
        """Its type; of several of one type with its number among all."""
        kind = type(optimizer).__name__
        if [type(one).__name__ for one in self._optimizers].count(kind) == 1:
            return kind
        return f"{kind}.{[one is optimizer for one in self._optimizers].index(True)}"


def group_of(names: Names, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, int]:
    """By name of a parameter the number of its group, counted from 0 over all optimizers."""
    known = names.parameters()
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {
        known[parameter][0]: number
        for number, group in enumerate(groups)
        for parameter in group["params"]
        if parameter in known
    }


def _state_of(optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
    """By parameter; of an optimizer around another one, as ZeroRedundancyOptimizer, that one's.

    It holds the state of those parameters that this rank updates.
    """
    inner = getattr(optimizer, "optim", None)
    if isinstance(inner, torch.optim.Optimizer):
        return {**_state_of(inner), **optimizer.state}
    return optimizer.state


def _is_of_all(
    state: torch.Tensor, parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer
) -> bool:
    """Whether it is of all parameters, one after the other: LBFGS files it under the first."""
    is_flat = state.dim() == 1 and state.shape != parameter.shape
    return is_flat and state.numel() == sum(one.numel() for one in _held_by(optimizer))


def _rates_of(optimizer: torch.optim.Optimizer) -> list[object]:
    return [group.get("lr") for group in optimizer.param_groups]


def _learning_rates(rates: Sequence[object]) -> dict[str, float]:
    told = dict[str, float]()
    for number, rate in enumerate(rates[:MAX_GROUPS]):
        if isinstance(rate, int | float) and float(rate) != told.get("lr"):
            told[f"lr.{number}" if number else "lr"] = float(rate)
    return told


def _makes_gradients(args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether an update was given a closure, which runs forward and backward inside of it."""
    return any(map(callable, (*args, *keywords.values())))


def _held_by(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
