"""By which power of two a tensor is scaled best, against all of them tried by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rankscope.sketch import (
    FORMATS,
    FineExponents,
    SketchTable,
    Tally,
    best_shift,
    fit,
    number_format,
    overflow,
    sketch_array,
    subnormal,
    underflow,
)

formats = st.sampled_from([name for name in FORMATS if name != "float64"])
values = hnp.arrays(
    np.float32,
    st.integers(0, 40),
    elements=st.one_of(
        st.floats(width=32, allow_nan=False),
        st.sampled_from([0.0, 1.0, 0.25, 448.0, 464.0, 2.0**-10, -6.0, 2.0**-30]),
    ),
)


def tried(table: SketchTable, name: str) -> tuple[int, list[tuple[float, float]]]:
    """The best of all shifts by the definition, and what each loses."""
    target, losses = number_format(name), dict[int, tuple[float, float]]()
    for shift in range(-450, 450):
        if overflow(table, target, shift=shift).high[0] == 0:
            losses[shift] = (
                underflow(table, target, shift=shift).high[0],
                subnormal(table, target, shift=shift).high[0],
            )
    fewest = min(losses.values())
    best = min((shift for shift, loss in losses.items() if loss == fewest), key=abs)
    return best, list(losses.values())


@settings(max_examples=30)
@given(values, formats)
def test_the_best_shift_loses_least_without_overflow(x: NDArray[np.float32], name: str) -> None:
    table = sketch_array(x)
    best, _ = tried(table, name)

    assert best_shift(Tally.of(table), number_format(name)).tolist() == [best]


def test_what_fits_as_it_is_is_not_scaled_and_what_does_not_is_moved_into_the_format() -> None:
    rows = [[1.0, 0.5], [2.0**-20, 2.0**-22], [1e6, 1.0], [0.0], []]
    tally = Tally.of(SketchTable.concatenate([sketch_array(np.array(row)) for row in rows]))

    # 2^-22 becomes 2^-6, the smallest normal number; 1e6 < 464 x 2^12.
    assert best_shift(tally, number_format("float8_e4m3fn")).tolist() == [0, 16, -12, 0, 0]


def test_of_float64_nothing_overflows() -> None:
    tally = Tally.of(sketch_array(np.array([np.finfo(np.float64).max, 1.0])))

    assert best_shift(tally, number_format("float64")).tolist() == [0]


@given(st.lists(values, min_size=1, max_size=6), formats, st.data())
def test_united_rows_are_the_rows_of_all_elements(
    tensors: list[NDArray[np.float32]], name: str, data: st.DataObject
) -> None:
    group = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(tensors), max_size=6)))
    group = group[: len(tensors)]
    tally = Tally.of(SketchTable.concatenate([sketch_array(x) for x in tensors]))

    united = tally.united(group, 3)

    target = number_format(name)
    for number in range(3):
        some = [x for x, own in zip(tensors, group, strict=True) if own == number]
        whole = Tally.of(sketch_array(np.concatenate(some) if some else np.zeros(0)))
        mine = united.take(np.array([number]))
        for question in (overflow, underflow, subnormal):
            got, expected = question(mine, target), question(whole, target)
            assert (got.low, got.value, got.high) == (expected.low, expected.value, expected.high)


@given(values, formats, st.integers(-40, 40))
def test_shares_with_a_scale_bracket_what_is_counted(
    x: NDArray[np.float32], name: str, shift: int
) -> None:
    target, table = number_format(name), sketch_array(x)
    finite = np.abs(x[np.isfinite(x) & (x != 0)].astype(np.float64))
    scaled, total = np.ldexp(finite, shift), max(finite.size, 1)
    true = (
        np.count_nonzero(scaled >= target.overflow_threshold) / total,
        np.count_nonzero(scaled <= target.flush_threshold) / total,
        np.count_nonzero(scaled < target.smallest_normal) / total,
    )
    fine = fit(FineExponents(), FineExponents().count(x), target, shift=shift)
    for question, share in zip((overflow, underflow, subnormal), true, strict=True):
        for answer in (question(table, target, shift=shift), fine[question.__name__]):
            assert answer.low[0] - 1e-12 <= share <= answer.high[0] + 1e-12
            assert answer.low[0] <= answer.value[0] <= answer.high[0]


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float4_e2m1fn", "bfloat16"])
def test_many_rows_are_asked_as_one(name: str) -> None:
    dice = np.random.default_rng(1)
    tables = [sketch_array(dice.normal(size=30) * 2.0 ** dice.integers(-30, 30)) for _ in range(50)]
    target, shift = number_format(name), dice.integers(-9, 9, size=50)

    together = overflow(SketchTable.concatenate(tables), target, shift=shift)

    alone = [overflow(table, target, shift=int(s)) for table, s in zip(tables, shift, strict=True)]
    assert together.high.tolist() == [float(one.high[0]) for one in alone]
    assert together.low.tolist() == [float(one.low[0]) for one in alone]
