"""The stages of a pipeline that a rank holds, as torch.distributed.pipelining has made them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from ...sketch.errors import SettingError
from ...sketch.mesh_axes import PIPELINE_PARALLEL
from ..selection import RankscopeWarning
from .axes import axis_names, axis_of, lines_of, made_by_script, meshes_of_all_ranks

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
    made = made_by_script("torch.distributed.pipelining.stage", "_PipelineStageBase")
    return sorted(made, key=lambda one: one.stage_index)


def stages_around(made: Sequence[Stage], modules: Iterable[torch.nn.Module]) -> list[Stage]:
    """Those that have parameters of these modules."""
    asked = frozenset[int]().union(*map(_own, modules))
    return [one for one in made if not asked.isdisjoint(_own(one.submod))]


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
    axis = axis_of(mesh, PIPELINE_PARALLEL)
    in_turn = [
        axis.coordinate + place * axis.size if axis is not None and axis.size > 1 else None
        for place in range(len(stages))
    ]
    return [
        (module, known.get(_own(module), turn) if number is None else number)
        for (module, number), turn in zip(stages, in_turn, strict=True)
    ]


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
            copies = world_size // size
            return {**({"dp": copies} if copies > 1 else {}), PIPELINE_PARALLEL: size}
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
    names = axis_names(mesh)
    for place, (name, line) in enumerate(lines_of(mesh)):
        if line.tolist() != list(ranks):
            continue
        if name == PIPELINE_PARALLEL:
            return mesh
        if mesh.mesh.flatten().tolist() == list(range(mesh.size())):
            names[place] = PIPELINE_PARALLEL
            return dict(zip(names, mesh.shape, strict=True))
    return None
