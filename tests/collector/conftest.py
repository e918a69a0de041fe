"""Ranks that say things, for the collector's tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from rankscope.merge import Layout, lay_out
from rankscope.sketch import SketchTable, sketch_array
from rankscope.sketch.table import UNSEEN
from rankscope.wire import (
    Frame,
    MeshAxis,
    PackedFrame,
    Series,
    Site,
    SiteExactCount,
    decode,
    encode_frame,
    make_schema,
    open_frame,
)


def pack(
    sites: Sequence[Site],
    table: SketchTable,
    counted: Sequence[SiteExactCount] = (),
    series: Sequence[Series] = (),
    **fields: object,
) -> PackedFrame:
    """A frame over `sites` as it comes out of the wire."""
    schema = make_schema(sites, counted, series)
    rows = np.arange(len(sites), dtype=np.uint32)
    settings = {"sequence": 0, "step": 0, "time_ns": 1, **fields}
    header, blob = encode_frame(Frame(sites=rows, table=table, **settings), schema.hash)  # pyright: ignore[reportArgumentType]
    return open_frame(decode(header, "agent"), blob, schema)


@dataclass
class Rank:
    """One rank with its place on the mesh and its sites."""

    rank: int
    mesh: Mapping[str, tuple[int, int]]
    """Size and coordinate by axis."""
    sites: Sequence[Site]
    indices: Sequence[int] = ()
    sequence: int = 0
    layout: Layout = field(init=False)

    def __post_init__(self) -> None:
        axes = [
            MeshAxis(name=name, size=size, coordinate=place)
            for name, (size, place) in self.mesh.items()
        ]
        self.layout = lay_out(self.sites, self.indices or range(len(self.sites)), axes)

    @property
    def stream(self) -> str:
        return f"stream-{self.rank}"

    def frame(
        self, step: int, *values: float | np.ndarray, sampled: Sequence[int] = (), **fields: Any
    ) -> PackedFrame:
        """One array, or number, a site; of some only a sample."""
        arrays = [np.atleast_1d(np.asarray(value, np.float32)) for value in values]
        table = SketchTable.concatenate([sketch_array(array) for array in arrays])
        table.counts[list(sampled), UNSEEN] = 1
        self.sequence += 1
        return pack(
            self.sites[: len(values)], table, step=step, sequence=self.sequence - 1, **fields
        )


@pytest.fixture
def ranks() -> Callable[[int], list[Rank]]:
    """So many ranks along `dp`, each with a sharded activation and a replicated weight."""
    sites = [
        Site(kind="activation", name="fc", placement={"dp": "shard"}),
        Site(kind="weight", name="fc"),
    ]
    return lambda count: [Rank(rank, {"dp": (count, rank)}, sites) for rank in range(count)]
