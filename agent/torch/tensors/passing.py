"""Activations and their gradients, as modules return them while a block runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils.hooks import unserializable_hook

from ....sketch.errors import SettingError
from ....sketch.labels import site_label
from ....wire.messages import MeshAxis, Placement
from ...selection import Selection
from ...toolkit.arithmetic import Patterns
from ..hooks import Hook, recomputing
from ..identity import data_axes, mesh_of_tensors
from ..names import Names
from ..nested import tensors_in
from ..placements import ModulePlacements
from ..stages import Observable, stages_of
from .named import NamedTensors
from .places import Piece, pieces_of
from .snapshots import Device


class Activations:
    """What the modules of a model return in a `with` block, and the gradients of it.

    A name is that of the module, as `blocks.0.mlp`; with the path of the element where it returns
    several tensors, `lstm[1.0]`; and with the number of the call in the block from the second on,
    `shared#1`. Calls in which activation checkpointing computes something again are not counted
    again. Inside the block compiled models run as if they were not.

    All that is taken stays in memory until this object goes.

    Args:
        model: as of `weights`.
        gradients: whether gradients are taken, too. Those of several backwards add up, as `.grad`
            does.
        include: as of `snapshot`, for the names of modules; the model's own is `(root)`.
        exclude: as of `snapshot`.
        device: as of `snapshot`.
        dtype: as of `snapshot`.

    Raises:
        SettingError: a pattern is no regular expression.
    """

    def __init__(
        self,
        model: Observable,
        *,
        gradients: bool = True,
        include: Patterns = None,
        exclude: Patterns = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        names = Names(stages_of(model))
        selection = Selection.of(include, exclude)
        called = names.modules()
        selection.warn_of_strays(name for name, _ in called)
        self._modules = [(name, module) for name, module in called if selection.chooses(name)]
        self._mesh: tuple[MeshAxis, ...] = mesh_of_tensors(names.whole)
        axes = data_axes(self._mesh)
        self._samples: dict[str, Placement] = dict.fromkeys(axes, "shard")
        self._placements = ModulePlacements(names.whole, self._mesh)
        self._with_gradients, self._device, self._dtype = gradients, device, dtype
        self._calls: Counter[tuple[str, bool]] = Counter()
        self._handles: list[Any] = []
        self._eager = ExitStack()
        self._taken: list[Piece] = []
        self._arrived: dict[str, Piece] = {}

    @property
    def activations(self) -> NamedTensors:
        """What modules have returned so far, in the order in which they returned it."""
        return NamedTensors.of(self._taken, "activation")

    @property
    def gradients(self) -> NamedTensors:
        """The gradients that have arrived so far."""
        return NamedTensors.of(self._arrived.values(), "activation_gradient")

    def __enter__(self) -> Self:
        if self._handles:
            raise SettingError("A block of this object is open already; make another one for it.")
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and to import it takes long
            self._eager.enter_context(torch.compiler.set_stance("force_eager"))
        for name, module in self._modules:
            hook = Hook(self._watcher(name))
            self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._eager.close()

    def _watcher(self, name: str) -> Callable[..., None]:
        def returns(module: torch.nn.Module, inputs: Any, keywords: Any, output: Any) -> None:
            again = recomputing()
            call = self._calls[name, again]
            self._calls[name, again] += 1
            arriving = (*inputs, keywords) if keywords else inputs
            for slot, tensor in tensors_in(output):
                placed = self._samples | self._placements.of(module, arriving, tensor)
                label = site_label("", name, slot, call)[1:]
                if not again:
                    self._taken += self._copies(label, tensor, placed)
                if self._with_gradients and tensor.requires_grad:
                    hook = self._receiver(label, placed)
                    self._handles.append(tensor.register_hook(hook))

        return returns

    def _receiver(
        self, label: str, placed: dict[str, Placement]
    ) -> Callable[[torch.Tensor | None], None]:
        @unserializable_hook  # else torch warns when the tensor is saved
        def arrives(gradient: torch.Tensor | None) -> None:
            if gradient is None:  # a function of the user's gave none
                return
            for name, tensor, place in self._copies(label, gradient, placed):
                before = self._arrived.get(name)
                total = tensor if before is None else tensor + before[1]
                self._arrived[name] = name, total, place

        return arrives

    def _copies(
        self, label: str, tensor: torch.Tensor, placed: dict[str, Placement]
    ) -> list[Piece]:
        return [
            (name, piece.to(device=self._device, dtype=self._dtype, copy=True), place)
            for name, piece, place in pieces_of(label, tensor, self._mesh, placed)
        ]
