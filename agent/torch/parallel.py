"""What data parallelism does to parameters, seen on each rank before or after the others' share.

A rank's own gradients, before they are reduced: of plain parameters a hook on the parameter sees
them, whatever reduces them later; of FSDP2's a hook on the unsharded parameter. And the unsharded
weights that FSDP2 gathers for a module's forward, and once more for its backward, which all ranks
should hold alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import unserializable_hook
from torch.utils.weak import WeakIdKeyDictionary

from ...sketch.labels import FOR_BACKWARD, more_words
from ...sketch.mesh_axes import TENSOR_PARALLEL
from ...wire.messages import MeshAxis
from .eager import eager
from .groups import Group, Member
from .hooks import Hook
from .identity import data_axes
from .ledger import Ledger
from .local import gradient_of, placement_of, slot_of
from .megatron import (
    adds_up_gradient,
    is_part,
    part_of,
    placement_in_mesh,
    tensor_parallel_axis,
)
from .names import Names
from .recorder import LOCAL_GRADIENT, Recorder
from .units import earlier_gradients, gathers_again, is_unit, units_of

DOUBTS = 2
"""So many records without a parameter's own gradient, of which none has come before, are told."""
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
        self._noted: set[tuple[torch.nn.Module, str]] = set()
        """Units and slots whose unsharded weights this step has."""
        self._groups: dict[tuple[torch.nn.Module, str], Group] = {}
        """Of the unsharded weights of units, by slot."""
        self._look: Callable[[], None] | None = None
        """What is called when the outermost unit's forward begins, until the first has begun."""
        self._hooked: Any = WeakIdKeyDictionary()
        """Unsharded parameters that have a hook; FSDP2 keeps them from step to step."""
        self._silent: dict[str, int] = {}
        """By name of a parameter of which no own gradient has been seen: records without one."""
        self._names, self._axes = names, data_axes(mesh)
        known = names.parameters()
        self._tensor_parallel = tensor_parallel_axis(mesh) if any(map(is_part, known)) else None
        """The axis along which Megatron cuts parameters."""
        self._is_shared = any(axis.size > 1 for axis in mesh if axis.name in self._axes)
        """Whether ranks see different samples."""

    def attach(self) -> None:
        """Put the hooks on, if any are needed."""
        names, axes, known = self._names, self._axes, self._names.parameters()
        wanted = any(map(self._recorder.timetable.observes, (LOCAL_GRADIENT, UNSHARDED)))
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
                    tied = any(one.sharded is parameter for one in units.setdefault(unit, []))
                    if not tied:
                        units[unit].append(held)
                elif not (self._is_shared or self._adds_up(known[parameter][0], parameter)):
                    continue
                elif parameter.requires_grad and parameter not in self._hooked:
                    self._hooked[parameter] = True
                    self._watch_gradient(parameter, parameter, *known[parameter])
                self._silent[known[parameter][0]] = 0
        for unit, held in units.items():
            self._watch_unit(unit, held)

    def begin_forward(self) -> None:
        """A forward begins; the first that is observed may have begun before there were hooks.

        So it is where `rankscope run` finds a model. What the outermost unit has gathered is looked
        at when its forward ends, then: before FSDP2's own hook lets go of it.
        """
        whole = self._names.whole
        look, self._look = self._look, None
        if look is None or whole._compiled_call_impl is not None:  # pyright: ignore[reportPrivateUsage]
            return

        def ends(*_: Any) -> None:
            handle.remove()
            look()

        handle = whole.register_forward_hook(Hook(ends), prepend=True)
        self._handles.append(handle)

    def remove(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()

    def step_ends(self) -> None:
        """What comes now belongs to another step."""
        self._noted.clear()
        if not self._recorder.is_open or not self._recorder.timetable.due(LOCAL_GRADIENT):
            return
        for name in filter(self._ledger.is_alone, self._silent):
            self._silent[name] += 1
        if max(self._silent.values(), default=0) >= DOUBTS:
            self._tell_silence()
            self._silent.clear()

    def _tell_silence(self) -> None:
        """Say of which parameters only the reduced gradients are seen."""
        first, *others = (name for name, records in self._silent.items() if records >= DOUBTS)
        more = more_words(others)
        self._recorder.report(
            f"A rank's own gradients of {first}{more} are not seen, so that no rule judges their "
            "sums. So it is with parameters that were frozen when they were observed, and where an "
            "FSDP2 model is compiled as a whole"
        )

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
        recorder = self._recorder
        if not recorder.timetable.observes(LOCAL_GRADIENT):
            return
        placed = placement_in_mesh(name, parameter, self._mesh)
        part = part_of(parameter, self._tensor_parallel)
        if self._adds_up(name, parameter):
            placed[TENSOR_PARALLEL] = "partial"

        @unserializable_hook  # else torch warns when the parameter is saved
        @eager
        def arrives(gradient: torch.Tensor | None) -> None:
            # Where Megatron's kernel has added it up already, this is memory that nobody wrote.
            is_there = not getattr(kept, "grad_added_to_main_grad", False)
            if gradient is not None and is_there and recorder.timetable.due(LOCAL_GRADIENT):
                with recorder.stopwatch:
                    try:
                        earlier = (parameter.grad, gradient_of(kept))
                        to_others = any(one is not None for one in earlier) or has_earlier()
                        self._ledger.add(name, to_others=to_others)
                        self._silent.pop(name, None)
                        key = (LOCAL_GRADIENT, name, slot_of(gradient), 0)
                        ordered = _in_order_of(parameter, gradient)
                        recorder.measure(key, ordered, aliases=aliases, placed=placed, part=part)
                    except Exception as error:  # never into the training loop: told in the run
                        recorder.report(f"A gradient of {name} could not be read", error)

        self._handles.append(parameter.register_hook(arrives))

    def _watch_unit(self, unit: torch.nn.Module, held: Sequence[_Held]) -> None:
        """Look at the parameters of a unit whenever FSDP2 has gathered them.

        That is when its forward begins, where FSDP2's hook on the unit is the first, and this one
        the last; and when the first gradient of one of them comes.
        """

        def begins(*_: Any) -> None:
            if not torch.compiler.is_compiling():
                self._are_gathered(unit, held, "", gradient_comes)

        @unserializable_hook  # else torch warns when the parameter is saved
        @eager
        def gradient_comes(_: torch.Tensor | None) -> None:
            self._are_gathered(unit, held, FOR_BACKWARD, gradient_comes)

        if unit is self._names.whole:
            self._look = begins
        self._handles.append(unit.register_forward_pre_hook(Hook(begins)))

    @eager
    def _are_gathered(
        self,
        unit: torch.nn.Module,
        held: Sequence[_Held],
        slot: str,
        gradient_comes: Callable[[torch.Tensor | None], None],
    ) -> None:
        """Read the unsharded weights of a unit, if this is the first time in a step.

        Args:
            slot: for what they were gathered; empty for the forward.
            gradient_comes: to be called with each gradient of one of them.
        """
        recorder = self._recorder
        if not recorder.is_open or (unit, slot) in self._noted:
            return
        self._noted.add((unit, slot))
        with recorder.stopwatch:
            try:
                if slot == FOR_BACKWARD and not gathers_again(unit):
                    return
                try:
                    gathered = [one.unsharded() for one in held]
                    for one, parameter in zip(held, gathered, strict=True):
                        if parameter is None or not parameter.requires_grad:
                            continue
                        if parameter not in self._hooked:
                            self._watch_unsharded(unit, one, parameter, gradient_comes)
                    recorder.measure_group(self._group(unit, held, slot), gathered)
                finally:
                    recorder.read_briefs()
            except Exception as error:  # never into the training loop: told in the run
                recorder.report("Unsharded weights could not be read", error)

    def _group(self, unit: torch.nn.Module, held: Sequence[_Held], slot: str) -> Group:
        group = self._groups.get((unit, slot))
        if group is None:
            members = [Member((UNSHARDED, one.name, slot, 0), one.aliases) for one in held]
            group = self._groups[unit, slot] = Group(UNSHARDED, members)
        return group

    def _watch_unsharded(
        self,
        unit: torch.nn.Module,
        held: _Held,
        parameter: torch.Tensor,
        gradient_comes: Callable[[torch.Tensor | None], None],
    ) -> None:
        """Put hooks on an unsharded parameter that is seen for the first time."""
        self._hooked[parameter] = True
        if self._recorder.timetable.observes(UNSHARDED):
            self._handles.append(parameter.register_hook(gradient_comes))
        has_earlier = earlier_gradients(unit, parameter)
        self._watch_gradient(parameter, held.sharded, held.name, held.aliases, has_earlier)


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A sharded parameter, and where a module has it."""

    module: torch.nn.Module
    attribute: str
    sharded: torch.nn.Parameter
    name: str
    aliases: tuple[str, ...]

    def unsharded(self) -> torch.Tensor | None:
        """What FSDP2 has gathered of it; None where it has not, or has let go of it."""
        parameter = getattr(self.module, self.attribute, None)
        if parameter is self.sharded or not isinstance(parameter, torch.Tensor):
            return None
        made = getattr(parameter, "_local_tensor", parameter)
        return parameter if made.untyped_storage().size() > 0 or made.numel() == 0 else None


def _in_order_of(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient as it will lie in memory beside its parameter: elements are numbered by it."""
    like = getattr(parameter, "_local_tensor", parameter)
    made = getattr(gradient, "_local_tensor", gradient)
    if made.is_sparse or made.shape != like.shape or made.stride() == like.stride():
        return gradient
    with torch.no_grad():
        if made is not gradient:  # a DTensor
            return gradient.contiguous()
        return torch.empty_like(like, dtype=made.dtype).copy_(made)


def _is_shared(parameter: torch.Tensor, data_axes: Collection[str]) -> bool:
    """Whether ranks that see different samples hold pieces, or copies, of a parameter."""
    return any(axis in data_axes for axis in placement_of(parameter))
