"""Which ranks should have equal numbers at a site: those that hold the same part of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..sketch.mesh_axes import MODEL_AXES
from ..sketch.table import Ints
from .record import RankInfo, SiteInfo
from .state import Attempt

OF_SAMPLES = (
    "input",
    "activation",
    "local_activation",
    "activation_gradient",
    "input_gradient",
    "local_input_gradient",
    "local_weight_gradient",
    "tap",
)
"""Kinds that a rank makes of its own samples, which are alike, if not equal, on all ranks."""


def splitting_axes(site: SiteInfo, attempt: Attempt) -> list[str]:
    """The mesh axes along which ranks hold other parts of a site, or other addends of it."""
    axes = [axis for axis, placed in site.placement.items() if placed in ("shard", "partial")]
    if site.kind in OF_SAMPLES:
        axes = [axis for axis in axes if axis in MODEL_AXES]
    return [axis for axis in axes if attempt.mesh.get(axis, 1) > 1]


def peers(site: SiteInfo, attempt: Attempt, ranks: int) -> Ints:
    """int64 [ranks]: the group that each rank of an attempt is in; -1 for one that never came."""
    axes, groups = splitting_axes(site, attempt), dict[tuple[int, ...], int]()
    found = np.full(ranks, -1, np.int64)
    for one in attempt.ranks:
        if one.rank < ranks:
            place = tuple(one.coordinates.get(axis, 0) for axis in axes)
            found[one.rank] = groups.setdefault(place, len(groups))
    return found


def by_mesh(attempt: Attempt, ranks: int) -> list[tuple[int, str]]:
    """The ranks of an attempt in the order of their coordinates, each with its name.

    As "dp=0,tp=1": the axes as the mesh has them, those of one rank left out; "rank 3" where a
    rank's place is not known, or not its own.
    """
    axes = [axis for axis, size in attempt.mesh.items() if size > 1]
    known = {one.rank: one for one in attempt.ranks if one.rank < ranks}
    count = max(attempt.world_size, max(known, default=-1) + 1)
    rows = [(*_place(known.get(rank), axes), rank) for rank in range(min(count, ranks))]
    rows.sort()
    names = [_name(known.get(rank), axes) for *_, rank in rows]
    return [
        (int(row[-1]), name if name and names.count(name) == 1 else f"rank {row[-1]}")
        for row, name in zip(rows, names, strict=True)
    ]


def _place(rank: RankInfo | None, axes: Sequence[str]) -> tuple[int, ...]:
    """Those of unknown place come last."""
    last = np.iinfo(np.int64).max
    return tuple(last if rank is None else rank.coordinates.get(axis, last) for axis in axes)


def _name(rank: RankInfo | None, axes: Sequence[str]) -> str:
    if rank is None or any(axis not in rank.coordinates for axis in axes):
        return ""
    return ",".join(f"{axis}={rank.coordinates[axis]}" for axis in axes)
