"""Sketches of several ranks into those of the whole: the collector's merge, by placement."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from io import BytesIO
from typing import Any

import msgspec
import numpy as np

from ...merge.merging import merge_contributions
from ...merge.placement import Layout, lay_out
from ...merge.plan import Contribution
from ...sketch.labels import rank_words
from ...sketch.table import SketchTable
from ...wire.codec import Frame, PackedFrame, make_schema, open_frame, pack_frame
from ...wire.messages import MeshAxis, Placement, Site
from ..selection import RankscopeWarning
from .sketches import Sketches

COLUMNS = tuple(field.name for field in fields(SketchTable))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """How what a rank holds of one tensor relates to the whole."""

    placement: Mapping[str, Placement]
    """By mesh axis; along those that are not named it is a copy."""
    mesh: tuple[MeshAxis, ...]
    """And where the rank stands on it."""
    shape: tuple[int, ...]
    """Of the whole, where it is known; else of what the rank holds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankPart:
    """What one rank says of its tensors."""

    sketches: Sketches
    held: tuple[Held, ...]
    """One a sketch."""


def merge_ranks(parts: Mapping[int, RankPart]) -> Sketches:
    """The sketches of whole tensors: copies count once, parts are united, of addends sums are left.

    Tensors are in the order in which the lowest rank has them, then the next. Where copies differ
    the lowest rank's counts, and a `RankscopeWarning` says so.

    Args:
        parts: by rank.
    """
    shapes, dtypes = dict[str, tuple[int, ...]](), dict[str, str]()
    for _, part in sorted(parts.items()):
        own = part.sketches
        for name, held, dtype in zip(own.names, part.held, own.dtypes, strict=True):
            shapes.setdefault(name, held.shape)
            dtypes.setdefault(name, dtype)
    index = {name: place for place, name in enumerate(shapes)}
    if not index:
        return Sketches(names=(), table=SketchTable.empty(0))
    merged = merge_contributions({rank: _contribution(part, index) for rank, part in parts.items()})
    names = tuple(shapes)
    for found in merged.divergences:
        warnings.warn(
            f"{names[found.site]} should be the same on {rank_words(found.ranks)} and is not; "
            f"what rank {found.ranks[0]} holds is taken.",
            RankscopeWarning,
            stacklevel=4,
        )
    return Sketches(
        names=names,
        table=merged.table,
        shapes=tuple(shapes.values()),
        dtypes=tuple(dtypes.values()),
    )


def _contribution(part: RankPart, index: Mapping[str, int]) -> Contribution:
    names = part.sketches.names
    sites = [
        Site(kind="tap", name=name, placement=dict(held.placement))
        for name, held in zip(names, part.held, strict=True)
    ]
    # Each is laid out on its own mesh: all ranks that hold some of it are on the same.
    layouts = [
        lay_out([], [], ()),  # a rank may hold nothing
        *(
            lay_out([site], [index[site.name]], held.mesh)
            for site, held in zip(sites, part.held, strict=True)
        ),
    ]
    site, cell, piece, partial = (
        np.concatenate([getattr(one, column) for one in layouts])
        for column in ("site", "cell", "piece", "partial")
    )
    layout = Layout(site.astype(np.intp), cell, piece, partial.astype(np.bool_))
    return Contribution(_frame(sites, part.sketches.table), layout)


def _frame(sites: Sequence[Site], table: SketchTable) -> PackedFrame:
    schema = make_schema(sites)
    rows = np.arange(len(sites), dtype=np.uint32)
    header, blob = pack_frame(Frame(step=0, time_ns=0, sites=rows, table=table), schema.hash)
    return open_frame(header, blob, schema)


def packed(parts: Mapping[int, RankPart]) -> bytes:
    """What ranks say as bytes, for `unpacked`: NumPy's file format, without objects."""
    file, arrays = BytesIO(), dict[str, Any]()
    for rank, part in parts.items():
        said = _Said(
            part.sketches.names,
            part.sketches.dtypes,
            tuple((dict(one.placement), one.mesh, one.shape) for one in part.held),
        )
        arrays[f"{rank} said"] = np.frombuffer(msgspec.msgpack.encode(said), np.uint8)
        for column in COLUMNS:
            arrays[f"{rank} {column}"] = getattr(part.sketches.table, column)
    np.savez(file, **arrays)
    return file.getvalue()


def unpacked(data: bytes) -> dict[int, RankPart]:
    """By rank: what `packed` was given; shapes are those of `Held`."""
    found = dict[int, RankPart]()
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        for rank in sorted({int(key.split()[0]) for key in arrays}):
            said = msgspec.msgpack.decode(arrays[f"{rank} said"].tobytes(), type=_Said)
            table = SketchTable(*(arrays[f"{rank} {column}"] for column in COLUMNS))
            found[rank] = RankPart(
                sketches=Sketches(names=said.names, table=table, dtypes=said.dtypes),
                held=tuple(
                    Held(placement=placement, mesh=mesh, shape=shape)
                    for placement, mesh, shape in said.held
                ),
            )
    return found


class _Said(msgspec.Struct, array_like=True):
    """What is said of a rank's sketches beside their numbers."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    held: tuple[tuple[dict[str, Placement], tuple[MeshAxis, ...], tuple[int, ...]], ...]
