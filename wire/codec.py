"""Messages to bytes and back, with every size bounded before it is allocated.

A frame is two parts: its header, and a blob of columns back to back, little-endian, in the order
of `COLUMNS`, and after them exact counts. Histograms and counts travel as windows: from the first
to the last that is not zero. Whatever is wrong with bytes from outside ends in a
`ProtocolError`, in no other exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..sketch.errors import ProtocolError
from ..sketch.matrices import Weighted
from ..sketch.table import BINS, COUNTS, MOMENTS, Ints, SketchTable
from .counts import (
    MAX_COUNT,
    check_counted,
    check_exact_counts,
    count_windows,
    exact_count_of,
    narrowed,
    unfold,
)
from .messages import (
    MAX_SITES,
    Column,
    FrameHeader,
    FromAgent,
    FromCollector,
    Gap,
    Hello,
    Message,
    Schema,
    Series,
    SeriesValues,
    Site,
    SiteExactCount,
)
from .series import check_series, lengths_of

MAX_HEADER_BYTES = 32 << 20
MAX_BLOB_BYTES = 256 << 20
MAX_HELLO_BYTES = 64 << 10
"""A collector keeps what is in it for each rank, and stores it."""
COLUMNS = (
    Column(name="site", dtype="u4", width=1, merge="sum"),
    Column(name="counts", dtype="i8", width=len(COUNTS), merge="sum"),
    Column(name="moments", dtype="f8", width=len(MOMENTS), merge="moments"),
    Column(name="checksum", dtype="u8", width=1, merge="sum"),
    Column(name="first_bin", dtype="u2", width=1, merge="histogram"),
    Column(name="bin_count", dtype="u2", width=1, merge="histogram"),
    Column(name="bins", dtype="u1|u2|u4|u8", width=0, merge="histogram"),
)
"""The columns of a frame's blob. The width of the integers in `bins` is in the frame's header."""

_DTYPES = tuple(np.dtype("<" + column.dtype) for column in COLUMNS[:-1])
_ROW_BYTES = sum(
    dtype.itemsize * column.width for dtype, column in zip(_DTYPES, COLUMNS, strict=False)
)

Packed = tuple[FrameHeader, bytes]
"""Header and blob of a frame."""

_encoder = msgspec.msgpack.Encoder()
_from_agent = msgspec.msgpack.Decoder(FromAgent)
_from_collector = msgspec.msgpack.Decoder(FromCollector)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What one rank says about one step, in memory."""

    sequence: int = 0
    """Number of the frame in its stream, from 0 without holes."""
    step: int
    time_ns: int
    """Wall clock at the step's end, nanoseconds since 1970."""
    sites: NDArray[np.uint32]
    """uint32 [rows]: index into the schema's sites, strictly increasing."""
    table: SketchTable
    """One row a site."""
    series: dict[int, Weighted] = field(default_factory=dict[int, Weighted])
    """By index into the schema's series: float64, as long as its form and size say."""
    exact_counts: dict[int, Ints] = field(default_factory=dict[int, Ints])
    """By index into the schema's exact counts, each in its shape."""
    training: dict[str, float] = field(default_factory=dict[str, float])
    health: dict[str, float] = field(default_factory=dict[str, float])
    reports: list[str] = field(default_factory=list[str])
    gaps: list[Gap] = field(default_factory=list[Gap])
    partial: bool = False
    """The step had not ended when this was sent."""
    final: bool = False
    """The state after the last step, taken when the run was closed."""
    unmatched: bool = False
    """The rank's own gradients are not what the reduced ones of the step were made of."""
    kept: bool = False
    """It was kept back, and is sent because something went wrong since: after later steps."""
    alarming: bool = False
    """Some site has values that are not finite, or overflow, and had none in the steps before."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedRows:
    """Sketches as they travel: checked, columns that are views of a blob, histograms windows."""

    sites: NDArray[np.uint32]
    """uint32 [rows]: index into the schema's sites, increasing."""
    counts: NDArray[np.int64]
    """int64 [rows, len(COUNTS)]"""
    moments: NDArray[np.float64]
    """float64 [rows, len(MOMENTS)]"""
    checksum: NDArray[np.uint64]
    """uint64 [rows]"""
    first_bin: NDArray[np.uint16]
    """uint16 [rows]: where each row's window of the histogram begins."""
    bin_count: NDArray[np.uint16]
    """uint16 [rows]: and how long it is."""
    bins: NDArray[Any]
    """unsigned: the windows of all rows, back to back."""
    windows: tuple[NDArray[Any], ...] = ()
    """unsigned: the counts of each of the header's exact counts."""
    series: tuple[NDArray[np.float64], ...] = ()
    """float64: the array of each of the header's series."""
    size_bytes: int
    """Of the blob that this keeps alive."""

    def window_places(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """intp [bins]: where each element of `bins` belongs in a flat [rows, BINS] histogram.

        Args:
            rows: the row of that histogram that each row of the frame goes to.
        """
        width = self.bin_count.astype(np.intp)
        starts = np.cumsum(width) - width
        places = np.repeat(rows * BINS + self.first_bin - starts, width)
        places += np.arange(self.bins.size)
        return places

    def table(self) -> SketchTable:
        """The rows with whole histograms, in native byte order."""
        histogram = np.zeros((len(self.sites), BINS), np.int64)
        histogram.reshape(-1)[self.window_places(np.arange(len(self.sites)))] = self.bins
        return SketchTable(
            self.counts.astype(np.int64),
            self.moments.astype(np.float64),
            self.checksum.astype(np.uint64),
            histogram,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedFrame(PackedRows):
    """A frame as it travels: one row a site."""

    header: FrameHeader


def make_schema(
    sites: Sequence[Site],
    exact_counts: Sequence[SiteExactCount] = (),
    series: Sequence[Series] = (),
) -> Schema:
    """The schema of frames over these; its hash is over all it says."""
    said = COLUMNS, tuple(sites), tuple(exact_counts), *([tuple(series)] if series else [])
    body = _encoder.encode(said)
    return Schema(
        hash=blake2b(body, digest_size=16).digest(),
        columns=list(COLUMNS),
        sites=list(sites),
        exact_counts=list(exact_counts),
        series=list(series),
    )


def encode(message: Message) -> bytes:
    """The bytes of any message; of a frame only its header, see `encode_frame`."""
    return _encoder.encode(message)


def decode(part: bytes | memoryview, sender: Literal["agent", "collector"]) -> Any:
    """The message in `part`, which must be one that `sender` may send.

    Raises:
        ProtocolError: not msgpack, not in the vocabulary, a field out of bounds, or too large.
    """
    if len(part) > MAX_HEADER_BYTES:
        raise ProtocolError(
            f"A message of {len(part)} bytes is above the limit of {MAX_HEADER_BYTES}."
        )
    decoder = _from_agent if sender == "agent" else _from_collector
    try:
        message = decoder.decode(part)
    # ValueError: text that is not UTF-8 is not a DecodeError to msgspec.
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as error:
        # The reason may quote the message; what it quotes must not break a line of somebody's log.
        reason = "".join(letter if letter.isprintable() else "?" for letter in str(error))
        raise ProtocolError(f"A message from an {sender} cannot be read: {reason}.") from None
    if isinstance(message, Schema):
        _check_schema(message)
    if isinstance(message, Hello) and len(part) > MAX_HELLO_BYTES:
        raise ProtocolError(
            f"A hello of {len(part)} bytes is above the limit of {MAX_HELLO_BYTES}."
        )
    return message


def encode_frame(frame: Frame, schema: bytes) -> tuple[bytes, bytes]:
    """The bytes of header and blob of `frame`, see `pack_frame`."""
    header, blob = pack_frame(frame, schema)
    return encode(header), blob


def pack_frame(frame: Frame, schema: bytes = b"") -> Packed:
    """Header and blob of `frame`, whose sites are those of the schema with hash `schema`.

    Schema, sequence and gaps may be filled in later, when it is sent.
    """
    first, width, bins = pack_windows(frame.table.histogram)
    windows, counted = count_windows(frame.exact_counts)
    series = sorted(frame.series.items())
    blob = _joined(
        frame.sites.astype("<u4"),
        frame.table.counts.astype("<i8", copy=False),
        frame.table.moments.astype("<f8", copy=False),
        frame.table.checksum.astype("<u8", copy=False),
        first,
        width,
        bins,
        *counted,
        *(one.array.astype("<f8", copy=False) for _, one in series),
    )
    header = FrameHeader(
        sequence=frame.sequence,
        schema=schema,
        step=frame.step,
        time_ns=frame.time_ns,
        rows=len(frame.table),
        bins=bins.size,
        bin_dtype=bins.dtype.str[1:],  # pyright: ignore[reportArgumentType]  # one of u1 u2 u4 u8
        crc32=crc32(blob),
        partial=frame.partial,
        final=frame.final,
        training=frame.training,
        health=frame.health,
        reports=frame.reports,
        gaps=frame.gaps,
        exact_counts=windows,
        unmatched=frame.unmatched,
        kept=frame.kept,
        alarming=frame.alarming,
        series=[SeriesValues(series=index, weight=one.weight) for index, one in series],
    )
    return header, blob


def open_frame(header: FrameHeader, blob: bytes | memoryview, schema: Schema) -> PackedFrame:
    """The frame of a header and its blob, checked, without copying or unfolding its columns.

    Raises:
        ProtocolError: the blob's size, checksum or contents do not fit the header and the schema.
    """
    rows = header.rows
    bin_bytes = header.bins * np.dtype(header.bin_dtype).itemsize
    counted = sum(part.length * np.dtype(part.dtype).itemsize for part in header.exact_counts)
    lengths = lengths_of(header.series, schema)
    expected = rows * _ROW_BYTES + bin_bytes + counted + 8 * sum(lengths)
    if expected > MAX_BLOB_BYTES or len(blob) != expected:
        raise ProtocolError(
            f"A frame of {rows} rows, {header.bins} bins and {len(header.exact_counts)} exact "
            f"counts takes {expected} bytes "
            f"(at most {MAX_BLOB_BYTES}), got {len(blob)}."
        )
    if crc32(blob) != header.crc32:
        raise ProtocolError("A frame's checksum does not match: it was damaged on the way.")
    site, counts, moments, checksum, first, width, bins, *rest = _split(header, blob, lengths)
    windows, series = rest[: len(header.exact_counts)], rest[len(header.exact_counts) :]
    _check_rows(site, counts, len(schema.sites))
    check_windows(first, width, bins)
    check_counted(header.exact_counts, windows, schema)
    return PackedFrame(
        header=header,
        size_bytes=expected,
        sites=site,
        counts=counts.reshape(rows, len(COUNTS)),
        moments=moments.reshape(rows, len(MOMENTS)),
        checksum=checksum,
        first_bin=first,
        bin_count=width,
        bins=bins,
        windows=tuple(windows),
        series=tuple(series),
    )


def blob_of(frame: PackedFrame) -> bytes:
    """The blob that the frame was opened from."""
    return _joined(
        frame.sites,
        frame.counts,
        frame.moments,
        frame.checksum,
        frame.first_bin,
        frame.bin_count,
        frame.bins,
        *frame.windows,
        *frame.series,
    )


def decode_frame(header: FrameHeader, blob: bytes | memoryview, schema: Schema) -> Frame:
    """The frame of a header and its blob, as `encode_frame` was given it.

    Raises:
        ProtocolError: the blob's size, checksum or contents do not fit the header and the schema.
    """
    packed = open_frame(header, blob, schema)
    return Frame(
        sequence=header.sequence,
        step=header.step,
        time_ns=header.time_ns,
        sites=packed.sites.astype(np.uint32),
        table=packed.table(),
        exact_counts={
            part.exact_count: unfold(part, window, exact_count_of(schema, part.exact_count).shape)
            for part, window in zip(header.exact_counts, packed.windows, strict=True)
        },
        training=header.training,
        health=header.health,
        reports=header.reports,
        gaps=header.gaps,
        partial=header.partial,
        final=header.final,
        unmatched=header.unmatched,
        kept=header.kept,
        alarming=header.alarming,
        series={
            one.series: Weighted(one.weight, array.astype(np.float64))
            for one, array in zip(header.series, packed.series, strict=True)
        },
    )


def _joined(*columns: NDArray[Any]) -> bytes:
    """Columns back to back."""
    return b"".join(
        np.ascontiguousarray(column).data.cast("B") for column in columns if column.size
    )


def _split(
    header: FrameHeader, blob: bytes | memoryview, series: Sequence[int]
) -> list[NDArray[Any]]:
    columns, offset = list[NDArray[Any]](), 0
    lengths = [*(header.rows * column.width for column in COLUMNS[:-1]), header.bins]
    lengths += [part.length for part in header.exact_counts]
    unsigned = [header.bin_dtype, *(part.dtype for part in header.exact_counts)]
    lengths += series
    floats = [np.dtype("<f8")] * len(series)
    dtypes = [*_DTYPES, *(np.dtype(f"<{name}") for name in unsigned), *floats]
    for length, dtype in zip(lengths, dtypes, strict=True):
        columns.append(np.frombuffer(blob, dtype, length, offset))
        offset += length * dtype.itemsize
    return columns


def pack_windows(
    histogram: NDArray[np.int64],
) -> tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[Any]]:
    """First bin and length of each row's window, and all windows back to back."""
    flat, base = histogram.reshape(-1), np.arange(len(histogram)) * BINS
    filled = np.flatnonzero(flat != 0)  # of booleans it is three times as fast
    begin, end = np.searchsorted(filled, base), np.searchsorted(filled, base + BINS)
    some = begin < end
    first, width = np.zeros(len(base), np.intp), np.zeros(len(base), np.intp)
    first[some] = filled[begin[some]] - base[some]
    width[some] = filled[end[some] - 1] - base[some] - first[some] + 1
    places = np.repeat(base + first - (np.cumsum(width) - width), width)
    places += np.arange(len(places))
    return first.astype("<u2"), width.astype("<u2"), narrowed(flat[places])


def check_windows(
    first: NDArray[Any], width: NDArray[Any], bins: NDArray[Any], most: int = MAX_COUNT
) -> None:
    if first.size and int((first.astype(np.int64) + width).max()) > BINS:
        raise ProtocolError(f"A frame's histogram windows do not fit {BINS} bins.")
    if int(width.sum(dtype=np.int64)) != bins.size:
        raise ProtocolError(f"A frame's histogram windows do not fit its {bins.size} bins.")
    if bins.dtype.itemsize == 8 and bins.size and int(bins.max()) > most:
        raise ProtocolError(f"A frame's histogram counts more than {most} elements.")


def _check_rows(site: NDArray[Any], counts: NDArray[Any], known: int) -> None:
    if site.size and int(site[-1]) >= known:
        raise ProtocolError(f"A frame names site {int(site[-1])}, its schema has {known}.")
    if np.any(site[1:] <= site[:-1]):
        raise ProtocolError("A frame's sites must be strictly increasing.")
    # As unsigned a negative count is a large one: one pass sees both.
    if counts.size and int(counts.view("<u8").max()) > MAX_COUNT:
        raise ProtocolError("A frame holds a count that is negative or above 2^47.")


def _check_schema(schema: Schema) -> None:
    if tuple(schema.columns) != COLUMNS:
        names = ", ".join(column.name for column in schema.columns)
        raise ProtocolError(f"A schema's columns are not those of this protocol: {names[:200]}.")
    if len(schema.sites) > MAX_SITES:
        raise ProtocolError(f"A schema of {len(schema.sites)} sites is above {MAX_SITES}.")
    check_exact_counts(schema)
    check_series(schema)
    if make_schema(schema.sites, schema.exact_counts, schema.series).hash != schema.hash:
        raise ProtocolError("A schema's hash does not match its contents.")
