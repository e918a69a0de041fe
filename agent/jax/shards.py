"""Sketches of an array on several devices: of each device's shard, where it lies.

Nothing is gathered, and no collective is added: a row stays on the device whose shard it is of.
"""

from __future__ import annotations

import jax
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .engine import sketch
from .pieces import Piece


def per_device(x: jax.Array, sharding: NamedSharding | None = None) -> jax.Array:
    """The sketch of each device's shard of `x`: pieces of the whole, or copies.

    Args:
        x: as of `sketch`.
        sharding: how `x` is sharded: if it is not, XLA makes it so first. Without one it is taken
            from the type of `x`, which has it where the axes of the mesh are explicit.

    Returns:
        uint32 [*sizes of the mesh's axes, WORDS], sharded along all of them.

    Raises:
        ValueError: the sharding is not given, and not known.
    """
    mesh, spec = _placed(x, sharding)
    names = mesh.axis_names
    cuts = [names_of(entry) for entry in (*spec, *[None] * (x.ndim - len(spec)))]

    def of_shard(shard: jax.Array) -> jax.Array:
        places = (lax.axis_index(cut) if cut else 0 for cut in cuts)
        offsets = tuple(at * size for at, size in zip(places, shard.shape, strict=True))
        row = sketch(shard, piece=Piece(offsets, x.shape))
        return row.reshape(*[1] * len(names), -1)

    over = PartitionSpec(*names)
    mapped = jax.shard_map(
        of_shard, mesh=mesh, in_specs=spec, out_specs=over, axis_names=set(names), check_vma=False
    )
    return mapped(x)


def _placed(
    x: jax.Array, sharding: NamedSharding | None
) -> tuple[Mesh | AbstractMesh, PartitionSpec]:
    placed = jax.typeof(x).sharding if sharding is None else sharding
    mesh, spec = placed.mesh, placed.spec
    known = sharding is not None or set(mesh.axis_types) == {jax.sharding.AxisType.Explicit}
    if mesh.empty or not known:
        raise ValueError(
            f"The sharding of an array of shape {x.shape} is not known in a compiled function whose"
            " mesh has automatic axes: pass its NamedSharding."
        )
    return mesh, spec


def names_of(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The axes of the mesh along which an axis of the array is cut, the outermost first."""
    return (entry,) if isinstance(entry, str) else tuple(entry or ())
