"""Sketches in compiled functions agree with the reference, by the CPU kernels and by XLA's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from rankscope.agent.jax.engine import kernels_for, sketch
from rankscope.agent.jax.ingraph import sketch_by_xla
from rankscope.agent.jax.native import agrees
from rankscope.agent.jax.pieces import Piece
from rankscope.agent.jax.rows import WORDS, empty_rows, merge, merge_all, table_of
from rankscope.agent.jax.shards import per_device
from rankscope.agent.strides import region_of
from rankscope.sketch import MOMENTS, SketchTable, sketch_array
from rankscope.sketch.elements import BLOCK

Rows = Callable[..., jax.Array]

NARROW = (
    "bfloat16",
    "float16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
)
LENGTH = 100
"""Elements of arbitrary arrays: each length is compiled anew."""
EXTREMES = MOMENTS.index("min")


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


@partial(jax.jit, static_argnums=(1,))
def _by_xla(x: jax.Array, whole: tuple[int, ...] | None, *offsets: jax.Array) -> jax.Array:
    return sketch_by_xla(x, None if whole is None else Piece(offsets, whole))


def by_xla(x: jax.Array, piece: Piece | None = None) -> jax.Array:
    with jax.enable_x64(True):
        if piece is None:
            return _by_xla(x, None)
        return _by_xla(x, piece.whole, *map(jnp.int64, piece.offsets))


_by_kernels: Rows = jax.jit(sketch)


def by_kernels(x: jax.Array, piece: Piece | None = None) -> jax.Array:
    return _by_kernels(x) if piece is None else jax.jit(partial(sketch, piece=piece))(x)


@pytest.fixture(scope="module", autouse=True)
def as_users_compile() -> Iterator[None]:
    """With all passes of LLVM, which may contract what XLA has not."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


engines = pytest.mark.parametrize("engine", [by_kernels, by_xla])
NARROW_BY_ENGINE = [(by_xla, name) for name in NARROW] + [
    (by_kernels, name) for name in NARROW if kernels_for(dtype_of(name))
]


def bits_of(name: str) -> st.SearchStrategy[NDArray[Any]]:
    """Arrays of any bit patterns."""
    dtype = dtype_of(name)
    width = 4 if name == "float4_e2m1fn" else 8 * dtype.itemsize
    word = st.integers(0, 2**width - 1)
    words = st.lists(word, min_size=LENGTH, max_size=LENGTH)
    return words.map(lambda some: np.array(some, f"u{dtype.itemsize}").view(dtype))


def assert_agrees(rows: Any, expected: SketchTable, x: NDArray[Any]) -> None:
    """What is exact bit for bit; sums to 1e-12 of the sum of the magnitudes of their terms."""
    table = table_of(rows)
    assert np.array_equal(table.counts, expected.counts)
    assert np.array_equal(table.histogram, expected.histogram)
    assert np.array_equal(table.checksum, expected.checksum)
    assert_sums_agree(table, expected, x)


def assert_sums_agree(table: SketchTable, expected: SketchTable, x: NDArray[Any]) -> None:
    assert np.array_equal(table.moments[:, EXTREMES:], expected.moments[:, EXTREMES:])
    with np.errstate(all="ignore"):
        values = x.astype(np.float64)
        finite = values[np.isfinite(values)]
        spread = np.abs(finite - finite.mean()) if finite.size else finite
        largest, l1 = np.abs(finite).max(initial=0.0), np.abs(finite).sum()
        scales = {"sum": l1, "l1": l1, "projection": l1}
        rounding = finite.size * 1e-14 * largest
        for power in (2, 3, 4):
            slack = rounding * (spread.max(initial=0.0) + 1e-14 * largest) ** (power - 1)
            scales[f"m{power}"] = (spread**power).sum() + 1e12 * slack
    for name, scale in scales.items():
        mine, theirs = (t.moments[0, MOMENTS.index(name)] for t in (table, expected))
        assert mine == theirs or abs(mine - theirs) <= 1e-12 * scale, name
    s8 = MOMENTS.index("s8")
    assert table.moments[0, s8] == pytest.approx(expected.moments[0, s8], rel=1e-12)


