"""Sketches that the step's own program makes, or one beside it where the step's cannot.

A program knows how its arrays lie on the devices if there is one device, or if the mesh has
explicit axes. Of all other arrays that are handed over a second program makes the sketches, once
they are there and it is known where.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh

from .engine import sketch
from .pieces import Piece
from .shards import per_device
from .telemetry import NamedSite, SketchedSite

Handed = Sequence[tuple[NamedSite, jax.Array]]


def is_placed(leaf: jax.Array) -> bool:
    """Whether it is known, while the program is made, where an array lies."""
    mesh = _mesh_of(leaf)
    if mesh is None:
        return jax.device_count() == 1
    return set(mesh.axis_types) == {AxisType.Explicit}


def sketch_all(
    handed: Handed,
) -> tuple[tuple[tuple[SketchedSite, ...], ...], tuple[jax.Array, ...]]:
    """Sketches of arrays that are placed, those on one mesh in one array; and what they are of."""
    meshes = list(dict.fromkeys(_mesh_of(leaf) for _, leaf in handed))
    groups = [[one for one in handed if _mesh_of(one[1]) == mesh] for mesh in meshes]
    described = tuple(tuple(_described(site, leaf) for site, leaf in group) for group in groups)
    return described, tuple(_rows(group) for group in groups)


@partial(jax.jit, static_argnums=2)
def sketch_pieces(
    pieces: Sequence[jax.Array],
    offsets: Sequence[Sequence[jax.Array]],
    wholes: tuple[tuple[int, ...], ...],
) -> jax.Array:
    """uint32 [pieces, WORDS]: what one device holds of arrays, in a program of its own.

    Args:
        offsets: by piece and axis, where it begins in the whole.
        wholes: by piece, the shape of that.
    """
    triples = zip(pieces, offsets, wholes, strict=True)
    return jnp.stack([sketch(x, piece=Piece(tuple(begin), whole)) for x, begin, whole in triples])


def _mesh_of(leaf: jax.Array) -> Mesh | AbstractMesh | None:
    """The mesh that the type of an array names, if it names one."""
    mesh = jax.typeof(leaf).sharding.mesh
    return None if mesh.empty else mesh


def _described(site: NamedSite, leaf: jax.Array) -> SketchedSite:
    spec = None if _mesh_of(leaf) is None else jax.typeof(leaf).sharding.spec
    return SketchedSite(site=site, dtype=leaf.dtype.name, shape=leaf.shape, spec=spec)


def _rows(group: Handed) -> jax.Array:
    """Of arrays that lie on the same mesh."""
    on_mesh = _mesh_of(group[0][1]) is not None
    return jnp.stack([per_device(x) if on_mesh else sketch(x) for _, x in group], axis=-2)
