"""Frames survive the wire bit for bit; damaged ones end in a ProtocolError."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rankscope.sketch import (
    BINS,
    COUNTS,
    MOMENTS,
    BlockExponents,
    CastCounts,
    FineExponents,
    ProtocolError,
    SketchTable,
    sketch_array,
)
from rankscope.sketch.exact_counts import MAX_NUMBERS
from rankscope.sketch.table import Ints
from rankscope.wire import (
    COLUMNS,
    Frame,
    FrameHeader,
    Gap,
    Site,
    SiteExactCount,
    decode,
    decode_frame,
    encode,
    encode_frame,
    make_schema,
    open_frame,
)

SITES = [Site(kind="tap", name=f"t{i}") for i in range(8)]
EXACT_COUNTS = (FineExponents(1), BlockExponents(1, 16, "amax", 2), CastCounts("float8_e5m2"))
SCHEMA = make_schema(
    SITES,
    [SiteExactCount(site=site, name=one.name) for site in (1, 5) for one in EXACT_COUNTS],
)


@st.composite
def counted(draw: st.DrawFn) -> dict[int, Ints]:
    """Counts of some of the schema's exact counts."""
    chosen = draw(st.sets(st.integers(0, 5)))
    counts = {index: np.zeros(EXACT_COUNTS[index % 3].shape, np.int64) for index in chosen}
    for of_one in counts.values():
        places = draw(st.lists(st.integers(0, of_one.size - 1), max_size=4))
        of_one.reshape(-1)[places] = draw(st.sampled_from([1, 200, 60_000, 2**31, 2**47]))
    return counts


@st.composite
def tables(draw: st.DrawFn, rows: int) -> SketchTable:
    counts = hnp.arrays(np.int64, (rows, len(COUNTS)), elements=st.integers(0, 2**47))
    moments = hnp.arrays(np.float64, (rows, len(MOMENTS)))
    checksum = hnp.arrays(np.uint64, (rows,))
    histogram = np.zeros((rows, BINS), np.int64)
    for row in range(rows):
        begin, end = sorted(draw(st.tuples(*[st.integers(0, BINS)] * 2)))
        most = draw(st.sampled_from([1, 200, 60_000, 2**31, 2**47]))
        histogram[row, begin:end] = draw(st.integers(0, most))
    return SketchTable(draw(counts), draw(moments), draw(checksum), histogram)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    sites = sorted(draw(st.sets(st.integers(0, 7), max_size=8)))
    numbers = st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3)
    return Frame(
        sequence=draw(st.integers(0, 2**63 - 1)),
        step=draw(st.integers(-(2**63), 2**63 - 1)),
        time_ns=draw(st.integers(0, 2**63 - 1)),
        sites=np.array(sites, np.uint32),
        table=draw(tables(len(sites))),
        exact_counts=draw(counted()),
        training=draw(numbers),
        health=draw(numbers),
        reports=draw(st.lists(st.text(max_size=9), max_size=2)),
        gaps=[Gap(first_step=1, last_step=2, frames=2, cause="full")] * draw(st.integers(0, 2)),
        partial=draw(st.booleans()),
        final=draw(st.booleans()),
    )


def a_frame(rows: int = 3) -> tuple[FrameHeader, bytes]:
    table = SketchTable.concatenate(
        [sketch_array(np.arange(row, row + 9.0)) for row in range(rows)]
    )
    frame = Frame(
        sequence=4,
        step=5,
        time_ns=6,
        sites=np.arange(rows, dtype=np.uint32),
        table=table,
        exact_counts={5: np.array([1, 2, 0, 3000])},
    )
    header, blob = encode_frame(frame, SCHEMA.hash)
    return decode(header, "agent"), blob


@given(frames())
def test_a_frame_survives_bit_for_bit(frame: Frame) -> None:
    header, blob = encode_frame(frame, SCHEMA.hash)
    back = decode_frame(decode(header, "agent"), blob, SCHEMA)

    assert back.table == frame.table
    assert back.sites.tolist() == frame.sites.tolist()
    for name in ("sequence", "step", "time_ns", "training", "health", "reports", "gaps"):
        assert getattr(back, name) == getattr(frame, name)
    assert (back.partial, back.final) == (frame.partial, frame.final)
    assert back.exact_counts.keys() == frame.exact_counts.keys()
    for index, counts in frame.exact_counts.items():
        assert np.array_equal(back.exact_counts[index], counts)


@given(frames())
def test_a_packed_frame_says_where_its_windows_belong(frame: Frame) -> None:
    header, blob = encode_frame(frame, SCHEMA.hash)
    packed = open_frame(decode(header, "agent"), blob, SCHEMA)
    histogram = np.zeros((len(packed.sites), BINS), np.int64)
    rows = np.arange(len(packed.sites))[::-1]
    histogram.reshape(-1)[packed.window_places(rows)] = packed.bins

    assert (histogram[::-1] == frame.table.histogram).all()
    assert packed.size_bytes == len(blob)


def test_plain_msgpack_and_numpy_are_enough_to_read_a_frame() -> None:
    header, blob = a_frame()
    fields: list[Any] = msgpack.unpackb(encode(header))
    rows, offset = fields[5], 0
    read: dict[str, np.ndarray] = {}
    for column in COLUMNS[:-1]:
        dtype = np.dtype("<" + column.dtype)
        end = offset + rows * column.width * dtype.itemsize
        read[column.name] = np.frombuffer(blob[offset:end], dtype).reshape(rows, column.width)
        offset = end

    assert fields[0] == "frame"
    assert read["counts"][:, 0].tolist() == [9, 9, 9]
    end = offset + fields[6] * np.dtype(fields[7]).itemsize
    assert np.frombuffer(blob[offset:end], "<" + fields[7]).sum() == 9 * 3 - 1
    [[exact_count, first, length, dtype]] = fields[-5]
    assert (exact_count, first, length) == (5, 0, 4)
    assert np.frombuffer(blob[end:], "<" + dtype).tolist() == [1, 2, 0, 3000]


