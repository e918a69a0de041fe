"""Joined frames to bytes and back: what a relay makes of several ranks' frames of one step.

The blob holds, back to back and little-endian: the rows, one a site and cell, which are those of a
frame with four columns more; what is known of each site over all ranks; and the checksums of the
cells that were united, by which copies are compared further up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from ..sketch.distribution import EXTREMES, RANKED, SPREAD, RankDistribution
from ..sketch.errors import ProtocolError
from ..sketch.table import COUNTS, MOMENTS, Ints, SketchTable
from .codec import MAX_BLOB_BYTES, PackedRows, check_windows, pack_windows
from .counts import MAX_COUNT, check_counted, narrowed
from .messages import CellWindow, JoinedHeader, JoinedMember, Schema

WHOLE = -1
"""Stands for all cells of a site: that row holds the whole tensor."""

MAX_HOLDERS = 1 << 27
"""Rows times members of a joined frame: it is told of each row whose it is."""

Column = tuple[str, tuple[int, ...]]
"""Dtype and shape of an array in the blob."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OverRanks:
    """What is known of `sites` sites over all members; all float32 and `len(MAIN)` wide."""

    spread: NDArray[np.float32]
    """float32 [sites, len(MAIN), len(SPREAD)]"""
    distributions: Sequence[RankDistribution]
    """By coordinate on the mesh axis `tp`: of sites x RANKED rows."""
    by_rank: NDArray[np.float32]
    """float32 [members or 0, sites, len(MAIN)]"""
    by_group: NDArray[np.float32]
    """float32 [groups, sites, len(MAIN)]"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellChecksums:
    """Checksums of single cells of the sites of which a row holds the whole."""

    sites: NDArray[np.uint32]
    """uint32 [copies]: index into the schema's sites."""
    cell: Ints
    """int64 [copies]"""
    checksum: NDArray[np.uint64]
    """uint64 [copies]"""
    holders: NDArray[np.bool_]
    """bool [copies, members]: whose cell has it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedFrame(PackedRows):
    """A joined frame as it travels: like a frame, but for sites that may have several rows."""

    header: JoinedHeader
    cell: Ints
    """int64 [rows]: coordinates on the axes where the site is not replicated, as one number;
    `WHOLE` where all cells are united; the lowest one where all holders of some cells are here."""
    piece: Ints
    """int64 [rows]: the same over the axes where it is sharded."""
    cells: NDArray[np.uint32]
    """uint32 [rows]: how many cells are united in it."""
    holders: NDArray[np.bool_]
    """bool [rows, members]: whose frames held it."""
    over: OverRanks
    copies: CellChecksums


def pack_joined(
    *,
    schema: bytes,
    step: int,
    final: bool,
    unmatched: bool,
    members: Sequence[JoinedMember],
    sites: NDArray[np.intp],
    cell: Ints,
    piece: Ints,
    cells: Ints,
    holders: NDArray[np.bool_],
    table: SketchTable,
    over: OverRanks,
    groups: Sequence[str],
    copies: CellChecksums,
    exact_counts: Sequence[tuple[int, int, int, Ints]],
) -> tuple[JoinedHeader, bytes]:
    """Header and blob of a joined frame; the arguments are its fields.

    Args:
        exact_counts: of each its index in the schema, the cell, where its window begins, and the
            counts in that.
    """
    first, width, bins = pack_windows(table.histogram)
    counted = [narrowed(counts) for *_, counts in exact_counts]
    header = JoinedHeader(
        schema=schema,
        step=step,
        members=list(members),
        rows=len(table),
        sites=len(over.spread),
        bins=bins.size,
        bin_dtype=bins.dtype.str[1:],  # pyright: ignore[reportArgumentType]  # one of u1 u2 u4 u8
        crc32=0,
        copies=len(copies.cell),
        peers=[len(one.levels) for one in over.distributions],
        by_rank=bool(over.by_rank.size),
        groups=list(groups),
        exact_counts=[
            CellWindow(
                exact_count=index,
                first=start,
                length=len(counts),
                dtype=narrow.dtype.str[1:],  # pyright: ignore[reportArgumentType]
                cell=own,
            )
            for (index, own, start, counts), narrow in zip(exact_counts, counted, strict=True)
        ],
        final=final,
        unmatched=unmatched,
    )
    arrays: list[NDArray[Any]] = [sites, cell, piece, cells, np.packbits(holders, axis=1)]
    arrays += [table.counts, table.moments, table.checksum, first, width, bins]
    arrays += [over.spread, over.by_rank, over.by_group]
    for one in over.distributions:
        arrays += [one.levels, one.counts, one.magnitudes, one.names]
    arrays += [copies.sites, copies.cell, copies.checksum, np.packbits(copies.holders, axis=1)]
    arrays += counted
    blob = b"".join(
        np.ascontiguousarray(array, dtype).data.cast("B")
        for array, (dtype, _) in zip(arrays, _columns(header), strict=True)
        if array.size
    )
    return replace(header, crc32=crc32(blob)), blob


def open_joined(header: JoinedHeader, blob: bytes | memoryview, schema: Schema) -> JoinedFrame:
    """The joined frame of a header and its blob, checked, its columns views of the blob.

    Raises:
        ProtocolError: the blob's size, checksum or contents do not fit the header and the schema.
    """
    if (header.rows + header.copies) * len(header.members) > MAX_HOLDERS:
        raise ProtocolError(
            f"A joined frame of {header.rows} rows and {len(header.members)} ranks is too large."
        )
    columns = _columns(header)
    sizes = [np.dtype(dtype).itemsize * prod(shape) for dtype, shape in columns]
    if sum(sizes) > MAX_BLOB_BYTES or sum(sizes) != len(blob):
        raise ProtocolError(
            f"A joined frame of {header.rows} rows takes {sum(sizes)} bytes (at most "
            f"{MAX_BLOB_BYTES}), got {len(blob)}."
        )
    if crc32(blob) != header.crc32:
        raise ProtocolError("A joined frame's checksum does not match: it was damaged on the way.")
    arrays, offset = list[NDArray[Any]](), 0
    for (dtype, shape), size in zip(columns, sizes, strict=True):
        flat = np.frombuffer(blob, np.dtype(dtype), size // np.dtype(dtype).itemsize, offset)
        arrays.append(flat.reshape(shape))
        offset += size
    sites, cell, piece, cells, bits, counts, moments, checksum, first, width, bins = arrays[:11]
    spread, by_rank, by_group = arrays[11:14]
    end = 14 + 4 * len(header.peers)
    distributions = [
        RankDistribution(header.sites * len(RANKED), *arrays[place : place + 4])
        for place in range(14, end, 4)
    ]
    copy_sites, copy_cell, copy_checksum, copy_bits = arrays[end : end + 4]
    windows = arrays[end + 4 :]
    _check_rows(header, sites, cell, counts, len(schema.sites))
    check_windows(first, width, bins, MAX_COUNT * len(header.members))
    check_counted(header.exact_counts, windows, schema, repeated=True)
    for one in distributions:
        _check_distribution(one)
    if not np.isin(copy_sites, sites).all() or (copy_cell.size and int(copy_cell.min()) < 0):
        raise ProtocolError("A joined frame's checksums are not of cells of its sites.")
    members = len(header.members)
    return JoinedFrame(
        header=header,
        size_bytes=len(blob),
        sites=sites,
        cell=cell,
        piece=piece,
        cells=cells,
        holders=_holders(bits, members),
        counts=counts,
        moments=moments,
        checksum=checksum,
        first_bin=first,
        bin_count=width,
        bins=bins,
        windows=tuple(windows),
        over=OverRanks(
            spread=spread, distributions=distributions, by_rank=by_rank, by_group=by_group
        ),
        copies=CellChecksums(
            sites=copy_sites,
            cell=copy_cell,
            checksum=copy_checksum,
            holders=_holders(copy_bits, members),
        ),
    )


def _columns(header: JoinedHeader) -> list[Column]:
    rows, sites, copies = header.rows, header.sites, header.copies
    bits, kept = (len(header.members) + 7) // 8, len(header.members) * header.by_rank
    columns: list[Column] = [("<u4", (rows,)), ("<i8", (rows,)), ("<i8", (rows,))]
    columns += [("<u4", (rows,)), ("u1", (rows, bits)), ("<i8", (rows, len(COUNTS)))]
    columns += [("<f8", (rows, len(MOMENTS))), ("<u8", (rows,)), ("<u2", (rows,)), ("<u2", (rows,))]
    columns += [(f"<{header.bin_dtype}", (header.bins,))]
    columns += [("<f4", (sites, len(MAIN), len(SPREAD))), ("<f4", (kept, sites, len(MAIN)))]
    columns += [("<f4", (len(header.groups), sites, len(MAIN)))]
    extremes = (sites * len(RANKED), 2, EXTREMES)
    for levels in header.peers:
        columns += [("<i8", (levels,)), ("<i8", (levels,)), ("<f4", extremes), ("<i4", extremes)]
    columns += [("<u4", (copies,)), ("<i8", (copies,)), ("<u8", (copies,)), ("u1", (copies, bits))]
    columns += [(f"<{window.dtype}", (window.length,)) for window in header.exact_counts]
    return columns


def _holders(bits: NDArray[np.uint8], members: int) -> NDArray[np.bool_]:
    holders = np.unpackbits(bits, axis=1, count=members).astype(np.bool_)
    if not holders.any(axis=1).all():
        raise ProtocolError("A joined frame has a row that no rank holds.")
    return holders


def _check_rows(
    header: JoinedHeader, sites: NDArray[Any], cell: Ints, counts: NDArray[Any], known: int
) -> None:
    if sites.size and int(sites[-1]) >= known:
        raise ProtocolError(f"A joined frame names site {int(sites[-1])}, its schema has {known}.")
    step, further = np.diff(sites.astype(np.int64)), np.diff(cell)
    if np.any(step < 0) or np.any((step == 0) & (further < 0)):
        raise ProtocolError("A joined frame's rows must be in order of their sites and cells.")
    if header.sites != np.count_nonzero(step) + bool(sites.size):
        raise ProtocolError(f"A joined frame has not the {header.sites} sites that it tells.")
    if cell.size and int(cell.min()) < WHOLE:
        raise ProtocolError("A joined frame has a cell below -1.")
    # As unsigned a negative count is a large one: one pass sees both.
    if counts.size and int(counts.view("<u8").max()) > MAX_COUNT * len(header.members):
        raise ProtocolError("A joined frame holds a count that is negative or too large.")


def _check_distribution(one: RankDistribution) -> None:
    if not one.is_sound():
        raise ProtocolError("A joined frame's distribution over ranks is not one.")
