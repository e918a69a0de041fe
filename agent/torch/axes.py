"""Which axes of the job's mesh the axes of a DTensor's own mesh are.

A DTensor may lie on a part of the job's mesh, on one whose axes were flattened
(`mesh["dp_shard", "cp"]._flatten()`), or on one without names. Ranks decide, and no name.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ...sketch.errors import SettingError
from ...sketch.mesh_axes import EXPERT_PARALLEL, PIPELINE_PARALLEL, TENSOR_PARALLEL
from ...wire.messages import MeshAxis
from .units import gathering_meshes, units_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DATA_NAMES = ("dp", "ddp", "fsdp", "hsdp", "cp", EXPERT_PARALLEL)
"""What the names of axes begin with along which ranks see different samples, or parts of them."""

Names = tuple[tuple[str, ...], ...]
"""By axis of a DTensor's mesh: the job's axes that it is; several where these were flattened."""


@dataclass(frozen=True, slots=True, eq=False)
class JobAxes:
    """The axes of the job's mesh, and which ranks stand where."""

    axes: tuple[MeshAxis, ...]
    ranks: NDArray[np.int64]
    """int64, one axis for each of the mesh."""
    _known: dict[DeviceMesh, Names | None] = field(default_factory=dict["DeviceMesh", Names | None])

    def of(self, mesh: DeviceMesh) -> Names | None:
        """The axes that those of another mesh are; None where they are none of the job's."""
        if mesh not in self._known:
            self._known[mesh] = self._find(mesh)
        return self._known[mesh]

    def _find(self, mesh: DeviceMesh) -> Names | None:
        if mesh.get_coordinate() is None:
            return None
        found = list[tuple[str, ...]]()
        for name, line in lines_of(mesh):
            same = self._spanned_by(line)
            if same is None:
                return None
            is_named = any(axis.name == name for axis in self.axes)
            found.append(same if same or not is_named else (name,))  # of size 1
        return tuple(found)

    def _spanned_by(self, line: NDArray[np.int64]) -> tuple[str, ...] | None:
        """The axes along which some ranks differ; None where others differ along these, too."""
        places = np.argwhere(np.isin(self.ranks, line))
        varies = [axis for at, axis in enumerate(self.axes) if len(set(places[:, at])) > 1]
        is_whole = len(places) == len(line) == math.prod(axis.size for axis in varies)
        return tuple(axis.name for axis in varies) if is_whole else None


_open: list[JobAxes] = []
"""Of the jobs that are observed, the latest last: a process is one rank of one job."""


def enter_job(job: JobAxes) -> None:
    """From now on DTensors are told in this job's axes."""
    _open.append(job)


def leave_job(job: JobAxes) -> None:
    """No more than before it was entered."""
    _open.remove(job)


def present_job() -> JobAxes | None:
    """That of the block that is open; None where none is."""
    return _open[-1] if _open else None


def axis_names(mesh: DeviceMesh) -> list[str]:
    """What the axes of a torch DeviceMesh are called; those without a name by their number."""
    return list(mesh.mesh_dim_names or [f"axis{i}" for i in range(mesh.ndim)])


def lines_of(mesh: DeviceMesh) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Of each axis its name, and the ranks along it among which this one is; none outside of it."""
    own = mesh.get_coordinate()
    for place, name in enumerate(axis_names(mesh) if own else ()):
        through = (slice(None) if at == place else c for at, c in enumerate(own or ()))
        yield name, mesh.mesh.numpy()[tuple(through)]


def axis_of(given: DeviceMesh | Mapping[str, int] | None, name: str) -> MeshAxis | None:
    """An axis of the mesh that was given, where that is one of all ranks."""
    if given is None or not dist.is_initialized():
        return None
    world_size, job = dist.get_world_size(), None
    # Another size is refused once ranks meet.
    if isinstance(given, Mapping):
        if math.prod(given.values()) == world_size:
            job = _counted(given, dist.get_rank(), world_size)
    elif given.size() == world_size:
        job = _of_mesh(given)
    return next((axis for axis in job.axes if axis.name == name), None) if job else None


def names_in_job(mesh: DeviceMesh) -> Names:
    """By axis of a DTensor's mesh what it is called in the job; its own name where nobody knows."""
    job = present_job()
    known = None if job is None else job.of(mesh)
    return known or tuple((name,) for name in axis_names(mesh))


