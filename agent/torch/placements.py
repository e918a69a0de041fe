"""How the outputs of modules relate to the whole, where tensors do not say it themselves.

Tensor parallelism turns a module's output into a plain tensor, and whether it is one rank's part is
known to nobody. It follows from the module's own weight, whose placement is known, and the
output's size; modules without such a weight pass on what their inputs are. What the user says by
pattern goes above all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ...sketch.mesh_axes import TENSOR_PARALLEL
from ...wire.messages import MeshAxis, Placement
from .axes import names_in_job
from .identity import data_axes
from .local import placement_of, weight_of
from .megatron import (
    adds_up_gradient,
    cut_along,
    features_of,
    is_vocabulary,
    tensor_parallel_axis,
)
from .nested import tensors_in

Placed = dict[str, Placement]
"""By mesh axis."""
_Cut = tuple[str, bool, int, int]
"""Axis of the mesh, whether along the output's features, how many there are, and how many here."""


class ModulePlacements:
    """Placements of the outputs of a model's modules, as they are computed.

    Args:
        model: the observed root.
        mesh: of the job. How a weight is sharded along axes along which ranks see different samples
            says nothing about outputs.
    """

    def __init__(self, model: torch.nn.Module, mesh: Sequence[MeshAxis]) -> None:
        axes, axis = data_axes(mesh), tensor_parallel_axis(mesh)
        modules = list(model.modules())
        cuts = {module: [*_cuts(module, axes), *_megatron_cuts(module, axis)] for module in modules}
        self._cuts = {module: cut for module, cut in cuts.items() if cut}
        self._of_sequences = {
            module
            for module in modules
            if axis is not None
            and self._cuts
            and module not in self._cuts
            and _is_of_sequences(module)
        }
        """Modules of Megatron's that see another part of the sequence on each rank."""
        self._known: Any = WeakIdKeyDictionary()
        """What is known of tensors that are still there, by those that own their memory."""

    @property
    def is_needed(self) -> bool:
        """Whether a weight is sharded along an axis of the model's own, so that there is doubt."""
        return bool(self._cuts)

    def adds_up(self, module: torch.nn.Module) -> bool:
        """Whether what a module returns is a sum over ranks: its weight is cut along its inputs."""
        return any(not along_features for _, along_features, _, _ in self._cuts.get(module, ()))

    def spreads(self, module: torch.nn.Module) -> bool:
        """Whether each rank makes other features of the same input, so that gradients add up."""
        return any(along_features for _, along_features, _, _ in self._cuts.get(module, ()))

    def cuts_inputs(self, module: torch.nn.Module) -> set[str]:
        """Mesh axes along which a module's weight is cut along its inputs."""
        return {
            axis for axis, along_features, _, _ in self._cuts.get(module, ()) if not along_features
        }

    def known(self, tensor: torch.Tensor) -> Placed:
        """How a tensor relates to the whole that it says itself, or that a module returned."""
        return placement_of(tensor) or self._known.get(_owner(tensor), {})

    def of(self, module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> Placed:
        """How one output of a module relates to the whole."""
        placed = placement_of(output)
        if not placed:
            known = self._known.get(_owner(output))
            placed = self._inferred(module, inputs, output) if known is None else known
        self._known[_owner(output)] = placed
        return placed

    def _inferred(self, module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> Placed:
        arriving = [tensor for _, tensor in tensors_in(inputs)]
        placed = Placed()
        if module not in self._cuts:
            for tensor in arriving:
                placed |= self.known(tensor)
            if module in self._of_sequences:
                placed[TENSOR_PARALLEL] = "shard"
            return placed
        rows = math.prod(output.shape[:-1])
        for axis, along_features, whole, mine in self._cuts[module]:
            if along_features:
                is_part = output.dim() > 0 and output.shape[-1] == mine != whole
            else:  # the sum over ranks; it may have been scattered along the sequence
                is_part = bool(arriving) and rows < _rows_of(arriving[0], module)
            placed[axis] = "shard" if is_part else "replicate"
        return placed


def _cuts(module: torch.nn.Module, data_axes: Collection[str]) -> Iterator[_Cut]:
    """Along which axes the weight of a module, a DTensor, is cut."""
    weight = weight_of(module)
    mesh, placements = getattr(weight, "device_mesh", None), getattr(weight, "placements", None)
    if weight is None or mesh is None or placements is None:
        return
    if weight.dim() != 2 or mesh.get_coordinate() is None:
        return
    features = 1 if isinstance(module, torch.nn.Embedding) else 0
    for place, (names, placement) in enumerate(zip(names_in_job(mesh), placements, strict=True)):
        if not placement.is_shard() or any(axis in data_axes for axis in names):
            continue
        whole = weight.shape[features]
        chunk = -(-whole // mesh.size(place))
        mine = min(chunk, max(whole - mesh.get_coordinate()[place] * chunk, 0))
        for axis in names:
            yield axis, placement.dim == features, whole, mine


def _megatron_cuts(module: torch.nn.Module, axis: MeshAxis | None) -> Iterator[_Cut]:
    """Whether the weight of a layer of Megatron's is cut, or one that it is called with."""
    weight = weight_of(module)
    if axis is None:
        return
    if weight is not None:
        along, features = cut_along(weight), 1 if _is_embedding(module) else 0
        if along is not None and weight.dim() == 2:
            mine = weight.shape[features]
            yield axis.name, along == features, mine * axis.size, mine
    elif (made := features_of(module)) is not None and made[0] != made[1]:
        yield axis.name, True, *made


def _is_of_sequences(module: torch.nn.Module) -> bool:
    """Whether a module's own weights are marked as Megatron marks those of norms and routers."""
    own = module.parameters(recurse=False)
    return any(adds_up_gradient("", parameter) for parameter in own)


def _is_embedding(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Embedding) or is_vocabulary(module)


def _rows_of(tensor: torch.Tensor, module: torch.nn.Module) -> int:
    """How many vectors a module makes of its whole input."""
    return tensor.numel() if _is_embedding(module) else math.prod(tensor.shape[:-1])


def _owner(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor whose memory this one shows."""
    return tensor if tensor._base is None else tensor._base