@engines
@settings(deadline=None, max_examples=25)
@given(x=bits_of("float32"))
@example(x=np.full(LENGTH, 1e20, np.float32))
@example(x=np.full(LENGTH, 1e-25, np.float32))
@example(x=np.full(LENGTH, -1e-45, np.float32))
@example(x=np.zeros(LENGTH, np.float32))
@example(x=np.full(LENGTH, -0.0, np.float32))
@example(x=np.linspace(1e4, 1e4 + 1, LENGTH, dtype=np.float32))
@example(x=np.array([np.nan, np.inf, -np.inf, 3.0] * (LENGTH // 4), np.float32))
def test_any_float32_is_sketched_as_the_reference_does(engine: Rows, x: NDArray[Any]) -> None:
    assert_agrees(engine(x), sketch_array(x), x)


@pytest.mark.parametrize(("engine", "name"), NARROW_BY_ENGINE)
@settings(deadline=None, max_examples=6)
@given(data=st.data())
def test_any_narrow_float_is_sketched_as_the_reference_does(
    engine: Rows, name: str, data: st.DataObject
) -> None:
    x = data.draw(bits_of(name))

    assert_agrees(engine(jnp.asarray(x)), sketch_array(x), x)


@engines
def test_float64_is_sketched_where_it_is_on(engine: Rows) -> None:
    x = np.random.default_rng(0).standard_normal(LENGTH) * 10.0 ** np.arange(-50, 50)
    x[:4] = np.nan, 5e-324, 1e-310, 1e300
    with jax.enable_x64(True):
        rows = engine(jnp.asarray(x))

    table, expected = table_of(rows), sketch_array(x)
    assert np.array_equal(table.counts, expected.counts)
    assert np.array_equal(table.histogram, expected.histogram)
    assert np.array_equal(table.checksum, expected.checksum)
    assert np.array_equal(table.moments[:, EXTREMES:], expected.moments[:, EXTREMES:])


@engines
@pytest.mark.parametrize("shape", [(), (3, 0), (70_001,)])
def test_any_shape_is_sketched(engine: Rows, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape, np.float32) + np.float32(3)

    assert_agrees(engine(x), sketch_array(x), x)


def test_more_equal_values_are_counted_than_float32_could() -> None:
    n = (1 << 24) + 3
    table = table_of(by_kernels(jnp.full(n, 1.5, jnp.float8_e5m2)))

    assert table.histogram.max() == n
    assert table.counts[0, 0] == n


@engines
def test_a_piece_has_the_keys_of_its_place_in_the_whole(engine: Rows) -> None:
    whole = np.random.default_rng(0).standard_normal((6, 300, 40), np.float32)
    offsets = (2, 100, 8)
    part = whole[2:5, 100:200, 8:24]
    summed = np.zeros(1, np.uint64)
    for at in range(3):
        region = region_of((100, 16), offsets[1:], (300, 40))
        assert region is not None
        origin = (offsets[0] + at) * 300 * 40 + region.origin
        moved = type(region)(origin, region.run, region.pitch)
        summed += sketch_array(part[at], region=moved).checksum

    rows = engine(jnp.asarray(part), piece=Piece(offsets, whole.shape))

    assert np.array_equal(table_of(rows).checksum, summed)


@pytest.mark.parametrize("piece", [None, Piece((1, 500), (9, 9000))])
def test_large_arrays_are_sketched_in_chunks(piece: Piece | None) -> None:
    x = np.random.default_rng(0).standard_normal((5, 5000), np.float32)
    with jax.enable_x64(True):
        rows = jax.jit(partial(sketch_by_xla, piece=piece, chunk=BLOCK))(jnp.asarray(x))
    region = None if piece is None else region_of(x.shape, (1, 500), piece.whole)

    assert_agrees(rows, sketch_array(x, region=region), x)


def test_the_kernels_are_trusted_on_the_cpu() -> None:
    assert agrees()
    assert kernels_for(np.dtype(np.float32)) is not None
    assert kernels_for(dtype_of("float4_e2m1fn")) is None


def test_the_kernels_are_tried_apart_from_what_is_traced() -> None:
    trusted: list[bool] = []

    def traced(x: jax.Array) -> jax.Array:
        agrees.cache_clear()
        trusted.append(agrees())
        return x

    with jax.set_mesh(jax.make_mesh((8,), ("dp",))):
        jax.jit(jax.shard_map(traced, out_specs=P("dp")))(jax.device_put(jnp.ones(8), P("dp")))

    assert trusted == [True]


def test_xla_s_own_code_can_be_lowered_for_other_devices() -> None:
    some = jax.ShapeDtypeStruct((1000,), jnp.bfloat16)
    with jax.enable_x64(True):
        exported = jax.export.export(_by_xla, platforms=("cuda", "rocm", "tpu"))(some, None)

    assert exported.platforms == ("cuda", "rocm", "tpu")


def test_what_is_no_float_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Only real floating-point numbers .* got dtype int32"):
        sketch(jnp.arange(3))


def test_a_piece_tells_its_place_along_each_axis() -> None:
    with pytest.raises(ValueError, match="got 1 offsets and a shape of 2 axes"):
        Piece((0,), (3, 4))


def row_of(x: NDArray[Any]) -> jax.Array:
    return by_kernels(jnp.asarray(x))


numbers = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, np.nan, np.inf, 1e-40])
arrays = st.lists(numbers, min_size=5, max_size=5).map(lambda some: np.array(some, np.float32))


@settings(deadline=None, max_examples=25)
@given(a=arrays, b=arrays)
def test_merge_is_that_of_tables(a: NDArray[Any], b: NDArray[Any]) -> None:
    mine = table_of(jax.jit(merge)(row_of(a), row_of(b)))
    theirs = table_of(row_of(a)).merge(table_of(row_of(b)))

    assert np.array_equal(mine.counts, theirs.counts)
    assert np.array_equal(mine.histogram, theirs.histogram)
    assert np.array_equal(mine.checksum, theirs.checksum)
    assert_sums_agree(mine, theirs, np.concatenate([a, b]))


def test_nothing_merged_changes_nothing() -> None:
    row = row_of(np.array([3.0, -1e-30], np.float32))

    assert table_of(merge(row, jnp.asarray(empty_rows()))) == table_of(row)
    assert table_of(empty_rows(2)) == SketchTable.empty(2)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_many_rows_merge_into_one(rows: int) -> None:
    x = np.random.default_rng(0).standard_normal((rows, 7), np.float32)
    rows_of_all = jax.vmap(sketch)(jnp.asarray(x))[:, None]
    merged = table_of(jax.jit(merge_all, static_argnums=1)(rows_of_all, 2))

    assert merged.counts[0, 0] == x.size
    assert np.array_equal(merged.histogram, sketch_array(x).histogram)


def test_a_scan_makes_a_row_each_time_under_remat_and_gradients() -> None:
    @jax.checkpoint
    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jnp.tanh(x @ weight)
        return x, sketch(x)

    @partial(jax.value_and_grad, argnums=1, has_aux=True)
    def loss(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, rows = lax.scan(layer, x, weights)
        return x.sum(), rows

    x, weights = jnp.ones((4, 8)), jax.random.normal(jax.random.key(0), (3, 8, 8))
    (_, rows), _ = jax.jit(loss)(x, weights)

    assert rows.shape == (3, WORDS)
    for row, weight in zip(rows, weights, strict=True):
        x = jnp.tanh(x @ weight)
        assert np.array_equal(table_of(row).histogram, sketch_array(np.asarray(x)).histogram)


SPECS = [P("dp", "tp"), P(("dp", "tp")), P(None, "tp"), P("tp"), P()]


@pytest.mark.parametrize("types", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", SPECS)
def test_each_device_sketches_its_shard_and_nothing_is_sent(types: AxisType, spec: P) -> None:
    mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(types, types))
    sharding = NamedSharding(mesh, spec)
    x = np.random.default_rng(0).standard_normal((64, 48), np.float32)
    placed = jax.device_put(x, sharding)
    told = sharding if types is AxisType.Auto else None

    compiled = jax.jit(lambda x: per_device(x, told)).lower(placed).compile()
    rows = compiled(placed)

    assert rows.shape == (4, 2, WORDS)
    program = compiled.as_text() or ""
    assert not any(word in program for word in ("all-", "collective", "reduce-scatter"))
    for shard in rows.addressable_shards:
        where = sharding.devices_indices_map(x.shape)[shard.device]
        offsets = [cut.start or 0 for cut in where]
        region = region_of(x[where].shape, offsets, x.shape)
        assert_agrees(shard.data, sketch_array(x[where], region=region), x[where])


def test_an_unknown_sharding_is_asked_for() -> None:
    mesh = jax.make_mesh((8,), ("dp",), axis_types=(AxisType.Auto,))
    x = jax.device_put(jnp.ones(8), NamedSharding(mesh, P("dp")))

    with pytest.raises(ValueError, match=r"shape \(8,\) is not known .*: pass its NamedSharding"):
        jax.jit(per_device)(x)
