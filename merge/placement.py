"""Where a rank's sketches belong: the cell of each of its sites on the device mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..sketch.matrices import Form, Merge
from ..sketch.mesh_axes import TENSOR_PARALLEL
from ..sketch.spectra import Statistic
from ..wire.messages import MeshAxis, Schema, Site


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The sites of one rank's schema, as the whole run knows them.

    Two ranks hold copies of a site's sketch if their cells are equal, and disjoint parts of the
    whole, or addends, if they differ.
    """

    site: NDArray[np.intp]
    """intp [sites]: index into the run's sites."""
    cell: NDArray[np.int64]
    """int64 [sites]: coordinates on the axes where the site is not replicated, as one number."""
    piece: NDArray[np.int64]
    """int64 [sites]: the same over the axes where it is sharded; differs from `cell` by addends."""
    partial: NDArray[np.bool_]
    """bool [sites]: whether the rank holds an addend of what is not reduced yet."""
    exact_counts: Sequence[CountedAt] = ()
    """Of the schema's exact counts, in order."""
    series: Sequence[DerivedAt] = ()
    """Of the schema's series, in order."""
    groups: Sequence[str] = ()
    """Names of the groups of ranks that the rank is in, see `groups_of`."""
    peers: int = 0
    """The coordinate on the mesh axis `tp`: ranks that share it hold the same part of a layer."""
    schema: Schema | None = None
    """Of which it is the layout, for who keeps frames as they came."""


@dataclass(frozen=True, slots=True)
class CountedAt:
    """One exact count of a rank's schema, as the whole run knows it."""

    site: int
    """Index into the schema's sites."""
    index: int | None
    """Index into the run's exact counts; None where the run has no room for it."""
    shape: tuple[int, ...]
    """Of its counts."""


@dataclass(frozen=True, slots=True)
class DerivedAt:
    """One series of a rank's schema, as the whole run knows it."""

    form: Form
    size: int
    merge: Merge
    cell: int
    """Ranks with equal ones hold copies; with others different samples."""
    readings: tuple[ReadingAt, ...]
    """Ranks whose readings are the same hold parts of one array."""


@dataclass(frozen=True, slots=True)
class ReadingAt:
    """One quantity that is read off a series."""

    statistic: Statistic
    bound: float
    index: int
    """Into the run's quantities."""


def lay_out(
    sites: Sequence[Site],
    indices: Sequence[int],
    mesh: Sequence[MeshAxis],
    exact_counts: Sequence[CountedAt] = (),
    groups: Sequence[str] = (),
    series: Sequence[DerivedAt] = (),
) -> Layout:
    """The layout of a rank that stands at the coordinates in `mesh`.

    Args:
        sites: those of the rank's schema.
        indices: of the same sites within the run.
        mesh: all axes; a site is replicated along those that its placement does not name.
        exact_counts: those of the rank's schema.
        groups: those that the rank is in.
        series: those of the rank's schema.
    """
    weights = _weights(mesh)
    cell = [_number(site.placement, weights, ("shard", "partial")) for site in sites]
    piece = [_number(site.placement, weights, ("shard",)) for site in sites]
    addend = [_number(site.placement, weights, ("partial",)) for site in sites]
    return Layout(
        np.asarray(indices, np.intp),
        np.asarray(cell, np.int64),
        np.asarray(piece, np.int64),
        np.asarray(addend, np.int64) > 0,
        exact_counts,
        series,
        groups,
        next((axis.coordinate for axis in mesh if axis.name == TENSOR_PARALLEL), 0),
    )


def cell_of(axes: Mapping[str, str], mesh: Sequence[MeshAxis]) -> int:
    """The cell of a series on a rank: its coordinates on the axes along which ranks merge."""
    return _number(axes, _weights(mesh), ("merge",))


def part_of(axes: Mapping[str, str], mesh: Sequence[MeshAxis]) -> str:
    """Which ranks a series is of, as `tp=1`: coordinates on the axes where each has its own."""
    own = [axis for axis in mesh if axis.size > 1 and axes.get(axis.name) == "own"]
    return ",".join(f"{axis.name}={axis.coordinate}" for axis in own)


def groups_of(mesh: Sequence[MeshAxis], host: str) -> list[str]:
    """The groups of ranks that a rank is in: all with its coordinates on some axes, or its host.

    As `dp=0`, `tp=1`, `dp=0,tp=1`, and `host=node-3`; each name once, and of up to two axes.
    """
    axes = [axis for axis in mesh if axis.size > 1]
    names = [
        ",".join(f"{axis.name}={axis.coordinate}" for axis in some)
        for number in (1, 2)
        if number < len(axes)
        for some in combinations(axes, number)
    ]
    return list(dict.fromkeys([*names, f"host={host}"] if host else names))


def _weights(mesh: Sequence[MeshAxis]) -> dict[str, int]:
    """What a rank's coordinate adds to the number of its cell, by axis; at least 1 an axis."""
    radix, weights = 1, dict[str, int]()
    for axis in sorted(mesh, key=lambda axis: axis.name):
        if axis.size > 1:
            weights[axis.name] = (axis.coordinate + 1) * radix
            radix *= axis.size + 1
    return weights


def _number(
    placement: Mapping[str, str], weights: Mapping[str, int], kinds: tuple[str, ...]
) -> int:
    return sum(weights.get(axis, 0) for axis, placed in placement.items() if placed in kinds)
