"""Exact columns as seen along a choice of ranks: all, one, or those at coordinates of the mesh.

Those of all ranks are arrays of the store. Those of fewer are merged here, by the same merge, from
the frames of single ranks, where these are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..merge.merging import merge_tables
from ..merge.placement import Layout, lay_out
from ..merge.plan import Contribution, Plans
from ..sketch.errors import SettingError
from ..sketch.labels import site_label
from ..sketch.table import BINS, COUNT, COUNTS, MOMENTS, SketchTable
from ..wire.messages import MeshAxis
from .layout import COLUMNS
from .rank_frames import KeptAt, unpack
from .reader import Reader, of_words
from .selection import ATTEMPT, Indices, ranks_in
from .state import Attempt

AT_ONCE_BYTES = 32 << 20
"""Frames that are read at a time."""

View = str | int
"""`merged`, one rank, a group of ranks, or `min`, `max`, `argmin`, `argmax` over ranks."""


def exact(
    reader: Reader, view: View, records: Indices, places: Indices, *, histograms: bool = True
) -> SketchTable:
    """[records x sites] rows of exact columns; a count of -1 where nothing was observed.

    Args:
        view: `merged`, a rank, or coordinates, as "dp=0,tp=1" or "host=node-3".
        histograms: whether they are wanted; else there are none.

    Raises:
        SettingError: there is no such view, or of none of these records are its frames kept.
    """
    if view == "merged":
        return merged(reader, records, places, histograms=histograms)
    facts, attempts = reader.facts()[records], reader.meta.attempts
    wanted = [ranks_of(view, attempts[number]) for number in facts[:, ATTEMPT].tolist()]
    present = [set(ranks_in(words)) for words in facts[:, len(COLUMNS) :]]
    whole = np.array([here <= some for here, some in zip(present, wanted, strict=True)], np.bool_)
    parts = {
        int(record): sorted(some & here)
        for record, some, here in zip(records, wanted, present, strict=True)
        if some & here and not here <= some
    }
    kept = {
        record: ranks
        for record, ranks in parts.items()
        if record in reader.rank_frames and {*ranks} <= {*reader.rank_frames[record].ranks}
    }
    if len(records) and not kept and not whole.any():
        raise SettingError(not_kept(view))
    found = nothing(len(records), len(places), histograms=histograms)
    rows = np.repeat(whole, len(places))
    put(found, rows, merged(reader, records[whole], places, histograms=histograms))
    row_of = {int(record): row * len(places) for row, record in enumerate(records)}
    for record, table in from_frames(reader, kept, places):
        put(found, slice(row_of[record], row_of[record] + len(places)), table)
    return found


def observed(
    reader: Reader, view: View, record: int, places: Indices
) -> tuple[Indices, SketchTable]:
    """Those of the sites that were observed in a record, and their exact columns.

    Raises:
        SettingError: see `exact`.
    """
    table = exact(reader, view, np.array([record]), places)
    here = np.flatnonzero(table.counts[:, COUNT] >= 0)
    return places[here], table.take(here)


def merged(
    reader: Reader, records: Indices, places: Indices, *, histograms: bool = True
) -> SketchTable:
    """Those of all ranks."""
    if len(records) != 1 or len(places) != 1 or not histograms:
        return _stored(reader, records, places, histograms=histograms)
    # One cell is asked for again at once: how it is spread, and how it would fit.
    cell = int(records[0]), int(places[0])
    known = reader.kept.get("cell")
    if known is None or known[0] != cell:
        known = reader.kept["cell"] = cell, _stored(reader, records, places, histograms=True)
    return known[1].take(np.zeros(1, np.intp))


def _stored(reader: Reader, records: Indices, places: Indices, *, histograms: bool) -> SketchTable:
    names = ["counts", "moments", "checksum", *(reader.histogram_arrays if histograms else ())]
    asked = [(name, records, (places,)) for name in names]
    counts, moments, checksum, *words = reader.read_all(asked)
    rows = len(records) * len(places)
    bins = of_words(words) if words else np.empty((0, BINS), np.int64)
    return SketchTable(
        counts.reshape(rows, len(COUNTS)),
        moments.reshape(rows, len(MOMENTS)),
        checksum.reshape(rows),
        bins.reshape(-1, BINS),
    )


def ranks_of(view: View, attempt: Attempt) -> set[int]:
    """The ranks of an attempt that a view is of.

    Raises:
        SettingError: it is neither a rank nor coordinates on the mesh of the attempt.
    """
    if not isinstance(view, str):
        return {int(view)}
    pairs = [part.partition("=") for part in view.split(",")]
    known = {**attempt.mesh, "host": 0}
    if any(axis not in known or not coordinate for axis, _, coordinate in pairs):
        axes = " and ".join(f"{axis}=0" for axis in known)
        raise SettingError(f"`view` must be 'merged', a rank, or as {axes}, got {view!r}.")
    return {
        rank.rank
        for rank in attempt.ranks
        if all(
            value == (rank.host if axis == "host" else str(rank.coordinates.get(axis)))
            for axis, _, value in pairs
        )
    }


def nothing(records: int, places: int, *, histograms: bool) -> SketchTable:
    """Rows in which nothing was observed."""
    rows = records * places
    return SketchTable(
        np.full((rows, len(COUNTS)), -1, np.int64),
        np.full((rows, len(MOMENTS)), np.nan),
        np.zeros(rows, np.uint64),
        np.zeros((rows if histograms else 0, BINS), np.int64),
    )


def from_frames(
    reader: Reader, kept: Mapping[int, Sequence[int]], places: Indices
) -> Iterator[tuple[int, SketchTable]]:
    """By record what some of its ranks make up, a row for each of the sites.

    Args:
        kept: by record the ranks that are wanted; their frames must be kept.
    """
    plans, layouts = Plans(), dict[tuple[int, int, bytes], Layout]()
    indices = {site.label: index for index, site in enumerate(reader.meta.sites)}
    for some in batches(reader.rank_frames, kept):
        texts = read_frames(reader, {record: kept[record] for record in some})
        for record in some:
            attempt = int(reader.facts()[record, ATTEMPT])
            parts = dict[int, Contribution]()
            for rank in kept[record]:
                frame = unpack(texts[record, rank], reader.schemas)
                key = attempt, rank, frame.header.schema
                if key not in layouts:
                    layouts[key] = layout_of(reader, *key, indices)
                parts[rank] = Contribution(frame, layouts[key])
            yield record, of_places(*table_of(parts, plans), places)


def table_of(
    parts: Mapping[int, Contribution], plans: Plans
) -> tuple[NDArray[np.intp], SketchTable]:
    """Sites and rows that some ranks make up; of one rank they are its own, addends or not."""
    if len(parts) > 1:
        return merge_tables(parts, plans)
    [part] = parts.values()
    return part.columns()[0].astype(np.intp), part.frame.table()


def of_places(sites: NDArray[np.intp], table: SketchTable, places: Indices) -> SketchTable:
    """The rows of these places."""
    row = np.full(max(int(places.max(initial=-1)), int(sites.max(initial=-1))) + 1, -1)
    row[sites] = np.arange(len(sites))
    here = row[places] >= 0
    found = nothing(1, len(places), histograms=True)
    put(found, here, table.take(row[places][here]))
    return found


def put(found: SketchTable, rows: NDArray[np.bool_] | slice, table: SketchTable) -> None:
    """Put rows into those of a table, in place."""
    for mine, new in zip(found.columns(), table.columns(), strict=True):
        if len(mine):
            mine[rows] = new


def layout_of(
    reader: Reader, attempt: int, rank: int, schema: bytes, indices: Mapping[str, int]
) -> Layout:
    """Where a rank's sites belong, as its collector knew it."""
    told = reader.meta.attempts[attempt]
    coordinates = next((one.coordinates for one in told.ranks if one.rank == rank), {})
    mesh = [
        MeshAxis(name=axis, size=told.mesh[axis], coordinate=at) for axis, at in coordinates.items()
    ]
    sites = reader.schemas[schema].sites
    labels = [site_label(site.kind, site.name, site.slot, site.occurrence) for site in sites]
    return lay_out(sites, [indices[label] for label in labels], mesh)


