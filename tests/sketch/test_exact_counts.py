"""Finer counts: they add up to the sketch, they merge, and they tell what real casts do."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rankscope.sketch import (
    FORMATS,
    BlockExponents,
    CastCounts,
    ExactCount,
    FineExponents,
    SettingError,
    exact_count_named,
    fit,
    number_format,
    sketch_array,
)

SMALL = ("float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")
"""The element formats of MX."""
EXACT_COUNTS: list[ExactCount] = [
    FineExponents(),
    FineExponents(bits=1),
    BlockExponents(),
    BlockExponents(rows=32, columns=1),
    BlockExponents(columns=16, scale="amax", bits=2),
    BlockExponents(rows=128, columns=128, scale="amax"),
    *(CastCounts(name) for name in FORMATS),
]
SOURCES = ("float32", "bfloat16", "float16")


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def arrays(dtypes: tuple[str, ...] = SOURCES) -> st.SearchStrategy[NDArray[Any]]:
    """Of any bits, one to three axes."""

    def of(name: str) -> st.SearchStrategy[NDArray[Any]]:
        dtype = dtype_of(name)
        shapes = hnp.array_shapes(min_dims=1, max_dims=3, max_side=40)
        words = hnp.arrays(np.dtype(f"u{dtype.itemsize}"), shapes)
        return words.map(lambda array: array.view(dtype))

    return st.sampled_from(dtypes).flatmap(of)


def near_formats(seed: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Numbers over the binades of small formats, of few bits, so that many are ties."""
    rng = np.random.default_rng(seed)
    x = np.ldexp(rng.integers(-128, 128, shape) / 64.0, rng.integers(-20, 18, shape))
    with np.errstate(over="ignore"):
        return x.astype(dtype_of(dtype))


def cast(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """x in a format and back; ml_dtypes rounds float64 twice, and float32 once."""
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float32).astype(dtype_of(name)).astype(np.float64)


@given(arrays(("float64", *SOURCES, "float8_e4m3fn", "float8_e8m0fnu")), st.integers(1, 4))
def test_fine_exponents_add_up_to_the_sketch(x: NDArray[Any], bits: int) -> None:
    counts, table = FineExponents(bits).count(x), sketch_array(x)
    by_row = counts.sum(axis=(1, 2))
    assert np.array_equal(by_row[1:-1], table.histogram[0])
    assert [by_row[0], by_row[-1]] == table.counts[0, 7:9].tolist()


@pytest.mark.parametrize("exact_count", EXACT_COUNTS, ids=lambda exact_count: exact_count.name)
@given(arrays(), st.data())
def test_counts_of_parts_add_up(
    exact_count: ExactCount, x: NDArray[Any], data: st.DataObject
) -> None:
    x = x.reshape(1, *x.shape) if x.ndim < 3 else x
    cut = data.draw(st.integers(0, len(x)))
    whole = exact_count.count(x)
    assert whole.shape == exact_count.shape
    assert np.array_equal(exact_count.count(x[:cut]) + exact_count.count(x[cut:]), whole)


@given(arrays(), st.sampled_from([name for name in FORMATS if name != "float64"]))
def test_cast_counts_are_those_of_a_real_cast(x: NDArray[Any], name: str) -> None:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        finite = x[np.isfinite(x)].astype(np.float64)
    became = cast(finite, name)
    answer = fit(CastCounts(name), CastCounts(name).count(x), number_format(name))
    total = max(np.count_nonzero(finite), 1)
    lost = np.count_nonzero((became == 0) & (finite != 0)) / total
    beyond = np.count_nonzero(~np.isfinite(became)) / total
    assert answer["underflow"].value[0] == lost
    assert number_format(name).saturates or answer["overflow"].value[0] == beyond
    assert all(share.exact.all() for share in answer.values())


EIGHT_BITS = [name for name in FORMATS if number_format(name).bits <= 8 and name != "float8_e3m4"]


@pytest.mark.parametrize("name", EIGHT_BITS)
@pytest.mark.parametrize("source", SOURCES)
@given(st.integers(0, 2**32))
def test_sixteenths_of_binades_tell_small_formats_exactly(
    source: str, name: str, seed: int
) -> None:
    x = near_formats(seed, source, (500,))
    target = number_format(name)
    found = fit(FineExponents(), FineExponents().count(x), target)
    exact = fit(CastCounts(name), CastCounts(name).count(x), target)
    for question, share in found.items():
        assert share.exact.all()
        assert share.value[0] == exact[question].value[0], question


@given(arrays(), st.sampled_from(FORMATS), st.integers(1, 4))
def test_the_bounds_of_fine_exponents_hold(x: NDArray[Any], name: str, bits: int) -> None:
    target, exact_count = number_format(name), FineExponents(bits)
    found = fit(exact_count, exact_count.count(x), target)
    for question, share in fit(CastCounts(name), CastCounts(name).count(x), target).items():
        low, value, high = (found[question].low, found[question].value, found[question].high)
        assert low[0] - 1e-12 <= share.value[0] <= high[0] + 1e-12, question
        assert low[0] <= value[0] <= high[0]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("block", [(1, 32), (32, 1), (4, 8)])
