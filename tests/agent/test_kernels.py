"""Every kernel agrees with the reference: exactly in what is exact, to rounding in the sums."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numba import njit  # pyright: ignore[reportPrivateImportUsage, reportUnknownVariableType]
from numba.core.caching import CacheImpl
from numpy.typing import NDArray

from rankscope.agent.kernel import DTYPES, absorb, cut, sketch_items
from rankscope.agent.kernel.compiling import kept
from rankscope.agent.reading import Reading
from rankscope.agent.sitebook import SiteBook
from rankscope.agent.steptable import StepRing, StepTable
from rankscope.agent.strides import region_of, regions_of, runs_of
from rankscope.agent.torch.arithmetic import Plain
from rankscope.agent.torch.cpu import CpuMeter
from rankscope.agent.torch.device import Copy, DeviceMeter
from rankscope.agent.torch.found import Found
from rankscope.agent.torch.local import in_memory_order
from rankscope.agent.torch.threads import team
from rankscope.agent.torch.trial import differences
from rankscope.sketch import MOMENTS, SketchTable, sketch_array
from rankscope.sketch.elements import Region, element_hash
from rankscope.sketch.reference import glance_at
from rankscope.sketch.table import FIRST_EXPONENT

from .engines import FUSED, in_cuda, in_triton

# Triton's interpreter computes with NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

EXTREMES = MOMENTS.index("min")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ENGINES = [Plain, *FUSED]
AT_ONCE, LASTING = Reading(), Reading(lasting=True)
APART, TOGETHER = False, True
on_each_engine = pytest.mark.parametrize("engine", ENGINES)
on_each_fused = pytest.mark.parametrize("engine", FUSED)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def words(name: str) -> st.SearchStrategy[NDArray[Any]]:
    """Arrays of any bit pattern."""
    dtype = dtype_of(name)
    return hnp.arrays(np.dtype(f"u{dtype.itemsize}"), st.integers(0, 50)).map(
        lambda array: array.view(dtype)
    )


any_array = st.sampled_from(DTYPES).flatmap(words)


def by_numba(
    x: NDArray[Any],
    *,
    sentinel: bool = False,
    compared: bool = False,
    region: Region | None = None,
) -> SketchTable:
    code = DTYPES.index(x.dtype.name)
    items = cut(x.ctypes.data, x.size, code, sentinel=sentinel, compared=compared, region=region)
    leaf = sketch_items(np.array(items, np.int64))
    table = SketchTable.empty(1)
    absorb(table, np.zeros(len(leaf), np.int64), leaf, np.ones(len(leaf), np.bool_))
    return table


def as_tensor(x: NDArray[Any]) -> torch.Tensor:
    raw = torch.from_numpy(x.view(np.dtype(f"i{x.itemsize}")).copy())
    return raw.view(getattr(torch, x.dtype.name)).to(DEVICE)


def by_torch(x: NDArray[Any], **how: Any) -> SketchTable:
    return on_a_device([as_tensor(x)], Plain, Reading(**how))


def by_triton(x: NDArray[Any], **how: Any) -> SketchTable:
    return on_a_device([as_tensor(x)], in_triton, Reading(**how))


def by_cuda(x: NDArray[Any], **how: Any) -> SketchTable:
    return on_a_device([as_tensor(x)], in_cuda, Reading(**how))


def by_merge(table: SketchTable, rows: Any, leaf: SketchTable, keep: Any) -> None:
    table.merge_at(rows[keep], leaf.take(keep))


makers = [by_numba, by_torch, by_triton, by_cuda]


def several_chunks(engine: Any) -> int:
    """Elements of a tensor that an engine reads in several chunks, the last of which is short."""
    return 400_001 if engine is Plain else 60_001


def new_step() -> StepTable:
    step = StepRing().take(0)
    assert step is not None
    return step


def new_meter(engine: Any) -> DeviceMeter:
    return DeviceMeter(DEVICE, engine(DEVICE))


def on_a_device(
    tensors: list[torch.Tensor], engine: Any, how: Reading = AT_ONCE, *, together: bool = APART
) -> SketchTable:
    meter, step = new_meter(engine), new_step()
    if together:
        prepared(meter, tensors, how)(step, tensors)
    else:
        for row, tensor in enumerate(tensors):
            meter.add(step, row, tensor, how)
    return received(meter, meter.send_home(), step)


def prepared(meter: Any, tensors: list[torch.Tensor], how: Reading = AT_ONCE) -> Any:
    return meter.prepare([Found.of(row, how, one, one, one) for row, one in enumerate(tensors)])


def received(meter: DeviceMeter, copy: Copy | None, step: StepTable) -> SketchTable:
    assert copy is not None
    while not meter.arrived(copy):
        time.sleep(0.001)
    meter.receive(copy, step)
    return step.table.take(copy.rows)


def assert_same(x: NDArray[Any], table: SketchTable) -> None:
    reference = sketch_array(x)
    assert np.array_equal(table.counts, reference.counts)
    assert np.array_equal(table.histogram, reference.histogram)
    assert np.array_equal(table.checksum, reference.checksum)
    assert np.array_equal(table.moments[:, EXTREMES:], reference.moments[:, EXTREMES:])
    with np.errstate(all="ignore"):
        finite = x[np.isfinite(x.astype(np.float64))].astype(np.float64)
        l1, n = np.abs(finite).sum(), finite.size
        spread = np.abs(finite - finite.mean()) if n else finite
        largest = np.abs(finite).max(initial=0.0)
    scales = {"sum": (l1, 1), "l1": (l1, 1), "projection": (l1, 1)}
    scales |= {f"m{k}": ((spread**k).sum(), k) for k in (2, 3, 4)}
    for name, (scale, order) in scales.items():
        column = MOMENTS.index(name)
        slack = 1e-12 * scale + n * (1e-14 * largest) * (
            spread.max(initial=0.0) + 1e-14 * largest
        ) ** (order - 1)
        mine, theirs = table.moments[0, column], reference.moments[0, column]
        assert mine == theirs or abs(mine - theirs) <= slack, name
    s8 = MOMENTS.index("s8")
    assert table.moments[0, s8] == pytest.approx(reference.moments[0, s8], rel=1e-12)


@pytest.mark.parametrize("make", makers)
@example(np.array([5e-324, -1e-300]))
@example(np.array([1e69, 5e-324]))
@given(any_array)
def test_kernels_agree_on_any_bits(make: Any, x: NDArray[Any]) -> None:
    if make is not by_numba and not x.size:
        return  # a device has no row for it
    if x.dtype != np.float64 or np.all(np.abs(np.nan_to_num(x, posinf=0, neginf=0)) < 1e70):
        assert_same(x, make(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", makers)
def test_kernels_agree_over_many_chunks_with_bad_elements(dtype: str, make: Any) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(50_001) * 3 + 1).astype(np.float32)
    x[::997], x[5::1999], x[7::3001], x[11::89] = np.nan, np.inf, -np.inf, 0
    with np.errstate(over="ignore", invalid="ignore"):
        x = x.astype(dtype_of(dtype))
    assert_same(x, make(x))


strided = [
    lambda x: x[:, 3:50],
    lambda x: x[::2],
    lambda x: x[5:, ::3],
    lambda x: x[:, :1],
    lambda x: x[1:2, ::7],
    lambda x: x[:0, ::2],
]


@pytest.mark.parametrize("sentinel", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", strided)
def test_strided_tensors_are_read_in_pieces(view: Any, dtype: str, sentinel: bool) -> None:
    x = np.random.default_rng(6).standard_normal((6_001, 53)).astype(np.float32)
    x[::97, 5], x[1::997, 8] = np.nan, np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        x = view(x.astype(dtype_of(dtype)))
    runs = runs_of(x.shape, [stride // x.itemsize for stride in x.strides])
    assert runs is not None
    code = DTYPES.index(dtype)
    items = cut(x.ctypes.data, x.size, code, sentinel=sentinel, runs=runs)
    leaf = sketch_items(np.array(items, np.int64))
    table = SketchTable.empty(1)
    absorb(table, np.zeros(len(leaf), np.int64), leaf, np.ones(len(leaf), np.bool_))
    if sentinel:
        assert_equal(table, glance_at(x))
    else:
        assert_same(x, table)


WHOLE = (11, 30, 61)
cuts = [
    [((0, 0, 0), (4, 30, 61)), ((4, 0, 0), (0, 30, 61)), ((4, 0, 0), (7, 30, 61))],
    [((0, 0, 0), (11, 13, 61)), ((0, 13, 0), (11, 17, 61))],
    [((0, 0, 0), (11, 30, 60)), ((0, 0, 60), (11, 30, 1))],
    [((0, 0, 0), (11, 30, 40)), ((0, 0, 40), (5, 30, 21)), ((5, 0, 40), (6, 30, 21))],
]
"""Pieces of a tensor, as ranks hold them: offsets and sizes."""


@pytest.mark.parametrize("pieces", cuts)
@pytest.mark.parametrize("engine", ["numba", *ENGINES])
@pytest.mark.parametrize(
    ("dtype", "together"),
    [
        ("float32", APART),
        ("float32", TOGETHER),
        ("bfloat16", APART),
        ("float8_e5m2", TOGETHER),
        ("float64", TOGETHER),
    ],
)
def test_pieces_have_the_keys_of_the_whole(
    dtype: str, engine: Any, pieces: Any, together: bool
) -> None:
    x = np.random.default_rng(8).standard_normal(WHOLE).astype(dtype_of(dtype))
    parts = [
        x[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))].copy()
        for offsets, sizes in pieces
    ]
    regions = [region_of(sizes, offsets, WHOLE) for offsets, sizes in pieces]
    if engine == "numba":
        code = DTYPES.index(dtype)
        items = [
            item
            for part, region in zip(parts, regions, strict=True)
            for item in cut(part.ctypes.data, part.size, code, region=region)
        ]
        tables = [sketch_items(np.array(items, np.int64)).take([i]) for i in range(len(items))]
    else:
        tables = [
            on_a_device(
                [as_tensor(part).view(-1)], engine, Reading(region=region), together=together
            )
            for part, region in zip(parts, regions, strict=True)
            if part.size
        ]
    merged = SketchTable.empty(1)
    for table in tables:
        merged = merged.merge(table)
    assert_same(x, merged)


def test_a_piece_that_is_cut_into_several_items_has_the_keys_of_the_whole() -> None:
    x = np.random.default_rng(9).standard_normal((3, 900, 700)).astype(dtype_of("bfloat16"))
    parts = [x[:, :450].copy(), x[:, 450:].copy()]
    merged = SketchTable.empty(1)
    for part, offset in zip(parts, (0, 450), strict=True):
        region = region_of(part.shape, (0, offset, 0), x.shape)
        items = cut(part.ctypes.data, part.size, DTYPES.index("bfloat16"), region=region)
        table = sketch_items(np.array(items, np.int64))
        for row in range(len(table)):
            merged = merged.merge(table.take([row]))
    assert_same(x, merged)


def test_a_piece_that_is_cut_along_inner_axes_has_no_simple_place() -> None:
    assert region_of((2, 3, 4), (0, 1, 1), (2, 5, 6)) is None
    assert region_of((3, 4), (1, 1), (5, 6)) == Region(7, 4, 6)
    assert region_of((3, 1), (1, 2), (5, 6)) == Region(8, 1, 6)


@given(st.data())
def test_the_parts_of_any_piece_lie_where_it_does(data: st.DataObject) -> None:
    whole = data.draw(st.lists(st.integers(1, 5), max_size=4))
    ends = [sorted(data.draw(st.tuples(*[st.integers(0, size)] * 2))) for size in whole]
    piece = np.arange(math.prod(whole)).reshape(whole)[tuple(slice(*pair) for pair in ends)]
    regions = regions_of(piece.shape, [begin for begin, _ in ends], whole)
    part = piece.size // len(regions)

    found = np.concatenate([region.indices(0, part) for region in regions])

    assert found.tolist() == piece.ravel().tolist()


@pytest.mark.parametrize(
    ("sizes", "strides", "runs"),
    [
        ((), (), (0, 0, 0)),
        ((4, 5), (5, 1), (0, 0, 0)),
        ((4, 1, 5), (9, 77, 1), (5, 1, 9)),
        ((2, 3, 4), (12, 4, 1), (0, 0, 0)),
        ((2, 3, 4), (24, 8, 2), (24, 2, 0)),
        ((2, 3, 4), (20, 5, 1), None),
        ((2, 3, 4), (15, 5, 1), (4, 1, 5)),
    ],
)
def test_a_pattern_of_runs_is_found_where_there_is_one(
    sizes: tuple[int, ...], strides: tuple[int, ...], runs: tuple[int, ...] | None
) -> None:
    assert runs_of(sizes, strides) == runs


@pytest.mark.parametrize("make", makers)
@given(any_array)
def test_the_sentinel_sees_extremes_and_what_is_not_finite(make: Any, x: NDArray[Any]) -> None:
    if x.size or make is by_numba:
        assert_equal(make(x, sentinel=True), glance_at(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", makers)
@pytest.mark.parametrize("shift", [-3, 0, 3])
def test_the_sentinel_sees_every_element_of_many_chunks(dtype: str, make: Any, shift: int) -> None:
    x = np.random.default_rng(5).uniform(-1, 1, 20_001).astype(np.float32) + shift
    assert_equal(
        make(x.astype(dtype_of(dtype)), sentinel=True), glance_at(x.astype(dtype_of(dtype)))
    )
    x[17], x[9_000], x[-1] = np.nan, np.inf, -np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        x = x.astype(dtype_of(dtype))
    assert_equal(make(x, sentinel=True), glance_at(x))


@pytest.mark.parametrize("make", makers)
@given(any_array)
def test_of_copies_the_sentinel_takes_the_checksum(make: Any, x: NDArray[Any]) -> None:
    if x.size or make is by_numba:
        assert_equal(make(x, sentinel=True, compared=True), glance_at(x, compared=True))


@pytest.mark.parametrize("region", [None, Region(5, 700, 9_000), Region(8192, 30_000, 30_000)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", makers)
def test_copies_have_the_checksum_of_their_place_in_the_whole(
    dtype: str, make: Any, region: Region | None
) -> None:
    x = np.random.default_rng(6).uniform(-1, 1, 20_001).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        x = x.astype(dtype_of(dtype))
    seen = make(x, sentinel=True, compared=True, region=region)
    assert_equal(seen, glance_at(x, compared=True, region=region))


def assert_equal(table: SketchTable, expected: SketchTable) -> None:
    for mine, theirs in zip(table.columns(), expected.columns(), strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("merge", [absorb, by_merge])
@given(any_array, any_array)
def test_what_a_sentinel_saw_merges_with_a_sketch(
    merge: Any, x: NDArray[Any], y: NDArray[Any]
) -> None:
    table = SketchTable.concatenate([glance_at(x), sketch_array(y)])
    merge(table, np.array([0]), sketch_array(y), np.ones(1, np.bool_))
    merge(table, np.array([1]), glance_at(x), np.ones(1, np.bool_))
    expected = glance_at(x).merge(sketch_array(y))
    for row in range(2):
        assert np.array_equal(table.counts[row], expected.counts[0])
        assert np.array_equal(table.histogram[row], expected.histogram[0])
        np.testing.assert_allclose(table.moments[row], expected.moments[0], rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0, 3])
def test_pieces_of_a_large_tensor_merge_to_the_whole(dtype: str, shift: int) -> None:
    x = np.random.default_rng(1).standard_normal(2_300_001).astype(np.float32) + shift
    x[::4], x[1::9973], x[2::99991], x[3::99989] = 0, np.nan, np.inf, -np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        x = x.astype(dtype_of(dtype))
    assert_same(x, by_numba(x))


@pytest.mark.parametrize("dtype", [name for name in DTYPES if dtype_of(name).itemsize < 4])
def test_every_value_of_a_narrow_dtype_is_counted(dtype: str) -> None:
    size = dtype_of(dtype).itemsize
    every = np.arange(1 << (8 * size), dtype=f"u{size}").view(dtype_of(dtype))
    x = np.tile(every, 600_000 // len(every) + 1)
    assert_same(x, by_numba(x))
    assert_same(x, by_numba(x))  # and the tables are as clean as they were


def test_few_elements_before_a_chunk_do_not_spoil_its_sums() -> None:
    x = (np.random.default_rng(4).standard_normal(16_384) * 1e-6).astype(np.float32)
    x[0], x[1:8192] = 1, np.nan
    table, reference = by_numba(x), sketch_array(x)
    for name, scale in (("sum", "l1"), ("m2", "m2"), ("m3", "m3")):
        mine, theirs = (one.moments[0, MOMENTS.index(name)] for one in (table, reference))
        assert abs(mine - theirs) <= 1e-12 * abs(reference.moments[0, MOMENTS.index(scale)])


def test_elements_beyond_2_31_are_counted_and_keyed() -> None:
    x = np.zeros(2**31 + 9, np.uint8)
    x[[5, -1]] = one = 0x38  # 1.0 in float8_e4m3fn; the checksum of zeros is zero
    table = by_numba(x.view(ml_dtypes.float8_e4m3fn))
    weights = [int(element_hash(index, 1)[0]) | 1 for index in (5, len(x) - 1)]
    assert table.counts[0, :5].tolist() == [len(x), 0, 0, 0, len(x) - 2]
    assert table.histogram[0, -FIRST_EXPONENT] == table.moments[0, MOMENTS.index("l1")] == 2
    assert int(table.checksum[0]) == one * sum(weights)


@pytest.mark.parametrize("shift", [0.0, 0.5, 1.0, 2.0, 30.0, 3e4])
@pytest.mark.parametrize("scale", [1e-30, 1e-19, 1.0, 1e30])
def test_moments_do_not_depend_on_where_the_mean_lies(shift: float, scale: float) -> None:
    rng = np.random.default_rng(3)
    x = ((rng.standard_normal(40_000) + shift) * scale).astype(np.float32)
    assert_same(x, by_numba(x))


@on_each_engine
def test_hooks_on_several_threads_share_a_devices_scratch(engine: Any) -> None:
    size = 100_000 if engine is Plain else 2_000
    tensors = [torch.randn(size + row, device=DEVICE) for row in range(24)]
    meter, step = new_meter(engine), new_step()

    def add(rows: range) -> None:
        for row in rows:
            meter.add(step, row, tensors[row], AT_ONCE)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, [range(first, 24, 4) for first in range(4)]))
    assert received(meter, meter.send_home(), step) == on_a_device(tensors, engine)


@on_each_engine
def test_sites_that_come_while_a_step_is_on_its_way_disturb_neither(engine: Any) -> None:
    meter, first, second = new_meter(engine), new_step(), new_step()
    few = [torch.randn(3, device=DEVICE)]
    many = [torch.randn(5, device=DEVICE) for _ in range(66)]
    meter.add(first, 0, few[0], AT_ONCE)
    on_its_way = meter.send_home()
    for row, tensor in enumerate(many):
        meter.add(second, row, tensor, AT_ONCE)
    assert received(meter, on_its_way, first) == on_a_device(few, engine)
    assert received(meter, meter.send_home(), second) == on_a_device(many, engine)
    for _ in range(4):  # and every buffer that comes back can be used again
        step = new_step()
        meter.add(step, 65, many[65], AT_ONCE)
        assert received(meter, meter.send_home(), step) == on_a_device(many[65:], engine)


def test_a_step_with_more_chunks_than_may_wait_is_whole() -> None:
    torch.manual_seed(0)
    x = torch.randn(10, device=DEVICE)
    meter, step = new_meter(Plain), new_step()
    for _ in range(2100):
        meter.add(step, 0, x, AT_ONCE)
    assert_repeated(received(meter, meter.send_home(), step), x, 2100)


def assert_repeated(table: SketchTable, x: torch.Tensor, times: int) -> None:
    whole = sketch_array(x.cpu().numpy()).repeat(np.array([times]))
    for row in range(len(table)):
        assert np.array_equal(table.counts[row], whole.counts[0])
        assert np.array_equal(table.histogram[row], whole.histogram[0])
        np.testing.assert_allclose(table.moments[row], whole.moments[0], rtol=1e-12)


@on_each_engine
def test_sites_that_come_in_inference_mode_can_be_measured_outside(engine: Any) -> None:
    meter, step, x = new_meter(engine), new_step(), torch.randn(9, device=DEVICE)
    with torch.inference_mode():
        meter.add(step, 70, x, AT_ONCE)
    meter.add(step, 70, x, AT_ONCE)
    assert received(meter, meter.send_home(), step).counts[0, 0] == 18


@pytest.mark.parametrize("make", makers)
def test_float64_that_overflows_is_not_told_as_constant(make: Any) -> None:
    table = make(np.array([1.7e308, 1.7e308]))
    assert not np.isfinite(table.moments[0, MOMENTS.index("m2")])


@on_each_fused
def test_many_leaves_are_merged_in_rounds(engine: Any) -> None:
    x = torch.randn(140_001, device=DEVICE) + 3
    assert_same(x.cpu().numpy(), on_a_device([x], engine))


@on_each_fused
def test_a_tensor_has_no_more_leaves_than_it_may(engine: Any) -> None:
    x = torch.randn(40_001, device=DEVICE)
    few = on_a_device([x, x], partial(engine, leaves=2, leaves_of_tensor=2))
    assert_same(x.cpu().numpy(), few.take(slice(0, 1)))
    assert_same(x.cpu().numpy(), few.take(slice(1, 2)))


beginnings = {
    "not finite": np.nan,
    "far away": 1e6,
    "huge": 1e38,
    "subnormal": 1e-42,
    "zero": 0.0,
}
"""What a chunk begins with, which is another matter than the rest of it."""


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("beginning", beginnings)
@on_each_fused
def test_a_chunk_may_begin_with_anything(engine: Any, beginning: str, dtype: str) -> None:
    x = np.random.default_rng(3).standard_normal(18_001).astype(np.float32) + 100
    x[:9_000] = beginnings[beginning]
    x[17] = 3  # the only finite one where the others are not
    with np.errstate(over="ignore"):
        x = x.astype(dtype_of(dtype))
    assert_same(x, on_a_device([as_tensor(x)], partial(engine, leaves_of_tensor=1)))
    assert_same(x[::-1], on_a_device([as_tensor(x[::-1])], partial(engine, leaves_of_tensor=1)))


far_and_near = {
    "any bits": lambda r: r.integers(0, 1 << 16, 20_130, np.uint16),
    "heavy tails": lambda r: np.exp(12 * r.standard_normal(20_130)) * r.choice([-1, 1], 20_130),
    "squares": lambda r: np.square(r.standard_normal(20_130) * 1e-8),
    "few far away": lambda r: np.where(
        np.arange(20_130) % 1500 == 1499,
        r.choice([1e-30, -1e-20, 3e38, 1e25, np.nan, -np.inf], 20_130),
        r.standard_normal(20_130),
    ),
    "ReLU": lambda r: np.maximum(r.standard_normal(20_130), 0.0),
    "zeros": lambda r: r.choice([0.0, -0.0], 20_130),
}
"""Elements near the largest ones, which are counted by value, and far from them."""


@pytest.mark.parametrize("kind", far_and_near)
def test_values_are_counted_and_what_lies_far_away_is_added(kind: str) -> None:
    drawn = far_and_near[kind](np.random.default_rng(7))
    dtype = dtype_of("bfloat16")
    x = drawn.view(dtype) if drawn.dtype == np.uint16 else drawn.astype(dtype)
    engine = partial(in_cuda, leaves_of_tensor=1)
    assert_same(x, on_a_device([as_tensor(x)], engine))
    whole, merged = x.reshape(11, 30, 61), SketchTable.empty(1)
    for offset, sizes in ((0, (11, 30, 60)), (60, (11, 30, 1))):
        piece = whole[:, :, offset : offset + sizes[2]].copy()
        how = Reading(region=region_of(sizes, (0, 0, offset), whole.shape))
        merged = merged.merge(on_a_device([as_tensor(piece).view(-1)], engine, how))
    assert_same(x, merged)


@on_each_fused
def test_elements_that_begin_anywhere_are_read(engine: Any) -> None:
    for name in ("float32", "float16", "float8_e5m2"):
        x = np.random.default_rng(4).standard_normal(20_001).astype(dtype_of(name))
        assert_same(x[3:], on_a_device([as_tensor(x)[3:]], engine))


@on_each_fused
def test_a_step_with_more_leaves_than_may_wait_is_whole(engine: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(10, device=DEVICE)
    meter, step = new_meter(partial(engine, leaves=20, leaves_of_tensor=20)), new_step()
    add_all = prepared(meter, [x, x, x])
    for add in range(51):
        meter.add(step, add % 3, x, AT_ONCE)
        if add % 5 == 0:
            add_all(step, [x, x, x])
    assert_repeated(received(meter, meter.send_home(), step), x, 28)


@on_each_engine
def test_a_tensor_gives_the_same_bits_alone_and_together_with_others(engine: Any) -> None:
    tensors = [torch.randn(n, device=DEVICE) for n in (1, 0, 20_000, several_chunks(engine), 77)]
    tensors += [torch.randn(9_000, device=DEVICE).bfloat16()]
    apart, together = (on_a_device(tensors, engine, together=one) for one in (APART, TOGETHER))
    assert apart == together


@on_each_fused
def test_tensors_that_no_one_launch_could_hold_are_read_together(engine: Any) -> None:
    tensors = [torch.randn(n, device=DEVICE) for n in (20_000, 70_000, 90_000, 5, 0, 50_000)]
    few = partial(engine, leaves=8, leaves_of_tensor=8)
    apart, together = (on_a_device(tensors, few, together=one) for one in (APART, TOGETHER))
    assert apart == together


@on_each_engine
def test_of_tensors_read_together_some_may_be_missing_and_others_elsewhere(engine: Any) -> None:
    first = [torch.randn(n, device=DEVICE) for n in (20_000, 30_000, 7, several_chunks(engine))]
    now = [one + 1 for one in first]
    expected, meter = on_a_device(now, engine), new_meter(engine)
    add_all = prepared(meter, first)
    for here in ([0, 1, 2, 3], [1, 3], [0, 1, 2, 3], [2], [], [0, 1, 2, 3], [1, 3]):
        step = new_step()
        add_all(step, [one if row in here else None for row, one in enumerate(now)])
        copy = meter.send_home()
        if not here:
            assert copy is None
            continue
        assert copy is not None
        assert copy.rows == here
        assert received(meter, copy, step) == expected.take(here)


@on_each_engine
def test_what_is_expanded_or_permuted_or_empty_is_read_together_with_others(engine: Any) -> None:
    base = torch.randn(6, 400, device=DEVICE)
    tensors = [base[:1].expand(5, 400), base.T, base.view(-1)[2400:], base[2:]]
    meter, step = new_meter(engine), new_step()
    found = list[Found]()
    for row, one in enumerate(tensors):
        elements, copies = in_memory_order(one)
        found.append(Found.of(row, Reading(copies=copies), one, one, elements))
    assert all(map(meter.can_prepare, found))
    add_all = meter.prepare(found)
    for step in (new_step(), new_step()):
        add_all(step, tensors)
        table = received(meter, meter.send_home(), step)
        assert table.counts[:, 0].tolist() == [2000, 2400, 0, 1600]
        assert_same(base.cpu().numpy(), table.take([1]))
        assert_same(base[2:].cpu().numpy(), table.take([3]))
        assert_repeated(table.take([0]), base[0], 5)


@on_each_engine
def test_what_could_not_be_read_leaves_nothing_to_the_next_step(engine: Any) -> None:
    tensors = [torch.randn(n, device=DEVICE) for n in (30, 20_000)]
    meter = new_meter(engine)
    add_all = prepared(meter, tensors)
    with pytest.raises((IndexError, ValueError)):
        add_all(new_step(), tensors[:1])
    assert meter.send_home() is None
    step = new_step()
    add_all(step, tensors)
    assert received(meter, meter.send_home(), step) == on_a_device(tensors, engine)


@on_each_engine
def test_what_is_changed_later_is_read_as_it_was(engine: Any) -> None:
    x = torch.full((10,), 5.0, device=DEVICE)
    meter, step = new_meter(engine), new_step()
    prepared(meter, [x])(step, [x])
    meter.add(step, 1, x, LASTING)
    x.zero_()
    table = received(meter, meter.send_home(), step)
    assert table.moments[:, MOMENTS.index("sum")].tolist() == [50, 50]


@on_each_fused
def test_copies_of_an_expanded_tensor_count_as_elements(engine: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(500, device=DEVICE)
    meter, step = new_meter(engine), new_step()
    meter.add(step, 0, x, Reading(copies=7))
    assert_repeated(received(meter, meter.send_home(), step), x, 7)


# Triton's interpreter takes half a minute for it.
@pytest.mark.parametrize("engine", FUSED if DEVICE.type == "cuda" else [in_cuda])
def test_the_trial_before_training_finds_that_it_agrees(engine: Any) -> None:
    assert differences(DEVICE, engine(DEVICE), Plain(DEVICE)) == []


def test_the_trial_names_the_dtypes_that_differ() -> None:
    class Flushing(Plain):
        """As a device that flushes what is small to zero."""

        def add(self, row: int, tensor: torch.Tensor, how: Reading) -> None:
            if tensor.dtype == torch.float32:
                tensor = torch.where(tensor.abs() < 2.0**-126, 0.0, tensor)
            super().add(row, tensor, how)

    assert differences(DEVICE, Flushing(DEVICE), Plain(DEVICE)) == ["float32"]


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_cuda_kernels_compile_for_gpus(target: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from rankscope.agent.torch.cuda.launch import names
    from rankscope.agent.torch.cuda.nvrtc import compiled

    code = compiled(target)

    assert all(name.encode() in code for name in names())


def test_the_cuda_kernels_are_compiled_once_for_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from rankscope.agent.torch.cuda.launch import names
    from rankscope.agent.torch.cuda.nvrtc import kept

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = kept("compute_120")
    [file] = (tmp_path / "rankscope").iterdir()
    whole, before = file.read_bytes(), file.stat().st_mtime_ns
    assert all(name.encode() in code for name in names())
    assert b".ftz" not in code  # in PTX: subnormal numbers must not be flushed to zero
    assert kept("compute_120") == code
    assert file.stat().st_mtime_ns == before
    file.write_bytes(whole[:-1000])  # as a machine leaves it that goes down
    assert kept("compute_120") == code
    assert file.read_bytes() == whole
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")  # no folder can be made there
    assert kept("compute_120") == code


def test_the_triton_kernels_compile_for_accelerators() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_triton.py")
    subprocess.run([sys.executable, str(script)], check=True, env=environment)


@on_each_fused
def test_what_has_no_memory_is_refused_before_a_kernel_reads_it(engine: Any) -> None:
    x = torch.ones(8, device=DEVICE)
    x.untyped_storage().resize_(0)
    meter, step = new_meter(engine), new_step()
    with pytest.raises(RuntimeError, match="memory of a tensor was taken away"):
        meter.add(step, 0, x, AT_ONCE)
    with pytest.raises(RuntimeError, match="memory of a tensor was taken away"):
        prepared(meter, [x])(step, [x])
    meter.add(step, 1, torch.ones(3, device=DEVICE), AT_ONCE)
    assert received(meter, meter.send_home(), step).counts[:, 0].tolist() == [3]


@pytest.mark.skipif(
    not torch.backends.openmp.is_available() or len(os.sched_getaffinity(0)) < 2,
    reason="torch has one thread here",
)
def test_threads_of_torch_share_a_call_to_the_same_bits() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tensors = [torch.randn(n) for n in (1, 0, 500_000, 77, 2_000_003)]
    items = [item for x in tensors for item in cut(x.data_ptr(), x.numel(), 0)]
    try:
        threads = team()
        assert threads is not None
        alone = sketch_items(np.array(items, np.int64))
        for _ in range(20):
            shared = sketch_items(np.array(items, np.int64), threads)
            for one, other in zip(alone.columns(), shared.columns(), strict=True):
                assert np.array_equal(one, other)
    finally:
        torch.set_num_threads(before)


def test_where_no_folder_can_be_written_kernels_are_compiled_at_each_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As numba finds it in a read-only image: with `cache=True` it refuses."""
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator available"):
        njit(cache=True)(double_of)
    assert kept(njit, double_of)(21) == 42


