"""The stages of a pipeline that a rank holds, as torch.distributed.pipelining has made them."""

from __future__ import annotations

import gc
import math
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist

from ...sketch.errors import SettingError
from ...sketch.mesh_axes import PIPELINE_PARALLEL
from ..selection import RankscopeWarning
from .axes import axis_names, meshes_of_all_ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@runtime_checkable
class Stage(Protocol):
    """A stage of a pipeline, as torch.distributed.pipelining has it."""

    submod: torch.nn.Module
    stage_index: int
    num_stages: int
    group: dist.ProcessGroup | None


Observable = torch.nn.Module | Stage | Sequence[torch.nn.Module | Stage]
"""A model, or the stages of one that a rank holds."""

NumberedStage = tuple[torch.nn.Module, int | None]
"""A module whose forward is called, and its number in the pipeline, where it is one and known."""


def stages_of(model: Observable) -> list[NumberedStage]:
    """Each module whose forward is called, and the number of its stage where it says so.

    Without DistributedDataParallel, which a job that loses a rank makes anew around the same model.

    Raises:
        SettingError: there is none.
    """
    stages = list[NumberedStage]()
    several = isinstance(model, Sequence | torch.nn.ModuleList)  # nobody can call a ModuleList
    for one in model if several else [model]:
        module, number = (one.submod, one.stage_index) if isinstance(one, Stage) else (one, None)
        while isinstance(module, torch.nn.parallel.DistributedDataParallel):
            module = module.module
        stages.append((module, number))
    if not stages:
        raise SettingError("`model` is empty; pass the module that is trained, or its stages.")
    return stages


def stages_made() -> list[Stage]:
    """Those that the script has made, by their number."""
    pipelining: Any = sys.modules.get("torch.distributed.pipelining.stage")
    base = getattr(pipelining, "_PipelineStageBase", None)
    made = [] if base is None else [o for o in gc.get_objects() if issubclass(type(o), base)]
    return sorted(made, key=lambda one: one.stage_index)


def stages_around(modules: Iterable[torch.nn.Module]) -> list[Stage]:
    """Those that the script has made which have parameters of these modules."""
    asked = frozenset[int]().union(*map(_own, modules))
    return [one for one in stages_made() if not asked.isdisjoint(_own(one.submod))]


def numbered(
    stages: Sequence[NumberedStage],
    made: Sequence[Stage],
    mesh: DeviceMesh | Mapping[str, int] | None,
) -> list[NumberedStage]:
    """With numbers, where they are known by now.

    Args:
        made: those that the script has made; they know theirs.
        mesh: the job's. Others are dealt out in turn over its pipeline, as interleaved schedules
            do.
    """
    known = {_own(one.submod): one.stage_index for one in made}
    at, size = _place_in_pipeline(mesh)
    in_turn = [at + place * size if size > 1 else None for place in range(len(stages))]
    return [
        (module, known.get(_own(module), turn) if number is None else number)
        for (module, number), turn in zip(stages, in_turn, strict=True)
    ]


def _place_in_pipeline(mesh: DeviceMesh | Mapping[str, int] | None) -> tuple[int, int]:
    """Where this rank is along the pipeline, and of how many; of 1 where that is not known."""
    if mesh is None or not dist.is_initialized():
        return 0, 1
    names = list(mesh) if isinstance(mesh, Mapping) else axis_names(mesh)
    if PIPELINE_PARALLEL not in names:
        return 0, 1
    shape = tuple(mesh.values()) if isinstance(mesh, Mapping) else mesh.shape
    if math.prod(shape) != dist.get_world_size():  # which is refused once ranks meet
        return 0, 1
    is_counted = isinstance(mesh, Mapping)
    own = np.unravel_index(dist.get_rank(), shape) if is_counted else mesh.get_coordinate()
    place = names.index(PIPELINE_PARALLEL)
    return (int(own[place]) if own else 0), shape[place]


def _own(module: torch.nn.Module) -> frozenset[int]:
    """Its parameters, by identity, whatever is around it."""
    return frozenset(map(id, module.parameters()))


def mesh_along(stage: Stage) -> DeviceMesh | Mapping[str, int] | None:
    """The job's mesh, of which one axis holds the ranks that pass on to each other.

    None where there is only one, or where it cannot be known, which is told.
    """
    ranks = dist.get_process_group_ranks(stage.group or dist.group.WORLD)
    if len(ranks) == 1:
        return None
    world_size = dist.get_world_size()
    for mesh in meshes_of_all_ranks(world_size):
        found = _with_pipeline_along(mesh, ranks)
        if found is not None:
            return found
    size, apart = len(ranks), ranks[1] - ranks[0]
    if ranks == list(range(ranks[0], ranks[0] + size * apart, apart)):
        if apart == 1:
            return _without_ones({"dp": world_size // size, PIPELINE_PARALLEL: size})
        if apart * size == world_size:
            return {PIPELINE_PARALLEL: size, "dp": apart}
    warnings.warn(
        f"The stages of the pipeline are on ranks {ranks} of {world_size}, and what the others are "
        "to these is not known: pass mesh=, the DeviceMesh of all ranks, or the sizes of its axes "
        f"as {{'dp': 2, '{PIPELINE_PARALLEL}': {size}}}, the last one counted first.",
        RankscopeWarning,
        stacklevel=3,
    )
    return None


def _with_pipeline_along(
    mesh: DeviceMesh, ranks: Sequence[int]
) -> DeviceMesh | Mapping[str, int] | None:
    """A mesh of which one axis has these ranks, and is called what it is; None: it has none."""
    own, names = mesh.get_coordinate(), axis_names(mesh)
    if own is None:
        return None
    for place, name in enumerate(names):
        line = mesh.mesh[tuple(slice(None) if at == place else c for at, c in enumerate(own))]
        if line.tolist() != list(ranks):
            continue
        if name == PIPELINE_PARALLEL:
            return mesh
        if mesh.mesh.flatten().tolist() == list(range(mesh.size())):
            names[place] = PIPELINE_PARALLEL
            return dict(zip(names, mesh.shape, strict=True))
    return None


def _without_ones(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size > 1}
