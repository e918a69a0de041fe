"""Sketches that the step's own program makes, or one beside it where the step's cannot.

A program knows how its arrays lie on the devices if there is one device, or if the mesh has
explicit axes. Of all other arrays that are handed over a second program makes the sketches, once
they are there and it is known where.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh

from ..modes import ALL
from .collecting import Taps, TapSite
from .engine import sketch
from .pieces import Piece
from .printouts import PrintedSite
from .rows import merge_all
from .running import When, begins_of, whens_of
from .shards import per_device
from .telemetry import NamedSite, SketchedSite
from .walking import not_added_up, sketched


@dataclass(frozen=True, slots=True)
class Made:
    """Sketches that the program makes, with nothing else between them."""

    sites: list[SketchedSite]
    rows: jax.Array
    """uint32 [*sizes of the mesh's axes, sites, WORDS]"""
    whens: Sequence[When] = ()
    """By site, when it runs; of taps alone."""


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

    What was collected under `vmap` or in a scan has a row an example or micro-batch: they are
    merged. What has another mode than `all` is one site, of which it says what is taken.

    Args:
        after: sites of other sketches; taps of the same name are further occurrences.

    Raises:
        SettingError: a sum is asked for that cannot be had.
    """
    calls = Counter((site.kind, site.name, site.slot) for site in after)
    made, begins = list[Made](), begins_of(taps.sites)
    for one, rows in zip(taps.sites, taps.rows, strict=True):
        if one.printed is not None:
            continue
        key = one.kind, one.name, one.slot
        count = math.prod(one.stacked) if one.mode == ALL else 1
        numbers = range(calls[key], calls[key] + count)
        calls[key] += count
        sites = [
            NamedSite(
                kind=one.kind, name=one.name, slot=one.slot, occurrence=number, module=one.module
            )
            for number in numbers
        ]
        if sites and wanted(sites[0]):
            of, taken = _summed(one, rows) if one.is_sum else (one, _taken(one, rows))
            if taken is not None:
                found = [_of_tap(of, site) for site in sites]
                made.append(Made(found, taken, whens_of(one, begins)))
    return made


def as_they_run(made: Iterable[Made]) -> list[NamedSite]:
    """The sites of taps in the order in which they run."""
    pairs = [pair for one in made for pair in zip(one.whens, one.sites, strict=False)]
    return [found.site for _, found in sorted(pairs, key=lambda pair: pair[0])]


def _taken(one: TapSite, rows: jax.Array) -> jax.Array | None:
    """uint32 [*sizes of the mesh's axes, sites, WORDS]: what its mode takes; None: of no call."""
    if one.mode == ALL:
        around = rows.ndim - len(one.axes) - len(one.stacked) - 1
        rows = merge_all(rows, around) if around else rows
        return rows.reshape(*rows.shape[: len(one.axes)], math.prod(one.stacked), rows.shape[-1])
    chosen = _chosen_calls(one, rows)
    return merge_all(chosen, 1)[..., None, :] if len(chosen) else None


def _chosen_calls(one: TapSite, rows: jax.Array) -> jax.Array:
    """[calls, *sizes of the mesh's axes, ...]: those that its mode takes, in their order."""
    around = rows.ndim - len(one.axes) - len(one.stacked) - 1
    if one.mode.name == "sum" and around:
        raise not_added_up(one.name)
    lead, width = rows.shape[around : around + len(one.axes)], rows.shape[-1]
    rows = rows.reshape(math.prod(rows.shape[:around]), *lead, math.prod(one.stacked), width)
    by_call = jnp.moveaxis(rows, -2, 1).reshape(-1, *lead, width)
    if one.mode == ALL:
        return by_call
    period = one.mode.period
    return by_call[period - 1 :: period] if one.mode.name == "every" else by_call[-1:]


def _summed(one: TapSite, arrays: jax.Array) -> tuple[TapSite, jax.Array]:
    """The same of the sum of its calls' arrays, and how that lies on the mesh."""
    around = range(arrays.ndim - len(one.shape))
    rows, axes, varies, spec = sketched(arrays.sum(tuple(around)), one.sharding)
    return replace(one, axes=axes, varies=varies, spec=spec), rows[..., None, :]


def prints_of(taps: Taps) -> list[tuple[PrintedSite, jax.Array]]:
    """What of taps is to be printed: rows [calls, *sizes of the mesh's axes, elements + 1].

    Raises:
        SettingError: a sum is asked for that cannot be had.
    """
    found, times = list[tuple[PrintedSite, jax.Array]](), Counter[str]()
    for one, rows in zip(taps.sites, taps.rows, strict=True):
        if one.printed is None:
            continue
        number = times[f"{one.name} {one.slot}"]
        times[f"{one.name} {one.slot}"] += 1
        site = PrintedSite(
            title=f"{one.name}{f'#{number}' if number else ''} {one.slot}".rstrip(),
            shape=one.shape,
            dtype=one.dtype,
            how=one.printed,
            axes=one.axes,
            varies=one.varies,
        )
        if one.is_sum:
            around = range(rows.ndim - len(one.axes) - 1)
            found.append((site, rows.sum(tuple(around))[None]))
        elif len(chosen := _chosen_calls(one, rows)):
            found.append((site, chosen))
    return found


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