def batches(index: Mapping[int, KeptAt], kept: Iterable[int]) -> Iterator[list[int]]:
    """Records whose frames are read at a time."""
    some, size_bytes = list[int](), 0
    for record in kept:
        size_bytes += sum(index[record].sizes)
        if some and size_bytes > AT_ONCE_BYTES:
            yield some
            some, size_bytes = [], sum(index[record].sizes)
        some.append(record)
    if some:
        yield some


def read_frames(
    reader: Reader, kept: Mapping[int, Sequence[int]]
) -> dict[tuple[int, int], memoryview]:
    """By record and rank the frames as they are kept."""
    spans = {
        (record, rank): reader.rank_frames[record].spans()[rank]
        for record, ranks in kept.items()
        for rank in ranks
    }
    blocks = {key: np.empty(span.stop - span.start, np.uint8) for key, span in spans.items()}
    reader.read_bytes((spans[key], block) for key, block in blocks.items())
    return {key: block.data for key, block in blocks.items()}


def not_kept(view: View) -> str:
    """A sentence for a question that no frame answers."""
    return (
        f"Of view {view!r} there are no exact columns here: the collector kept no frames of its "
        "ranks in these steps, see `--keep-per-rank` and `Run.kept_ranks()`; main statistics "
        "are kept of every rank."
    )
