"""A part of a Blosc chunk is what the whole one holds there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import Blosc

from rankscope.store.blosc_part import part_of


@given(data=st.data())
def test_a_part_holds_what_the_whole_holds(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 300_000), label="length")
    noise = data.draw(st.sampled_from([1, 3, 256]), label="values")
    typesize = data.draw(st.sampled_from([1, 2, 4, 8]), label="typesize")
    codec = Blosc(
        cname=data.draw(st.sampled_from(["lz4", "zstd"]), label="compressor"),
        clevel=data.draw(st.sampled_from([0, 1, 5]), label="level"),
        shuffle=data.draw(st.sampled_from([0, 1, 2]), label="shuffle"),
        blocksize=data.draw(st.sampled_from([0, 1 << 12, 1 << 16]), label="block"),
        typesize=typesize,
    )
    whole = np.random.default_rng(length).integers(0, noise, length).astype(np.uint8)
    start = data.draw(st.integers(0, length - 1), label="start")
    stop = data.draw(st.integers(start + 1, length), label="stop")

    part, first = part_of(codec.encode(whole), start, stop)

    assert 0 <= first <= start
    held = np.frombuffer(Blosc().decode(part), np.uint8)
    assert np.array_equal(held[start - first : stop - first], whole[start:stop])


def test_blocks_may_lie_in_any_order() -> None:
    whole = np.repeat(np.arange(1 << 14, dtype=np.uint16), 8).view(np.uint8)
    encoded = Blosc(cname="lz4", clevel=1, shuffle=0, blocksize=1 << 16).encode(whole)
    starts = np.frombuffer(encoded, "<u4", 4, 16)
    ends = [*starts[1:].tolist(), len(encoded)]
    blocks = [encoded[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]
    turned = 32 + np.cumsum([0, *(len(one) for one in blocks[::-1])])[:4][::-1]
    told = encoded[:16] + turned.astype("<u4").tobytes() + b"".join(blocks[::-1])

    part, first = part_of(told, 70_000, 150_000)

    held = np.frombuffer(Blosc().decode(part), np.uint8)
    assert (first, len(held)) == (1 << 16, 2 << 16)
    assert np.array_equal(held, whole[first : first + len(held)])


@pytest.mark.parametrize(
    ("cut", "start", "stop"), [(8, 0, 1), (100, 0, 1), (None, 0, 99_999), (None, 5, 5)]
)
def test_what_is_no_chunk_is_refused(cut: int | None, start: int, stop: int) -> None:
    encoded = Blosc().encode(np.random.default_rng(0).integers(0, 3, 9000).astype(np.uint8))
    with pytest.raises(ValueError, match="Blosc"):
        part_of(encoded[:cut], start, stop)