def double_of(x: int) -> int:
    return 2 * x


def test_a_core_left_free_is_for_the_agents_own_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert team() is None
    finally:
        torch.set_num_threads(before)


def test_counts_are_exact_above_what_float32_can_count() -> None:
    assert by_numba(np.ones(2**24 + 1, np.float32)).histogram[0, 149] == 2**24 + 1


def test_subnormals_are_seen_though_torch_flushes_them() -> None:
    torch.set_flush_denormal(True)
    try:
        x = np.full(4, 1e-40, np.float32)
        table = by_numba(x)
    finally:
        torch.set_flush_denormal(False)
    assert np.array_equal(table.counts, sketch_array(x).counts)
    assert table.moments[0, MOMENTS.index("abs_min")] > 0


def test_moments_survive_huge_tiny_and_shifted_values() -> None:
    rng = np.random.default_rng(2)
    for x in (
        np.full(1000, 1e20, np.float32),
        np.full(1000, 1e-25, np.float32),
        (1e4 + rng.standard_normal(100_000)).astype(np.float32),
    ):
        exact = x.astype(np.float64)
        m2 = by_numba(x).moments[0, MOMENTS.index("m2")]
        assert m2 == pytest.approx(((exact - exact.mean()) ** 2).sum(), rel=1e-12, abs=1e-30)


def test_a_step_is_whole_though_another_thread_reads_its_last_tensors() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        meter = CpuMeter(SiteBook(lambda _: True), lambda _: None)
        x = torch.randn(20_000_000)
        for _ in range(5):
            step = new_step()
            meter.add(step, 0, x, LASTING)
            meter.flush()
            reader = threading.Thread(target=meter.barrier)  # as the training thread does
            reader.start()
            time.sleep(0.003)
            meter.settle(step)  # as the agent's does
            assert step.present[:1].tolist() == [True]
            assert step.table.counts[0, 0] == len(x)
            reader.join()
    finally:
        torch.set_num_threads(before)
