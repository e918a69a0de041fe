"""What data parallelism does to parameters, seen on each rank before or after the others' share.

A rank's own gradients, before they are reduced: of plain parameters a hook on the parameter sees
them, whatever reduces them later; of FSDP2's a hook on the unsharded parameter. And the unsharded
weights that FSDP2 gathers for a module's forward, which all ranks should hold alike.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.utils.hooks import unserializable_hook
from torch.utils.weak import WeakIdKeyDictionary

from .hooks import Hook
from .local import parameter_placement, placement_of
from .names import Names
from .recorder import LOCAL_GRADIENT, Recorder

UNSHARDED = "unsharded_weight"


class ParallelHooks:
    """Hooks on the parameters that several ranks train together; none where each trains its own.

    Args:
        names: of the model's modules and parameters.
        data_axes: mesh axes of several ranks that see different samples.
        recorder: takes what is seen.
    """

    def __init__(self, names: Names, data_axes: Collection[str], recorder: Recorder) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []
        self._noted: set[str] = set()
        """Names of the unsharded weights that this step has."""
        self._hooked: Any = WeakIdKeyDictionary()
        """Unsharded parameters that have a hook; FSDP2 keeps them from step to step."""
        wanted = any(map(recorder.timetable.observes, (LOCAL_GRADIENT, UNSHARDED)))
        if not data_axes or not wanted:
            return
        known = names.parameters()
        for parameter, (name, aliases) in known.items():
            if parameter.requires_grad and not _is_sharded(parameter, data_axes):
                self._watch_gradient(parameter, name, aliases)
        for _, module in names.modules():
            sharded = {
                attribute: parameter
                for attribute, parameter in module.named_parameters(recurse=False)
                if parameter in known and _is_sharded(parameter, data_axes)
            }
            if sharded:
                own = {attribute: known[parameter] for attribute, parameter in sharded.items()}
                self._watch_module(module, sharded, own)

    def remove(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()

    def step_ends(self) -> None:
        """What comes now belongs to another step."""
        self._noted.clear()

    def _watch_gradient(self, parameter: torch.Tensor, name: str, aliases: tuple[str, ...]) -> None:
        recorder, key = self._recorder, (LOCAL_GRADIENT, name, "", 0)
        placed = parameter_placement(parameter)

        @unserializable_hook  # else torch warns when the parameter is saved
        def arrives(gradient: torch.Tensor) -> None:
            if recorder.timetable.due(LOCAL_GRADIENT):
                with recorder.stopwatch:
                    recorder.measure(key, gradient, aliases=aliases, placed=placed)

        self._handles.append(parameter.register_hook(arrives))

    def _watch_module(
        self,
        module: torch.nn.Module,
        sharded: dict[str, torch.nn.Parameter],
        names: dict[str, tuple[str, tuple[str, ...]]],
    ) -> None:
        """Look at a module's own parameters when its forward begins, and FSDP2 has gathered them.

        FSDP2's hook on the same module is the first, and this one the last.
        """

        def begins(module: torch.nn.Module, _: Any) -> None:
            if torch.compiler.is_compiling() or not self._recorder.is_open:
                return
            with self._recorder.stopwatch:
                try:
                    for attribute, (name, aliases) in names.items():
                        parameter = getattr(module, attribute, None)
                        if parameter is not None and parameter is not sharded[attribute]:
                            self._parameter_is_used(parameter, name, aliases)
                except Exception as error:  # never into the training loop: told in the run
                    self._recorder.report("Unsharded weights could not be read", error)

        self._handles.append(module.register_forward_pre_hook(Hook(begins)))

    def _parameter_is_used(
        self, parameter: torch.nn.Parameter, name: str, aliases: tuple[str, ...]
    ) -> None:
        if parameter.requires_grad and parameter not in self._hooked:
            self._hooked[parameter] = True
            self._watch_gradient(parameter, name, aliases)
        if name not in self._noted and self._recorder.wants(UNSHARDED, name):
            self._noted.add(name)
            key = (UNSHARDED, name, "", 0)
            self._recorder.measure(key, parameter, aliases=aliases, borrowed=True)


def _is_sharded(parameter: torch.Tensor, data_axes: Collection[str]) -> bool:
    """Whether ranks that see different samples hold different pieces of a parameter."""
    placed = placement_of(parameter)
    return any(placed.get(axis) == "shard" for axis in data_axes)
