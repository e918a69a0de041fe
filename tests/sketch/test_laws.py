"""The laws of the sketch, for any tensor of any dtype cut anywhere."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rankscope.sketch import COUNTS, MOMENTS, STATISTICS, SketchTable, derive, sketch_array
from rankscope.sketch.derive import SENTINEL
from rankscope.sketch.reference import glance_at

DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    *(name for name in dir(ml_dtypes) if name.startswith("float8_e")),
]


def bit_patterns(dtype: str) -> st.SearchStrategy[NDArray[Any]]:
    """Arrays of every bit pattern of `dtype`: NaNs of both signs, infinities, subnormals, all."""
    target = np.dtype(getattr(ml_dtypes, dtype, dtype))
    words = hnp.arrays(np.dtype(f"u{target.itemsize}"), st.integers(0, 60))
    return words.map(lambda array: array.view(target))


any_array = st.sampled_from(DTYPES).flatmap(bit_patterns)
plain_floats = hnp.arrays(
    np.float32, st.integers(1, 200), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
)


@given(any_array, st.data())
def test_the_sketch_of_a_concatenation_is_the_merge_of_the_sketches(
    x: NDArray[Any], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, x.size))
    merged = sketch_array(x[:cut]).merge(sketch_array(x[cut:], start=cut))
    whole = sketch_array(x)
    assert np.array_equal(whole.counts, merged.counts)
    assert np.array_equal(whole.histogram, merged.histogram)
    assert np.array_equal(whole.checksum, merged.checksum)
    assert np.array_equal(whole.moments[:, 7:], merged.moments[:, 7:])


@given(plain_floats, st.data())
def test_sums_and_moments_of_a_concatenation_agree_to_rounding(
    x: NDArray[np.float32], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, x.size))
    merged = sketch_array(x[:cut]).merge(sketch_array(x[cut:], start=cut)).moments[0]
    exact = sketch_array(x).moments[0]
    deviation = np.abs(x.astype(np.float64) - x.astype(np.float64).mean())
    scale = {
        "sum": exact[MOMENTS.index("l1")],
        "projection": exact[MOMENTS.index("l1")],
        "l1": exact[MOMENTS.index("l1")],
        "m2": (deviation**2).sum(),
        "m3": (deviation**3).sum(),
        "m4": (deviation**4).sum(),
        "s8": exact[MOMENTS.index("s8")],
    }
    mean_error = 1e-15 * np.abs(x).max() * np.array([0, 0, 2, 3, 4]) * x.size
    for name, size in scale.items():
        column = MOMENTS.index(name)
        order = {"m2": 2, "m3": 3, "m4": 4}.get(name, 0)
        slack = mean_error[order] * max(deviation.max(), 1e-300) ** max(order - 1, 0)
        assert abs(merged[column] - exact[column]) <= 1e-12 * size + slack, name


any_sketch = any_array.map(sketch_array) | any_array.map(glance_at)


@given(any_sketch, any_sketch, any_sketch)
def test_merge_is_associative_and_commutative(
    a: SketchTable, b: SketchTable, c: SketchTable
) -> None:
    left, right, swapped = a.merge(b).merge(c), a.merge(b.merge(c)), b.merge(a).merge(c)
    for other in (right, swapped):
        assert np.array_equal(left.counts, other.counts)
        assert np.array_equal(left.histogram, other.histogram)
        assert np.array_equal(left.checksum, other.checksum)
        assert np.array_equal(left.moments[:, 7:], other.moments[:, 7:])
        l1 = left.moments[:, 1]
        with np.errstate(all="ignore"):
            same = np.abs(left.moments[:, 0] - other.moments[:, 0]) <= 1e-12 * l1
        assert np.all(same | ~np.isfinite(l1))


@example(sketch_array(np.full(2, 1e200)))  # its square is beyond float64
@given(any_sketch)
def test_the_empty_sketch_is_the_identity(sketch: SketchTable) -> None:
    nothing = SketchTable.empty(1)
    for merged in (sketch.merge(nothing), nothing.merge(sketch)):
        for mine, theirs in zip(sketch.columns(), merged.columns(), strict=True):
            assert np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")


@pytest.mark.parametrize("look", [sketch_array, glance_at])
@given(any_array)
def test_every_element_is_counted_once(look: Any, x: NDArray[Any]) -> None:
    table = look(x)
    counted = dict(zip(COUNTS, table.counts[0].tolist(), strict=True))
    elsewhere = sum(
        counted[name] for name in ("zero", "nan", "pos_inf", "neg_inf", "under", "over", "unbinned")
    )
    assert table.histogram.sum() + elsewhere == counted["count"] == x.size


@given(any_array)
def test_a_nan_and_an_infinity_destroy_nothing(x: NDArray[Any]) -> None:
    dirty = np.concatenate([x.astype(np.float64), [np.nan, np.inf, -np.inf]])
    clean = x.astype(np.float64)
    clean = clean[np.isfinite(clean)]
    for statistic in ("min", "max", "abs_max"):
        expected = derive(sketch_array(clean), statistic)
        assert np.array_equal(derive(sketch_array(dirty), statistic), expected, equal_nan=True)


@pytest.mark.parametrize("x", [[np.nan], [np.inf, -np.inf, np.nan]])
def test_of_elements_none_of_which_is_finite_nothing_but_counts_is_known(x: list[float]) -> None:
    known = ("nonfinite", "nan", "pos_inf", "neg_inf", "count", "seen_share")
    table, empty = sketch_array(np.array(x, np.float32)), sketch_array(np.zeros(0, np.float32))
    for statistic in STATISTICS:
        assert np.isnan(derive(table, statistic)[0]) == (statistic not in known), statistic
    for statistic in ("sum", "l1", "l2"):
        assert derive(empty, statistic)[0] == 0
        assert derive(table.merge(sketch_array(np.zeros(1, np.float32))), statistic)[0] == 0


@given(st.lists(plain_floats, min_size=1, max_size=6), st.data())
def test_merging_into_named_rows_is_merging_one_by_one(
    arrays: list[NDArray[np.float32]], data: st.DataObject
) -> None:
    rows = data.draw(
        st.lists(st.integers(0, 2), min_size=len(arrays), max_size=len(arrays)).map(np.array)
    )
    table = SketchTable.empty(3)
    table.merge_at(rows.astype(np.intp), SketchTable.concatenate([sketch_array(x) for x in arrays]))
    for row in range(3):
        expected = SketchTable.empty(1)
        for x in (x for x, r in zip(arrays, rows, strict=True) if r == row):
            expected = expected.merge(sketch_array(x))
        assert table.take([row]) == expected


@given(any_array, st.integers(1, 5))
def test_repeating_a_sketch_is_merging_it_with_itself(x: NDArray[Any], copies: int) -> None:
    one = sketch_array(x)
    merged = one
    for _ in range(copies - 1):
        merged = merged.merge(one)
    repeated = one.repeat(np.array([copies]))
    assert np.array_equal(repeated.counts, merged.counts)
    assert np.array_equal(repeated.histogram, merged.histogram)
    assert np.array_equal(repeated.checksum, merged.checksum)
    np.testing.assert_allclose(repeated.moments, merged.moments, rtol=1e-13, equal_nan=True)


def test_tables_of_different_length_do_not_merge() -> None:
    with pytest.raises(ValueError, match="equal length merge, got 1 and 2 rows"):
        SketchTable.empty(1).merge(SketchTable.empty(2))


def test_the_checksum_sees_a_flipped_bit_and_swapped_shards() -> None:
    x = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    flipped = x.copy()
    flipped.view(np.uint32)[777] ^= 1
    swapped = np.concatenate([x[10_000:], x[:10_000]])
    sums = {int(sketch_array(y).checksum[0]) for y in (x, flipped, swapped)}
    assert len(sums) == 3


def test_projections_of_addends_add_to_that_of_the_sum() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 50_000))
    column = MOMENTS.index("projection")
    parts = [sketch_array(y).moments[0, column] for y in (a, b, a + b)]
    assert parts[0] + parts[1] == pytest.approx(parts[2], abs=1e-9)


def test_only_real_numbers_are_summarised() -> None:
    with pytest.raises(TypeError, match="got dtype complex128"):
        sketch_array(np.zeros(3, np.complex128))


@given(plain_floats)
def test_what_a_sentinel_did_not_see_is_not_told(x: NDArray[np.float32]) -> None:
    whole, seen = sketch_array(x), glance_at(x)
    for statistic in STATISTICS:
        expected = derive(whole, statistic) if statistic in (*SENTINEL, "seen_share") else [np.nan]
        assert np.array_equal(derive(seen, statistic), expected, equal_nan=True), statistic


@given(plain_floats, st.integers(1, 1000))
def test_sums_of_a_sample_stand_for_all_elements(x: NDArray[np.float32], unseen: int) -> None:
    whole, sample = sketch_array(x), sketch_array(x)
    sample.counts[0, COUNTS.index("unseen")] = unseen
    times = (x.size + unseen) / x.size
    for statistic, power in (
        ("sum", 1),
        ("l1", 1),
        ("l2", 0.5),
        ("rms", 0),
        ("mean", 0),
        ("max", 0),
    ):
        expected = derive(whole, statistic) * times**power
        assert derive(sample, statistic) == pytest.approx(expected, rel=1e-12), statistic
    assert derive(sample, "seen_share") == pytest.approx(1 / times)


@given(plain_floats, plain_floats)
def test_where_some_were_left_to_the_sentinel_only_what_it_sees_is_told(
    x: NDArray[np.float32], y: NDArray[np.float32]
) -> None:
    mixed, whole = glance_at(x).merge(sketch_array(y)), sketch_array(np.concatenate([x, y]))
    for statistic in STATISTICS:
        expected = derive(whole, statistic) if statistic in (*SENTINEL, "seen_share") else [np.nan]
        assert np.array_equal(derive(mixed, statistic), expected, equal_nan=True), statistic
