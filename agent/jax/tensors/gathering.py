"""What processes say to each other, where a mesh is given: sketches alone, never an array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from ....sketch.errors import SettingError
from ...toolkit.ranks import RankPart, packed, unpacked


def gathered_across(parts: Mapping[int, RankPart], mesh: Mesh) -> dict[int, RankPart]:
    """By id of a device: what all processes of a mesh have, the same on each of them.

    Two collectives, some 2 kB an array and device: all processes of the mesh must call it.

    Raises:
        SettingError: it is no mesh, or no device of it is this process's.
    """
    # Users without a type checker may pass anything, as the process group that torch has.
    if not isinstance(mesh, Mesh):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SettingError(
            f"`across` must be a jax.sharding.Mesh, as jax.make_mesh makes it, got {mesh!r}."
        )
    own = np.frombuffer(packed(parts), np.uint8)
    sizes = _everywhere(np.array([own.size], np.int32), mesh)
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: own.size] = own
    found = dict[int, RankPart]()
    for row, (size,) in zip(_everywhere(padded, mesh), sizes, strict=True):
        found |= unpacked(row[:size].tobytes())
    return found


def _everywhere(row: NDArray[Any], mesh: Mesh) -> NDArray[Any]:
    """[processes, …]: the rows of all processes, of one shape and dtype, by a device of each."""
    first = dict[int, Any]()
    for device in mesh.devices.flat:
        first.setdefault(device.process_index, device)
    mine = first.get(jax.process_index())
    if mine is None:
        raise SettingError(
            f"`across` must be a mesh with devices of this process, {jax.process_index()}; it has "
            f"those of {', '.join(map(str, first))}."
        )
    processes = Mesh(np.array([first[process] for process in sorted(first)]), ("process",))
    every = jax.make_array_from_single_device_arrays(
        (len(first), *row.shape),
        NamedSharding(processes, PartitionSpec("process")),
        [jax.device_put(row[None], mine)],
    )
    whole = jax.jit(jnp.copy, out_shardings=NamedSharding(processes, PartitionSpec()))(every)
    return np.asarray(whole.addressable_data(0))
