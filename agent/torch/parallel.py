"""What data parallelism does to parameters, seen on each rank before or after the others' share.

A rank's own gradients, before they are reduced: of plain parameters a hook on the parameter sees
them, whatever reduces them later; of FSDP2's a hook on the unsharded parameter. And the unsharded
weights that FSDP2 gathers for a module's forward, which all ranks should hold alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import unserializable_hook
from torch.utils.weak import WeakIdKeyDictionary

from ...wire.messages import MeshAxis
from .hooks import Hook
from .identity import data_axes
from .ledger import Ledger
from .local import gradient_of, placement_of
from .megatron import (
    adds_up_gradient,
    is_part,
    part_of,
    placement_in_mesh,
    tensor_parallel_axis,
)
from .names import Names
from .recorder import LOCAL_GRADIENT, Recorder
from .units import earlier_gradients, is_unit, units_of

UNSHARDED = "unsharded_weight"


class ParallelHooks:
    """Hooks on the parameters that several ranks train together; none where each trains its own.

    Args:
        names: of the model's modules and parameters.
        mesh: of the job.
        recorder: takes what is seen.
        ledger: told of gradients that are made.
    """

    def __init__(
        self, names: Names, mesh: Sequence[MeshAxis], recorder: Recorder, ledger: Ledger
    ) -> None:
        self._recorder, self._ledger, self._mesh = recorder, ledger, mesh
        self._handles: list[Any] = []
        self._noted: set[str] = set()
        """Names of the unsharded weights that this step has."""
        self._hooked: Any = WeakIdKeyDictionary()
        """Unsharded parameters that have a hook; FSDP2 keeps them from step to step."""
        axes = data_axes(mesh)
        wanted = any(map(recorder.timetable.observes, (LOCAL_GRADIENT, UNSHARDED)))
        known = names.parameters()
        self._tensor_parallel = tensor_parallel_axis(mesh) if any(map(is_part, known)) else None
        """The axis along which Megatron cuts parameters."""
        self._is_shared = any(axis.size > 1 for axis in mesh if axis.name in axes)
        """Whether ranks see different samples."""
        if not wanted or (not self._is_shared and self._tensor_parallel is None):
            return
        units = dict[torch.nn.Module, list[_Held]]()
        unit_of = units_of(names.whole)
        for _, module in names.modules():
            unit = unit_of.get(module, module)
            for attribute, parameter in module.named_parameters(recurse=False):
                if parameter not in known:
                    continue
                if is_unit(unit) and _is_shared(parameter, axes):
                    held = _Held(module, attribute, parameter, *known[parameter])
                    units.setdefault(unit, []).append(held)
                elif self._is_addend(known[parameter][0], parameter):
                    self._hooked[parameter] = True
                    self._watch_gradient(parameter, parameter, *known[parameter])
        for unit, held in units.items():
            self._watch_unit(unit, held)

    def remove(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()

    def step_ends(self) -> None:
        """What comes now belongs to another step."""
        self._noted.clear()

    def _is_addend(self, name: str, parameter: torch.Tensor) -> bool:
        """Whether a whole parameter's gradient is to be added up, and nobody watches it yet."""
        if not parameter.requires_grad or parameter in self._hooked:
            return False
        return self._is_shared or self._adds_up(name, parameter)

    def _adds_up(self, name: str, parameter: torch.Tensor) -> bool:
        """Whether gradients are added up along the axis along which Megatron cuts parameters."""
        return self._tensor_parallel is not None and adds_up_gradient(name, parameter)

    def _watch_gradient(
        self,
        parameter: torch.Tensor,
        kept: torch.nn.Parameter,
        name: str,
        aliases: tuple[str, ...],
        has_earlier: Callable[[], bool] = lambda: False,
    ) -> None:
        """Measure each gradient of a parameter; `kept` is the one that the optimizer has.

        Args:
            has_earlier: whether earlier ones are kept where neither parameter shows them.
        """
        recorder, key = self._recorder, (LOCAL_GRADIENT, name, "", 0)
        if not recorder.timetable.observes(LOCAL_GRADIENT):
            return
        placed = placement_in_mesh(name, parameter, self._mesh)
        part = part_of(parameter, self._tensor_parallel)
        if self._adds_up(name, parameter):
            placed["tp"] = "partial"

        @unserializable_hook  # else torch warns when the parameter is saved
        def arrives(gradient: torch.Tensor) -> None:
            # Of sparse gradients the places differ from rank to rank.
            # Where Megatron's kernel has added it up already, this is memory that nobody wrote.
            is_there = not (gradient.is_sparse or getattr(kept, "grad_added_to_main_grad", False))
            if is_there and recorder.timetable.due(LOCAL_GRADIENT):
                with recorder.stopwatch:
                    try:
                        earlier = (parameter.grad, gradient_of(kept))
                        to_others = any(one is not None for one in earlier) or has_earlier()
                        self._ledger.add(name, to_others=to_others)
                        ordered = _in_order_of(parameter, gradient)
                        recorder.measure(key, ordered, aliases=aliases, placed=placed, part=part)
                    except Exception as error:  # never into the training loop: told in the run
                        recorder.report(f"A gradient of {name} could not be read", error)

        self._handles.append(parameter.register_hook(arrives))

    def _watch_unit(self, unit: torch.nn.Module, held: Sequence[_Held]) -> None:
        """Look at the parameters of a unit when its forward begins, and FSDP2 has gathered them.

        FSDP2's hook on the unit is the first, and this one the last.
        """

        def begins(*_: Any) -> None:
            if torch.compiler.is_compiling() or not self._recorder.is_open:
                return
            with self._recorder.stopwatch:
                try:
                    try:
                        for one in held:
                            self._parameter_is_used(unit, one)
                    finally:
                        self._recorder.read_briefs()
                except Exception as error:  # never into the training loop: told in the run
                    self._recorder.report("Unsharded weights could not be read", error)

        self._handles.append(unit.register_forward_pre_hook(Hook(begins)))

    def _parameter_is_used(self, unit: torch.nn.Module, held: _Held) -> None:
        parameter = getattr(held.module, held.attribute, None)
        if parameter is None or parameter is held.sharded:
            return
        if parameter.requires_grad and parameter not in self._hooked:
            self._hooked[parameter] = True
            has_earlier = earlier_gradients(unit, parameter)
            self._watch_gradient(parameter, held.sharded, held.name, held.aliases, has_earlier)
        if held.name not in self._noted and self._recorder.wants(UNSHARDED, held.name):
            self._noted.add(held.name)
            key = (UNSHARDED, held.name, "", 0)
            self._recorder.measure(key, parameter, aliases=held.aliases)


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A sharded parameter, and where a module has it."""

    module: torch.nn.Module
    attribute: str
    sharded: torch.nn.Parameter
    name: str
    aliases: tuple[str, ...]


def _in_order_of(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient as it will lie in memory beside its parameter: elements are numbered by it."""
    like = getattr(parameter, "_local_tensor", parameter)
    made = getattr(gradient, "_local_tensor", gradient)
    if made.shape != like.shape or made.stride() == like.stride():
        return gradient
    with torch.no_grad():
        if made is not gradient:  # a DTensor
            return gradient.contiguous()
        return torch.empty_like(like, dtype=made.dtype).copy_(made)


def _is_shared(parameter: torch.Tensor, data_axes: Collection[str]) -> bool:
    """Whether ranks that see different samples hold pieces, or copies, of a parameter."""
    return any(axis in data_axes for axis in placement_of(parameter))
