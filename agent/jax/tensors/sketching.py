"""Sketches of the shards that this process has, by the agent's kernels, before the return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ....sketch.reference import sketch_array
from ....wire.messages import MeshAxis
from ...toolkit.ranks import Held, RankPart
from ...toolkit.sketches import Sketches
from ..host import HostBatch, Piece
from ..meshes import Bounds, Device, bounds_of, regions_in

PIECES = "piece"
"""The axis along which the different parts of an array are counted; what two devices have alike is
a copy along every other."""


def sketch_shards(arrays: Mapping[str, jax.Array]) -> dict[int, RankPart]:
    """By id of a device of this process: the sketches of the shards on it.

    What lies on accelerators is sketched there. Integers and booleans are read as float64 on the
    host, of complex numbers the parts.
    """
    devices = _devices(arrays)
    places = {device: place for place, device in enumerate(devices)}
    batch = HostBatch(0, len(devices), len(arrays))
    host, accelerators = list[Piece](), list[Piece]()
    held: list[list[int]] = [[] for _ in devices]
    told = [_held(array) for array in arrays.values()]
    for row, array in enumerate(arrays.values()):
        is_float = jnp.issubdtype(array.dtype, jnp.floating)
        for shard in array.addressable_shards:
            place, bounds = places[shard.device], bounds_of(shard.index, array.shape)
            held[place].append(row)
            if not is_float:
                batch.add([place * len(arrays) + row], sketch_array(on_host(shard.data)))
                continue
            pieces = host if shard.device.platform == "cpu" else accelerators
            pieces.append(
                Piece(
                    place=place,
                    row=row,
                    array=shard.data,
                    bounds=bounds,
                    regions=regions_in(bounds, array.shape),
                    whole=array.shape,
                )
            )
    batch.read(host)
    batch.read_on_devices(accelerators)
    names, dtypes = tuple(arrays), tuple(array.dtype.name for array in arrays.values())
    return {
        device.id: RankPart(
            sketches=Sketches(
                names=tuple(names[row] for row in rows),
                table=step.table.take(rows),
                dtypes=tuple(dtypes[row] for row in rows),
            ),
            held=tuple(told[row][device] for row in rows),
        )
        for device, rows, step in zip(devices, held, batch.steps(), strict=True)
    }


def on_host(array: jax.Array) -> NDArray[Any]:
    """The elements as NumPy has them: of what is no float as float64, of complex ones the parts."""
    elements = np.asarray(array)
    if np.iscomplexobj(elements):
        return np.stack([np.real(elements), np.imag(elements)], axis=-1)
    is_float = jnp.issubdtype(elements.dtype, jnp.floating)
    return elements if is_float else elements.astype(np.float64)


def _devices(arrays: Mapping[str, jax.Array]) -> list[Device]:
    found = {shard.device for array in arrays.values() for shard in array.addressable_shards}
    return sorted(found, key=lambda device: device.id)


def _held(array: jax.Array) -> dict[Device, Held]:
    """By device of the job: which of the different parts of an array it has."""
    indices = array.sharding.devices_indices_map(array.shape)
    cells = dict[Bounds, int]()
    for device in sorted(indices, key=lambda device: device.id):
        cells.setdefault(bounds_of(indices[device], array.shape), len(cells))
    return {
        device: Held(
            placement={PIECES: "shard"},
            mesh=(
                MeshAxis(
                    name=PIECES,
                    size=len(cells),
                    coordinate=cells[bounds_of(index, array.shape)],
                ),
            ),
            shape=array.shape,
        )
        for device, index in indices.items()
    }
