"""Sketches that the step's own program makes, or one beside it where the step's cannot.

A program knows how its arrays lie on the devices if there is one device, or if the mesh has
explicit axes. Of all other arrays that are handed over a second program makes the sketches, once
they are there and it is known where.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh

from .collecting import Taps, TapSite
from .engine import sketch
from .pieces import Piece
from .rows import merge_all
from .shards import per_device
from .telemetry import NamedSite, SketchedSite


@dataclass(frozen=True, slots=True)
class Made:
    """Sketches that the program makes, with nothing else between them."""

    sites: list[SketchedSite]
    rows: jax.Array
    """uint32 [*sizes of the mesh's axes, sites, WORDS]"""


def is_placed(leaf: jax.Array) -> bool:
    """Whether it is known, while the program is made, where an array lies."""
    mesh = _mesh_of(leaf)
    if mesh is None:
        return jax.device_count() == 1
    return set(mesh.axis_types) == {AxisType.Explicit}


def made_of(site: NamedSite, leaf: jax.Array) -> Made:
    """The sketch of an array that is placed."""
    mesh, dtype = _mesh_of(leaf), leaf.dtype.name
    if mesh is None:
        return Made([SketchedSite(site=site, dtype=dtype, shape=leaf.shape)], sketch(leaf)[None])
    axes, spec = mesh.axis_names, jax.typeof(leaf).sharding.spec
    one = SketchedSite(site=site, dtype=dtype, shape=leaf.shape, axes=axes, spec=spec)
    return Made([one], per_device(leaf)[..., None, :])


def made_of_taps(
    taps: Taps, wanted: Callable[[NamedSite], bool], *, after: Iterable[NamedSite] = ()
) -> list[Made]:
    """Those of taps that are wanted; iterations of a scan are calls of their own.

    What was collected under `vmap` has a row an example: they are merged.

    Args:
        after: sites of other sketches; taps of the same name are further occurrences.
    """
    calls = Counter((site.kind, site.name, site.slot) for site in after)
    made = list[Made]()
    for one, rows in zip(taps.sites, taps.rows, strict=True):
        key, count = (one.kind, one.name, one.slot), math.prod(one.stacked)
        numbers = range(calls[key], calls[key] + count)
        calls[key] += count
        sites = [
            NamedSite(
                kind=one.kind, name=one.name, slot=one.slot, occurrence=number, module=one.module
            )
            for number in numbers
        ]
        if sites and wanted(sites[0]):
            examples = rows.ndim - len(one.axes) - len(one.stacked) - 1
            rows = merge_all(rows, examples) if examples else rows
            lead = rows.shape[: len(one.axes)]
            made.append(
                Made([_of_tap(one, site) for site in sites], rows.reshape(*lead, count, -1))
            )
    return made


def packed(made: Sequence[Made]) -> dict[tuple[SketchedSite, ...], jax.Array]:
    """In few arrays: those that lie along the same axes of the mesh together."""
    along = dict[tuple[str, ...], list[Made]]()
    for one in made:
        along.setdefault(one.sites[0].axes, []).append(one)
    return {
        tuple(site for one in some for site in one.sites): jnp.concatenate(
            [one.rows for one in some], axis=-2
        )
        for some in along.values()
    }


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


def _of_tap(one: TapSite, site: NamedSite) -> SketchedSite:
    return SketchedSite(
        site=site,
        dtype=one.dtype,
        shape=one.shape,
        axes=one.axes,
        spec=one.spec,
        varies=tuple(sorted(one.varies)),
    )
