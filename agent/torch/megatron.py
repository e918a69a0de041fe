"""What Megatron says of its parameters and layers: by attributes, for its tensors are plain ones.

A parameter that is a part of a whole has `tensor_model_parallel`, and `partition_dim` says along
which of its axes. Which part it is follows from the rank's place on the axis that is called `tp`
here. Parameters that see another part of the sequence on each rank of it have `sequence_parallel`;
those of experts, where these are spread over ranks, have `allreduce`, and it is False.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ...sketch.errors import SettingError
from ...sketch.mesh_axes import EXPERT_PARALLEL, PIPELINE_PARALLEL, TENSOR_PARALLEL
from ...wire.messages import MeshAxis, Placement
from ..selection import RankscopeWarning
from .axes import meshes_of
from .local import Cut, parameter_placement

LOCAL_EXPERTS = "local_experts"
"""What Megatron calls the list of those of a rank, which it counts from 0."""
NORMS_OF_HEADS = ("q_layernorm", "k_layernorm")
"""Their weights see a rank's own heads; Megatron knows them by name, too."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which of several equal parts of a whole a tensor is."""

    along: int
    """The axis of the tensor that is cut."""
    number: int
    parts: int

    def cut(self, sizes: Sequence[int]) -> Cut:
        """Where a piece of those sizes lies."""
        whole, offsets = list(sizes), [0] * len(sizes)
        whole[self.along] *= self.parts
        offsets[self.along] = self.number * sizes[self.along]
        return Cut(list(sizes), offsets, whole, [(TENSOR_PARALLEL, self.along)])


def mesh_of_megatron(modules: Sequence[torch.nn.Module]) -> dict[str, int] | None:
    """The sizes of the job's axes, ranks counted with the last one first, as it has set them up.

    None where it has not, or DTensors tell their mesh; and where its groups are no axes of one
    mesh, as those of experts whose tensor parallelism is another, which is told.
    """
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized() or any(map(meshes_of, modules)):
        return None
    groups = {
        PIPELINE_PARALLEL: state.get_pipeline_model_parallel_group(),
        TENSOR_PARALLEL: state.get_tensor_model_parallel_group(),
        "cp": state.get_context_parallel_group(),
        EXPERT_PARALLEL: state.get_expert_model_parallel_group(),
    }
    has_experts = groups[EXPERT_PARALLEL].size() > 1
    data = state.get_expert_data_parallel_group if has_experts else state.get_data_parallel_group
    ranks = {
        name: dist.get_process_group_ranks(group)
        for name, group in {**groups, "dp": data()}.items()
        if group.size() > 1
    }
    sizes, apart = dict[str, int](), 1
    for name, own in sorted(ranks.items(), key=lambda item: item[1][1] - item[1][0]):
        if own == list(range(own[0], own[0] + len(own) * apart, apart)):
            sizes[name] = len(own)
            apart *= len(own)
    if apart == dist.get_world_size():
        return dict(reversed(sizes.items()))
    warnings.warn(
        f"Megatron's groups are no axes of one mesh; this rank's are {ranks}: pass mesh=, the "
        "sizes of the job's axes as {'dp': 2, 'tp': 4}, the last one counted first.",
        RankscopeWarning,
        stacklevel=3,
    )
    return None


def tensor_parallel_axis(mesh: Iterable[MeshAxis]) -> MeshAxis | None:
    """The axis along which parameters are cut; None where it has one rank, or is not there."""
    return next((axis for axis in mesh if axis.name == TENSOR_PARALLEL and axis.size > 1), None)


def is_part(parameter: object) -> bool:
    """Whether Megatron marked a tensor as a part of a whole."""
    return getattr(parameter, "tensor_model_parallel", False) is True


def cut_along(parameter: torch.Tensor) -> int | None:
    """The axis along which Megatron cut a tensor; None for a whole, and where it does not say."""
    along = getattr(parameter, "partition_dim", None)
    if not is_part(parameter) or hasattr(parameter, "placements") or not isinstance(along, int):
        return None
    return along if 0 <= along < parameter.dim() else None


def part_of(parameter: torch.Tensor, axis: MeshAxis | None) -> Part | None:
    """Which part of the whole a parameter is, where that is known.

    It is not where `partition_stride` says that a rank has several parts, as of the two matrices of
    a gated unit: then its elements are no part of the whole in one.
    """
    along = cut_along(parameter)
    if axis is None or along is None or getattr(parameter, "partition_stride", 1) != 1:
        return None
    return Part(along, axis.coordinate, axis.size)


def adds_up_gradient(name: str, parameter: torch.Tensor) -> bool:
    """Whether ranks along `tp` add up a parameter's gradients, for each sees a part of its input.

    Megatron does so when all gradients are made, and copies of the parameter stay alike.
    """
    of_sequence = getattr(parameter, "sequence_parallel", False) is True
    of_heads = any(norm in name for norm in NORMS_OF_HEADS)
    return (of_sequence or of_heads) and not (
        is_part(parameter) or hasattr(parameter, "placements")
    )


def is_of_expert(parameter: object) -> bool:
    """Whether a parameter is that of experts that other ranks do not have."""
    return getattr(parameter, "allreduce", True) is False


def placement_in_mesh(
    name: str, parameter: torch.Tensor, mesh: Iterable[MeshAxis]
) -> dict[str, Placement]:
    """How a parameter relates to the whole, by mesh axis, as it or Megatron says.

    What holds all experts of a rank in one is a part of those of all ranks.
    """
    placed = parameter_placement(parameter)
    is_spread = any(axis.name == EXPERT_PARALLEL and axis.size > 1 for axis in mesh)
    if is_spread and is_of_expert(parameter) and f"{LOCAL_EXPERTS}." not in name:
        placed[EXPERT_PARALLEL] = "shard"
    return placed


def check_layers(model: torch.nn.Module, mesh: Iterable[MeshAxis]) -> None:
    """Refuse a mesh without the axis along which layers are cut.

    Raises:
        SettingError: it has none.
    """
    cut = (made for module in model.modules() if (made := features_of(module)) is not None)
    if tensor_parallel_axis(mesh) is None and any(whole != mine for whole, mine in cut):
        raise SettingError(
            "Layers of Megatron's are cut over several ranks, but the job's mesh has no axis tp: "
            "pass mesh=, as {'dp': 2, 'tp': 4}, the last axis counted first."
        )


def is_vocabulary(module: torch.nn.Module) -> bool:
    """Whether a module is an embedding of Megatron's, whose weight is cut along its inputs."""
    return hasattr(module, "num_embeddings_per_partition")


def features_of(module: torch.nn.Module) -> tuple[int, int] | None:
    """How many features a column-parallel layer makes, and how many of them here.

    Also of one without a weight of its own, as an output layer that has the embedding's.
    """
    whole = getattr(module, "output_size", None)
    mine = getattr(module, "output_size_per_partition", None)
    return (whole, mine) if isinstance(whole, int) and isinstance(mine, int) else None