@given(st.integers(0, 2**32))
def test_blocks_tell_exactly_what_mx_formats_lose(
    block: tuple[int, int], source: str, name: str, seed: int
) -> None:
    x = near_formats(seed, source, (37, 45))  # so that the last blocks are partial
    target, exact_count = number_format(name), BlockExponents(*block)
    zero, clipped, total = quantised(x.astype(np.float64), *block, name)
    found = fit(exact_count, exact_count.count(x), target)
    assert found["underflow"].exact.all()
    assert found["overflow"].exact.all()
    assert found["underflow"].value[0] == zero / total
    assert found["overflow"].value[0] == clipped / total


def quantised(x: NDArray[np.float64], rows: int, columns: int, name: str) -> tuple[int, int, int]:
    """Block by block as OCP MX v1.0 says (6.3): what becomes zero, is clipped, was not zero."""
    target, x = number_format(name), np.where(np.isfinite(x), x, 0)
    zero = clipped = total = 0
    for top in range(0, x.shape[0], rows):
        for left in range(0, x.shape[1], columns):
            block = x[top : top + rows, left : left + columns]
            amax = np.abs(block).max()
            if amax == 0:
                continue
            largest = np.frexp(target.max)[1] - 1
            scaled = np.ldexp(block, largest - (np.frexp(amax)[1] - 1))
            zero += int(np.count_nonzero((cast(scaled, name) == 0) & (block != 0)))
            clipped += int(np.count_nonzero(np.abs(scaled) >= target.overflow_threshold))
            total += int(np.count_nonzero(block))
    return zero, clipped, total


@given(st.integers(0, 2**32), st.sampled_from(SMALL))
def test_blocks_scaled_by_their_largest_bracket_what_is_lost(seed: int, name: str) -> None:
    x = near_formats(seed, "float32", (64, 48)).astype(np.float64)
    target, exact_count = number_format(name), BlockExponents(columns=16, scale="amax")
    blocks = x.reshape(64, 3, 16)
    amax = np.abs(blocks).max(axis=2, keepdims=True)
    lost = np.abs(blocks) * target.max <= target.flush_threshold * amax
    lost &= blocks != 0
    found = fit(exact_count, exact_count.count(x), target)
    share = np.count_nonzero(lost) / np.count_nonzero(x)
    assert found["underflow"].low[0] - 1e-12 <= share <= found["underflow"].high[0] + 1e-12
    assert found["overflow"].high[0] == 0


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("scale", ["power", "amax"])
@given(st.integers(0, 2**32))
def test_blocks_bracket_what_any_format_loses(scale: Any, name: str, seed: int) -> None:
    x = near_formats(seed, "float32", (40, 64)).astype(np.float64)
    target, exact_count = number_format(name), BlockExponents(scale=scale)
    blocks = np.abs(x.reshape(40, 2, 32))
    amax = blocks.max(axis=2, keepdims=True)
    scales = amax if scale == "amax" else np.ldexp(1.0, np.frexp(amax)[1] - 1)
    ratio = blocks[blocks > 0] / np.broadcast_to(scales, blocks.shape)[blocks > 0]
    largest = target.max if scale == "amax" else 2.0 ** (np.frexp(target.max)[1] - 1)
    lost = np.count_nonzero(ratio <= target.flush_threshold / largest) / max(ratio.size, 1)
    found = fit(exact_count, exact_count.count(x), target)["underflow"]
    assert found.low[0] - 1e-12 <= lost <= found.high[0] + 1e-12


def test_nothing_is_lost_of_no_elements() -> None:
    for exact_count in (FineExponents(), BlockExponents(), CastCounts("float8_e5m2")):
        counts = exact_count.count(np.zeros((3, 4)))
        found = fit(exact_count, counts, number_format("float8_e5m2"))
        assert {share.value[0] for share in found.values()} == {0}


@pytest.mark.parametrize("exact_count", EXACT_COUNTS, ids=lambda exact_count: exact_count.name)
def test_a_name_says_what_is_counted(exact_count: ExactCount) -> None:
    assert exact_count_named(exact_count.name) == exact_count


@pytest.mark.parametrize(
    "name",
    [
        "",
        "fine_exponents:9",
        "fine_exponents:٤",
        "fine_exponents:04",
        "block_exponents:0x32:power:4",
        "block_exponents:0032x1:amax:4",
        "block_exponents:4096x4096:amax:4",
        "cast_counts:float9",
        "cast_counts:123",
        "rank_me",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(SettingError):
        exact_count_named(name)


def test_a_block_that_cannot_be_is_refused_with_its_size() -> None:
    with pytest.raises(SettingError, match="`columns` of a block must be from 1 to 4096, got 0"):
        BlockExponents(columns=0)
    with pytest.raises(SettingError, match="'power' or 'amax', got 'max'"):
        BlockExponents(scale="max")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="at most 262144 elements, got 4096 x 128"):
        BlockExponents(rows=4096, columns=128)
    with pytest.raises(SettingError, match="from 1 to 4, got 7"):
        FineExponents(bits=7)


def test_halfway_beyond_448_stays_in_float8_e4m3fn() -> None:
    target = number_format("float8_e4m3fn")
    assert cast(np.array([464.0]), target.name) == 448
    assert not np.isfinite(
        cast(np.array([np.nextafter(np.float32(464), np.float32(500))]), target.name)
    )
    assert 464 < target.overflow_threshold < 464.0001