@given(st.data())
def test_a_damaged_blob_is_refused(data: st.DataObject) -> None:
    header, blob = a_frame()
    place = data.draw(st.integers(0, len(blob) - 1))
    damaged = (
        blob[:place] + bytes([blob[place] ^ data.draw(st.integers(1, 255))]) + blob[place + 1 :]
    )

    with pytest.raises(ProtocolError, match=r"damaged on the way"):
        open_frame(header, damaged, SCHEMA)


@given(st.integers(0, 400))
def test_a_blob_of_the_wrong_size_is_refused(size: int) -> None:
    header, blob = a_frame()
    cut = blob[:-1] if size == len(blob) else blob[:size]

    with pytest.raises(ProtocolError, match=r"takes \d+ bytes"):
        open_frame(header, cut, SCHEMA)


@given(st.data())
def test_a_lying_blob_with_a_right_checksum_is_refused_or_read(data: st.DataObject) -> None:
    from zlib import crc32

    header, blob = a_frame()
    place = data.draw(st.integers(0, len(blob) - 1))
    lie = blob[:place] + data.draw(st.binary(min_size=1, max_size=8)) + blob
    lie = lie[: len(blob)]
    header = msgspec.structs.replace(header, crc32=crc32(lie))
    try:
        frame = decode_frame(header, lie, SCHEMA)
    except ProtocolError:
        return
    assert len(frame.table) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 2**31},
        {"rows": 2},
        {"bins": 0},
        {"bins": 2**62},
        {"crc32": 0},
        {"bin_dtype": "u8"},
    ],
)
def test_a_header_that_does_not_fit_its_blob_is_refused(change: dict[str, Any]) -> None:
    header, blob = a_frame()

    with pytest.raises(ProtocolError):
        open_frame(msgspec.structs.replace(header, **change), blob, SCHEMA)


@pytest.mark.parametrize(
    ("sites", "text"),
    [([0, 1, 8], "names site 8, its schema has 8"), ([0, 2, 2], "strictly increasing")],
)
def test_sites_that_are_not_in_the_schema_are_refused(sites: list[int], text: str) -> None:
    table = SketchTable.empty(3)
    frame = Frame(sequence=0, step=0, time_ns=0, sites=np.array(sites, np.uint32), table=table)
    header, blob = encode_frame(frame, SCHEMA.hash)

    with pytest.raises(ProtocolError, match=text):
        open_frame(decode(header, "agent"), blob, SCHEMA)


@pytest.mark.parametrize("count", [-1, 2**47 + 1])
def test_counts_that_cannot_be_are_refused(count: int) -> None:
    table = SketchTable.empty(1)
    table.counts[0, 0] = count
    frame = Frame(sequence=0, step=0, time_ns=0, sites=np.zeros(1, np.uint32), table=table)
    header, blob = encode_frame(frame, SCHEMA.hash)

    with pytest.raises(ProtocolError, match=r"negative or above 2\^47"):
        open_frame(decode(header, "agent"), blob, SCHEMA)


def test_a_step_beyond_int64_is_refused() -> None:
    header, _ = a_frame()

    with pytest.raises(ProtocolError):
        decode(encode(msgspec.structs.replace(header, step=2**63)), "agent")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"exact_count": 6}, "strictly increasing below 6"),
        ({"exact_count": 2, "first": 1}, "do not fit an exact count of 4 numbers"),
        ({"length": 3}, "takes"),
        ({"dtype": "u8"}, "takes"),
    ],
)
def test_counts_that_are_of_no_exact_count_are_refused(change: dict[str, Any], text: str) -> None:
    header, blob = a_frame()
    window = msgspec.structs.replace(header.exact_counts[0], **change)

    with pytest.raises(ProtocolError, match=text):
        open_frame(msgspec.structs.replace(header, exact_counts=[window]), blob, SCHEMA)


def test_a_exact_count_that_counts_too_much_is_refused() -> None:
    sites, table = np.zeros(0, np.uint32), SketchTable.empty(0)
    counts = {2: np.array([0, 0, 0, 2**47 + 1])}
    frame = Frame(sequence=0, step=0, time_ns=0, sites=sites, table=table, exact_counts=counts)
    header, blob = encode_frame(frame, SCHEMA.hash)

    with pytest.raises(ProtocolError, match=r"counts more than 2\^47"):
        open_frame(decode(header, "agent"), blob, SCHEMA)


@pytest.mark.parametrize(
    ("exact_counts", "text"),
    [
        ([SiteExactCount(site=8, name="fine_exponents:4")], "of site 8; it has 8"),
        ([SiteExactCount(site=0, name="rank_me")], "no exact count 'rank_me'"),
        ([SiteExactCount(site=0, name="cast_counts:float9")], "no number format 'float9'"),
        ([SiteExactCount(site=0, name="fine_exponents:4")] * 2, "twice"),
        (
            [SiteExactCount(site=i, name=f"fine_exponents:{k}") for i in range(8) for k in (3, 4)]
            + [
                SiteExactCount(site=i, name=f"block_exponents:1x{size}:amax:4")
                for i in range(8)
                for size in range(1, 20)
            ],
            f"above the limit of {MAX_NUMBERS}",
        ),
    ],
)
def test_a_schema_with_exact_counts_that_cannot_be_is_refused(
    exact_counts: list[SiteExactCount], text: str
) -> None:
    with pytest.raises(ProtocolError, match=text):
        decode(encode(make_schema(SITES, exact_counts)), "agent")
