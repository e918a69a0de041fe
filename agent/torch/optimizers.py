"""Weights, their gradients and optimizer state: seen at the optimizer's own moments.

Weights are noted when the step's first forward begins, or when it ends if the model is compiled,
and are read before the optimizer changes them. Gradients are read just before the update: after
reduction, unscaling and clipping; just after it where a closure made them. State is noted just
after the update and read before the next. State belongs to a parameter by identity. What updates
changed is noted when the step ends.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ...sketch.labels import more_words
from ...wire.messages import MeshAxis
from ..sitebook import Key
from .eager import eager
from .groups import Group, Member
from .ledger import Ledger
from .local import gradient_of, placement_of, slot_of
from .megatron import part_of, placement_in_mesh, tensor_parallel_axis
from .names import Names
from .recorder import Recorder
from .updates import KIND as UPDATE
from .updates import Updates
from .zero import is_in_pieces, piece_held, weight_placement

WEIGHTS: Key = ("weight", "", "", 0)
"""Stands for all of them among what was noted."""
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
        self._mesh = mesh
        self._weights = self._all_weights()
        self._all_gradients: _Gradients | None = None
        self._gradients = WeakKeyDictionary[torch.optim.Optimizer, _Gradients]()
        """Of the parameters of an optimizer."""
        self._states = WeakKeyDictionary[torch.optim.Optimizer, _States]()
        self._model, self._places = names.whole, _places_of(names.whole)
        self._met = {id(one) for one in names.whole.parameters()}
        """Parameters that are seen, or that are told not to be."""
        self._noted: set[Key] = set()
        self._told: dict[str, float | torch.Tensor] = {}
        self._rates = WeakKeyDictionary[torch.optim.Optimizer, list[object]]()
        """Of the groups of each, as of its last update in this step."""
        self.updates = 0
        """How many there were."""
        self.has_updated = False
        """Whether there was one in the open step."""
        self._handles = WeakKeyDictionary[torch.optim.Optimizer, list[Any]]()

    def attach(self) -> None:
        """Put the hooks on all optimizers."""
        self._recorder.forward_listeners.append(self._forward_runs)
        for optimizer in self._optimizers:
            self.join(optimizer)

    def join(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the hooks on an optimizer, which is one of all from now on."""
        self._handles[optimizer] = [
            optimizer.register_step_pre_hook(self._before_update),
            optimizer.register_step_post_hook(self._after_update),
        ]

    def part(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the hooks off an optimizer, which is none of all from now on."""
        for handle in self._handles.pop(optimizer, ()):
            handle.remove()
        self._gradients.pop(optimizer, None)
        self._states.pop(optimizer, None)

    def remove(self) -> None:
        """Take all hooks off the optimizers."""
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()

    def note_weights(self) -> None:
        """Measure all weights as they are now, once a step."""
        if WEIGHTS not in self._noted and self._recorder.timetable.due("weight"):
            self._noted.add(WEIGHTS)
            self._recorder.measure_group(self._weights, list(map(piece_held, self._parameters)))

    def step_ends(self) -> None:
        """Measure what no optimizer brought up in this step: it was skipped, or there is none."""
        before = len(self._noted)
        self.note_weights()
        self._note_gradients(None)
        if len(self._noted) > before:
            self._recorder.barrier()
        for parameter, change in self._updates.take():
            self._note((UPDATE, self._parameters[parameter][0], "", 0), change, parameter)
        self._look_for_others()

    def step_begins(self) -> None:
        """Forget the step before, whose end may have been interrupted."""
        self._noted.clear()
        self._updates.forget()
        self.has_updated = False

    def training(self) -> dict[str, float | torch.Tensor]:
        """What optimizers say of the step that ends.

        `lr` of the first parameter group, as its update took it, whatever a scheduler has made of
        it since; `lr.n` of group n, counted from 0 over all optimizers, where that is another; and
        `gradient_scale` where a fused optimizer takes gradients as a GradScaler scaled them, and
        divides by it inside.
        """
        told, self._told = self._told, {}
        rates = [
            rate for one in self._optimizers for rate in self._rates.get(one) or _rates_of(one)
        ]
        self._rates.clear()
        return {**_learning_rates(rates), **told}

    def _forward_runs(self) -> None:
        self.note_weights()
        if not self._optimizers:  # nobody will say when the weights change
            self._keep(self._parameters)
            self._recorder.barrier()

    @eager
    def _before_update(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self._ledger.update()
        self.updates += 1
        self.has_updated = True
        with self._recorder.stopwatch:
            try:
                self._rates[optimizer] = _rates_of(optimizer)
                self.note_weights()
                held, comes = _held_by(optimizer), _makes_gradients(args, keywords)
                self._tell_of(held)
                if not comes:
                    self._note_gradients(optimizer)
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

    @eager
    def _after_update(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        with self._recorder.stopwatch:
            try:
                if _makes_gradients(args, keywords):
                    self._note_gradients(optimizer)
                    self._recorder.barrier()
                if self._recorder.timetable.due("optimizer_state"):
                    self._note_states(optimizer)
            except Exception as error:  # never into the training loop: told in the run
                self._recorder.report("What an update left could not be read", error)

    def _look_for_others(self) -> None:
        """Let go of parameters that are the model's no more, and tell of those that have come."""
        moved = [place for place in self._places if not _is_there(*place)]
        if not moved:
            return
        now = set(self._model.parameters())
        self._places = _places_of(self._model)
        for parameter in {parameter for _, _, parameter in moved} - now:
            self._parameters.pop(parameter, None)
        self._weights = self._all_weights()
        self._all_gradients = None
        self._gradients.clear()
        self._states.clear()
        self._tell_of(now - self._parameters.keys())

    def _tell_of(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Tell once of parameters that have become the model's, and are not seen."""
        new = {one for one in parameters if id(one) not in self._met}
        if not new:
            return
        held = (one for optimizer in self._optimizers for one in _held_by(optimizer))
        self._met = {id(one) for one in (*self._model.parameters(), *held)}
        names = [name for name, one in self._model.named_parameters() if one in new]
        if names:
            first, *others = names
            self._recorder.report(
                f"The model has another parameter {first}{more_words(others)} than when it was "
                "observed, which is not seen: leave the block, and observe it anew"
            )

    def _all_weights(self) -> Group:
        return Group(
            "weight",
            [
                replace(
                    self._member("weight", one),
                    placed=weight_placement(one, self._placed[one], self._mesh),
                )
                for one in self._parameters
            ],
        )

    def _member(self, kind: str, parameter: torch.nn.Parameter, slot: str = "") -> Member:
        name, aliases = self._parameters[parameter]
        placed, part = self._placed[parameter], self._part[parameter]
        return Member((kind, name, slot, 0), aliases, placed, part, parameter)

    def _note(self, key: Key, tensor: torch.Tensor, parameter: torch.nn.Parameter) -> None:
        """Measure once a step, however many optimizers and updates there are."""
        if key not in self._noted and self._recorder.wants(key[0], key[1]):
            self._noted.add(key)
            aliases, placed = self._parameters[parameter][1], self._placed[parameter]
            part = self._part[parameter] if tensor.shape == parameter.shape else None
            self._recorder.measure(key, tensor, aliases=aliases, placed=placed, part=part)

    def _note_gradients(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Measure the gradients of an optimizer's parameters, or of all."""
        if not self._recorder.timetable.due("weight_gradient"):
            return
        held = list(self._parameters) if optimizer is None else _held_by(optimizer)
        known = self._all_gradients if optimizer is None else self._gradients.get(optimizer)
        if known is None or not known.is_of(held):
            mine = [parameter for parameter in held if parameter in self._parameters]
            group = Group("weight_gradient", [self._member("weight_gradient", one) for one in mine])
            known = _Gradients(held, mine, group)
            if optimizer is None:
                self._all_gradients = known
            else:
                self._gradients[optimizer] = known
        tensors: list[torch.Tensor | None] = [None] * len(known.parameters)
        for place in self._recorder.due(known.group):
            parameter, key = known.parameters[place], known.group.members[place].key
            gradient = gradient_of(parameter)
            if gradient is None:
                continue
            self._ledger.take(key[1])
            if slot := slot_of(gradient):
                self._note(("weight_gradient", key[1], slot, 0), gradient, parameter)
            elif key not in self._noted:
                self._noted.add(key)
                tensors[place] = gradient
        self._recorder.measure_group(known.group, tensors)

    def _keep(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Hold what weights are before they change, where that is due."""
        if self._recorder.timetable.due(UPDATE):
            self._updates.keep(
                one
                for one in parameters
                if one in self._parameters
                and not is_in_pieces(one)
                and self._recorder.wants(UPDATE, self._parameters[one][0])
            )

    def _note_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure what an optimizer keeps of its parameters."""
        states = state_by_parameter(optimizer)
        known = self._states.get(optimizer)
        if known is None or not known.is_of(states):
            # A parameter's instance check is Python, and takes longer than to look it up.
            mine = {
                one: state
                for one, state in states.items()
                if one in self._parameters and isinstance(state, dict)
            }
            known = self._states[optimizer] = self._found_states(optimizer, len(states), mine)
        tensors: list[torch.Tensor | None] = [None] * len(known.slots)
        for place in self._recorder.due(known.group):
            (parameter, slot, state), member = known.slots[place], known.group.members[place]
            value = state[slot]
            if not isinstance(value, torch.Tensor) or value.dim() == 0:  # `step` is a scalar tensor
                continue
            if is_of_all(value, parameter, optimizer):
                key = "optimizer_state", self._called(optimizer), member.key[2], 0
                self._note_whole(key, value)
            elif member.key not in self._noted:
                self._noted.add(member.key)
                tensors[place] = value
        self._recorder.measure_group(known.group, tensors)

    def _found_states(
        self,
        optimizer: torch.optim.Optimizer,
        number: int,
        states: Mapping[torch.nn.Parameter, dict[str, Any]],
    ) -> _States:
        """What it keeps now of the model's parameters, of so many in all."""
        members = list[Member]()
        for parameter, state in states.items():
            for slot, value in state.items():
                if isinstance(value, torch.Tensor) and is_of_all(value, parameter, optimizer):
                    key = "optimizer_state", self._called(optimizer), str(slot), 0
                    members.append(Member(key))
                else:
                    members.append(self._member("optimizer_state", parameter, str(slot)))
        return _States(number, states, Group("optimizer_state", members))

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


_Place = tuple[torch.nn.Module, str, torch.nn.Parameter]
"""A module, and as what it holds a parameter."""


def _places_of(model: torch.nn.Module) -> list[_Place]:
    """Where parameters are held. Not of DTensors, which FSDP2 takes out of their modules."""
    return [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if not placement_of(parameter)
    ]


def _is_there(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> bool:
    # To get the attribute would compute a weight that is parametrised by now.
    return module._parameters.get(name) is parameter  # pyright: ignore[reportPrivateUsage]


class _Gradients:
    """The gradients of some parameters."""

    def __init__(
        self,
        held: Sequence[torch.nn.Parameter],
        parameters: Sequence[torch.nn.Parameter],
        group: Group,
    ) -> None:
        self._held = held
        self.parameters, self.group = parameters, group
        """Those that are the model's, and their gradients."""

    def is_of(self, held: Sequence[torch.nn.Parameter]) -> bool:
        """Whether an optimizer still holds the same parameters."""
        return len(held) == len(self._held) and all(map(operator.is_, held, self._held))


class _States:
    """What an optimizer keeps: by parameter a dictionary of slots."""

    def __init__(
        self,
        number: int,
        mine: Mapping[torch.nn.Parameter, dict[str, Any]],
        group: Group,
    ) -> None:
        self._number = number
        self._mine = [(parameter, state, tuple(state)) for parameter, state in mine.items()]
        self.slots = [(one, slot, state) for one, state in mine.items() for slot in state]
        """Of the model's parameters, one for each member of the group."""
        self.group = group

    def is_of(self, states: Mapping[Any, Any]) -> bool:
        """Whether it still keeps the same slots in the same dictionaries."""
        return len(states) == self._number and all(
            states.get(parameter) is state and tuple(state) == slots
            for parameter, state, slots in self._mine
        )


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


def state_by_parameter(optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
    """By parameter; of an optimizer around another one, as ZeroRedundancyOptimizer, that one's.

    It holds the state of those parameters that this rank updates.
    """
    inner = getattr(optimizer, "optim", None)
    if isinstance(inner, torch.optim.Optimizer):
        return {**state_by_parameter(inner), **optimizer.state}
    return optimizer.state


def is_of_all(
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
