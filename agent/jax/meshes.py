"""Devices as ranks: where each stands on the mesh, and which part of an array it holds.

JAX runs one program over all devices. Each device is a rank here, numbered by its place in the
mesh, as a process is where every device has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding

from ...sketch.elements import Region
from ...sketch.errors import SettingError
from ...sketch.regions import piece_of
from ...wire.messages import MeshAxis, Placement
from ..strides import regions_of


class Device(Protocol):
    """What we need of a `jax.Device`, which has no type."""

    @property
    def id(self) -> int: ...
    @property
    def process_index(self) -> int: ...


Bounds = tuple[tuple[int, int], ...]
"""By axis of the array: where a piece begins and ends."""
ALONE = "dp"
"""The one axis of a job whose arrays lie on no mesh."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The devices of a job, in the order of their ranks."""

    devices: tuple[Device, ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    """Of the mesh axes; the last one counts first."""

    @classmethod
    def of(cls, mesh: Mesh, axes: Mapping[str, str]) -> Ranks:
        """The devices of a mesh.

        Args:
            axes: what mesh axes are called in the run, where that is not their own name.
        """
        names = tuple(str(axes.get(str(name), name)) for name in mesh.axis_names)
        return cls(tuple(mesh.devices.flat), names, tuple(mesh.devices.shape))

    @classmethod
    def seen(cls, arrays: Iterable[jax.Array], axes: Mapping[str, str]) -> Ranks:
        """Those of the largest mesh that arrays lie on, else the devices that they lie on."""
        shardings = {array.sharding for array in arrays}
        meshes = {one.mesh for one in shardings if isinstance(one, NamedSharding)}
        found = [mesh for mesh in meshes if isinstance(mesh, Mesh)]
        if found:
            return cls.of(max(found, key=lambda mesh: mesh.size), axes)
        devices = {device for one in shardings for device in one.device_set} or jax.devices()[:1]
        by_number = sorted(devices, key=lambda device: device.id)
        return cls(tuple(by_number), (ALONE,), (len(by_number),))

    def local(self) -> list[tuple[int, Device]]:
        """(rank, device) of this process's own."""
        mine = jax.process_index()
        pairs = enumerate(self.devices)
        return [(rank, device) for rank, device in pairs if device.process_index == mine]

    def mesh_of(self, rank: int) -> list[MeshAxis]:
        """The mesh, and where a rank stands on it."""
        places = np.unravel_index(rank, self.sizes)
        triples = zip(self.names, self.sizes, places, strict=True)
        return [MeshAxis(name=name, size=size, coordinate=int(at)) for name, size, at in triples]


@dataclass(frozen=True, slots=True)
class Spread:
    """How an array lies on the devices of a job."""

    placement: dict[str, Placement]
    """By mesh axis."""
    cuts: list[tuple[str, int]]
    """As in `wire.messages.Site`: mesh axes and axes of the array, in the order of cutting."""
    piece: tuple[int, ...]
    """The shape of what a device holds."""
    held: dict[Device, Bounds]
    """What each device holds."""
    regions: dict[Device, Sequence[Region | None]]
    """Where equal parts of that lie in the whole; of all of it None alone."""


@dataclass(slots=True)
class Spreads:
    """Those of the arrays of a job, each found once."""

    ranks: Ranks
    _known: dict[tuple[Sharding, tuple[int, ...]], Spread] = field(
        default_factory=dict[tuple[Sharding, tuple[int, ...]], Spread]
    )

    def of(self, sharding: Sharding, shape: tuple[int, ...]) -> Spread:
        """From where each device's piece begins and ends, whatever made the sharding."""
        found = self._known.get((sharding, shape))
        if found is None:
            found = self._known[sharding, shape] = _spread(self.ranks, sharding, shape)
        return found


def spread_of_parts(axes: Iterable[str], piece: tuple[int, ...]) -> Spread:
    """Where devices along these axes hold parts of that shape, and nobody knows of which whole."""
    return Spread(dict.fromkeys(axes, "shard"), [], piece, {}, {})


def wholes_of(spread: Spread) -> Spread:
    """The same where what each device holds is a whole of its own."""
    held = dict.fromkeys(spread.held, _whole(spread.piece))
    regions = {device: regions_in(bounds, spread.piece) for device, bounds in held.items()}
    return Spread({}, [], spread.piece, held, regions)


def check_axes(mesh: Mesh | None, axes: Mapping[str, str]) -> None:
    """Refuse what is no mesh, and names of axes that it has not, or that would be the same.

    Raises:
        SettingError: so it is.
    """
    # Users without a type checker may pass anything, as the sizes that the agent for torch takes.
    if not isinstance(mesh, Mesh | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SettingError(
            f"`mesh` must be a jax.sharding.Mesh, as jax.make_mesh makes it, got {mesh!r}."
        )
    for name, new in axes.items():
        if mesh is not None and name not in mesh.axis_names:
            known = ", ".join(map(str, mesh.axis_names))
            raise SettingError(f"`axes` names mesh axis {name!r}; the mesh has {known}.")
        if list(axes.values()).count(new) > 1:
            raise SettingError(f"`axes` calls several mesh axes {new!r}; names must differ.")


def _spread(ranks: Ranks, sharding: Sharding, shape: tuple[int, ...]) -> Spread:
    held = {
        device: bounds_of(index, shape)
        for device, index in sharding.devices_indices_map(shape).items()
    }
    whole = all(bounds == _whole(shape) for bounds in held.values())
    placement, steps = dict[str, Placement](), list[tuple[int, int, str]]()
    for number, name in enumerate(ranks.names):
        along = {} if whole else _cut_along(ranks, number, held)
        if along:
            placement[name] = "shard"
            steps += [(dim, -step, name) for dim, step in along.items()]
    cuts = [(name, dim) for dim, _, name in sorted(steps)]
    regions = {device: regions_in(bounds, shape) for device, bounds in held.items()}
    follows = _follows(ranks, cuts, held, shape)
    piece = sharding.shard_shape(shape)
    return Spread(placement, cuts if follows else [], piece, held, regions)


def bounds_of(index: Sequence[slice], shape: Sequence[int]) -> Bounds:
    """Where a piece lies in a whole of that shape."""
    cut = [piece.indices(size)[:2] for piece, size in zip(index, shape, strict=True)]
    return tuple(cut)


def _whole(shape: Sequence[int]) -> Bounds:
    return tuple((0, size) for size in shape)


def _cut_along(ranks: Ranks, number: int, held: Mapping[Device, Bounds]) -> dict[int, int]:
    """By axis of the array how far neighbours along a mesh axis are apart in it, where they are."""
    apart = dict[int, int]()
    devices = np.empty(ranks.sizes, object)
    devices.flat[:] = ranks.devices
    first, second = (devices.take([place], axis=number).flat for place in (0, -1))
    for one, other in zip(first, second, strict=True) if ranks.sizes[number] > 1 else ():
        if one in held and other in held:
            for dim, (here, there) in enumerate(zip(held[one], held[other], strict=True)):
                if here != there:
                    apart[dim] = max(apart.get(dim, 0), abs(there[0] - here[0]))
    return apart


def _follows(
    ranks: Ranks,
    cuts: Sequence[tuple[str, int]],
    held: Mapping[Device, Bounds],
    shape: Sequence[int],
) -> bool:
    """Whether the pieces are what `sketch.regions` makes of the cuts."""
    for rank, device in enumerate(ranks.devices):
        at = {axis.name: (axis.coordinate, axis.size) for axis in ranks.mesh_of(rank)}
        if device in held:
            offset, sizes = piece_of(shape, cuts, at)
            mine = tuple((start, start + size) for start, size in zip(offset, sizes, strict=True))
            if mine != held[device]:
                return False
    return True


def regions_in(bounds: Bounds, shape: Sequence[int]) -> Sequence[Region | None]:
    """Where equal parts of a piece lie in a whole of that shape; of the whole None alone."""
    if bounds == _whole(shape):
        return [None]
    sizes, offsets = [end - start for start, end in bounds], [start for start, _ in bounds]
    return regions_of(sizes, offsets, shape)