def placements_in_job(mesh: DeviceMesh, placements: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(axis of the job, torch's placement along it)."""
    for names, placement in zip(names_in_job(mesh), placements, strict=True):
        for name in names:
            yield name, placement


def places_in_job(mesh: DeviceMesh) -> dict[str, tuple[int, int]]:
    """By axis of the job that is in a DTensor's mesh this rank's coordinate and the size."""
    job = present_job()
    mine = {axis.name: (axis.coordinate, axis.size) for axis in job.axes} if job else {}
    own = zip(mesh.get_coordinate() or (), mesh.shape, strict=False)
    return {
        name: mine.get(name, place) if len(names) > 1 else place
        for names, place in zip(names_in_job(mesh), own, strict=False)
        for name in names
    }


def job_axes(
    model: torch.nn.Module,
    given: DeviceMesh | Mapping[str, int] | None,
    rank: int,
    world_size: int,
) -> JobAxes:
    """The job's mesh: what was given, that of the model's DTensors, or one axis of all ranks.

    An axis along which weights are cut into features, and not by FSDP2, is called `tp`, whatever
    its name was.

    Raises:
        SettingError: the mesh is not one of all ranks.
    """
    if isinstance(given, Mapping):
        job = _counted(given, rank, world_size)
    else:
        candidates = [given] if given is not None else _candidates(model, world_size)
        job = next((_of_mesh(one) for one in candidates if one.size() == world_size), None)
        if job is None and given is not None:
            raise SettingError(f"`mesh` must hold all {world_size} ranks once, got {given}.")
        job = job or _counted({"dp": world_size}, rank, world_size)
    return _with_tensor_parallel(job, _cut_into_features(model, job))


def check_axes(model: torch.nn.Module, job: JobAxes) -> None:
    """Refuse a mesh that cannot tell where the model's parameters lie.

    Raises:
        SettingError: some lie on a mesh whose axes are none of the job's.
    """
    for mesh in meshes_of(model):
        if mesh.get_coordinate() is not None and job.of(mesh) is None:
            shape = {axis.name: axis.size for axis in job.axes}
            ranks = mesh.mesh.flatten().tolist()
            own = ", ".join(axis_names(mesh))
            raise SettingError(
                f"Parameters of the model lie on a mesh of ranks {ranks} ({own}), whose axes are "
                f"none of the job's, {shape}: pass mesh=, the DeviceMesh of all ranks, or the "
                "sizes of its axes as {'pp': 2, 'dp': 4}, the last one counted first."
            )


def meshes_of(model: torch.nn.Module) -> list[DeviceMesh]:
    """The meshes that the model's DTensors lie on, each once."""
    meshes = (getattr(parameter, "device_mesh", None) for parameter in model.parameters())
    return list(dict.fromkeys(mesh for mesh in meshes if mesh is not None))


def made_by_script(module: str, name: str) -> list[Any]:
    """All objects of a class that there are, if its module was imported."""
    found = getattr(sys.modules.get(module), name, None)
    return [] if found is None else [o for o in gc.get_objects() if issubclass(type(o), found)]


def meshes_of_all_ranks(world_size: int) -> list[DeviceMesh]:
    """The meshes of all ranks that the script has made, those of more axes first."""
    made = made_by_script("torch.distributed.device_mesh", "DeviceMesh")
    return sorted((one for one in made if one.size() == world_size), key=lambda one: -one.ndim)


def _candidates(model: torch.nn.Module, world_size: int) -> list[DeviceMesh]:
    """The meshes of its DTensors; of those on some of the ranks what they are a part of."""
    meshes = meshes_of(model)
    if not meshes or any(one.size() == world_size for one in meshes):
        return meshes
    held = [one for one in meshes if one.get_coordinate() is not None]
    jobs = {one: _of_mesh(one) for one in meshes_of_all_ranks(world_size)}
    return [one for one, job in jobs.items() if job and all(map(job.of, held))]


def _with_tensor_parallel(job: JobAxes, cut: Sequence[str]) -> JobAxes:
    """The axis along which weights are cut into features gets its name, if none has it."""
    if not cut or any(axis.name == TENSOR_PARALLEL for axis in job.axes):
        return job
    axes = [
        MeshAxis(name=TENSOR_PARALLEL, size=axis.size, coordinate=axis.coordinate)
        if axis.name == cut[0]
        else axis
        for axis in job.axes
    ]
    return JobAxes(tuple(axes), job.ranks)


def _of_mesh(mesh: DeviceMesh) -> JobAxes | None:
    coordinates = mesh.get_coordinate()
    if coordinates is None:
        return None
    axes = zip(axis_names(mesh), mesh.shape, coordinates, strict=True)
    named = [MeshAxis(name=name, size=size, coordinate=place) for name, size, place in axes]
    return JobAxes(tuple(named), mesh.mesh.numpy())


def _counted(sizes: Mapping[str, int], rank: int, world_size: int) -> JobAxes:
    """Axes of those sizes, ranks counted with the last axis first."""
    shape = list(sizes.values())
    if math.prod(shape) != world_size or min(shape, default=1) < 1:
        raise SettingError(f"`mesh` must hold all {world_size} ranks once, got {dict(sizes)}.")
    places = np.unravel_index(rank, shape)
    axes = zip(sizes, shape, map(int, places), strict=True)
    named = [MeshAxis(name=name, size=size, coordinate=place) for name, size, place in axes]
    return JobAxes(tuple(named), np.arange(world_size).reshape(shape))


def _cut_into_features(model: torch.nn.Module, job: JobAxes) -> list[str]:
    """The axes along which weights are cut that no unit of FSDP2 gathers, by the job's names."""
    found = dict[str, None]()
    for module, unit in units_of(model).items():
        meshes = gathering_meshes(unit)
        gathered = {name for mesh in meshes for names in job.of(mesh) or () for name in names}
        for parameter in module.parameters(recurse=False):
            mesh: Any = getattr(parameter, "device_mesh", None)
            names = None if mesh is None else job.of(mesh)
            # Experts are cut along an axis of their own, which weights of two axes have not.
            if names is None or parameter.dim() != 2:
                continue
            placements: Any = getattr(parameter, "placements", ())
            for some, placement in zip(names, placements, strict=True):
                if placement.is_shard():
                    found |= dict.fromkeys(name for name in some if name not in gathered)
    return [name for name in found if name != PIPELINE_PARALLEL and not name.startswith(DATA_NAMES)]
