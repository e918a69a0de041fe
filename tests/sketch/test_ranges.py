"""What the exponent histogram answers about formats and quantiles, against real casts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rankscope.sketch import (
    FORMATS,
    SettingError,
    derive,
    number_format,
    overflow,
    quantile,
    sketch_array,
    subnormal,
    underflow,
)

narrow_formats = st.sampled_from([name for name in FORMATS if name not in ("float64", "float32")])
values = hnp.arrays(np.float32, st.integers(1, 100), elements=st.floats(width=32, allow_nan=False))


@given(values, narrow_formats)
def test_underflow_and_overflow_bracket_a_real_cast(x: NDArray[np.float32], name: str) -> None:
    target, table = number_format(name), sketch_array(x)
    finite = x[np.isfinite(x) & (x != 0)].astype(np.float64)
    total = max(finite.size, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = finite.astype(np.dtype(getattr(ml_dtypes, name, name))).astype(np.float64)
    lost = np.count_nonzero(cast == 0) / total
    beyond = np.count_nonzero(np.abs(finite) >= target.overflow_threshold) / total
    clipped = np.count_nonzero(~np.isfinite(cast)) / total
    assert target.saturates or clipped == beyond
    for answer, true in ((underflow(table, target), lost), (overflow(table, target), beyond)):
        assert answer.low[0] - 1e-12 <= true <= answer.high[0] + 1e-12
        assert answer.low[0] <= answer.value[0] <= answer.high[0]


@given(values, narrow_formats, st.integers(-8, 8))
def test_a_power_of_two_scale_shifts_the_answer_exactly(
    x: NDArray[np.float32], name: str, shift: int
) -> None:
    target = number_format(name)
    scaled = sketch_array(np.ldexp(x.astype(np.float64), shift))
    shifted = overflow(sketch_array(x), target, shift=shift)
    assert shifted.high[0] == pytest.approx(overflow(scaled, target).high[0])


@given(values, st.floats(0, 1))
def test_quantiles_lie_within_their_bounds(x: NDArray[np.float32], share: float) -> None:
    finite = np.abs(x[np.isfinite(x)]).astype(np.float64)
    answer = quantile(sketch_array(x), share)
    if finite.size == 0:
        assert np.isnan(answer.value[0])
        return
    true = np.quantile(finite, share, method="inverted_cdf")
    assert answer.low[0] <= true <= answer.high[0]


def test_subnormals_of_the_own_dtype_are_exact() -> None:
    x = np.array([2.0**-14, 2.0**-15, 2.0**-24, 0, 1], np.float16)
    assert derive(sketch_array(x), "subnormal_share")[0] == 2 / 5
    assert subnormal(sketch_array(x), number_format("float16")).low[0] == 2 / 4


@pytest.mark.parametrize(
    ("name", "largest", "normal", "smallest"),
    [
        ("float8_e4m3fn", 448, 2.0**-6, 2.0**-9),
        ("float8_e5m2", 57344, 2.0**-14, 2.0**-16),
        ("float16", 65504, 2.0**-14, 2.0**-24),
    ],
)
def test_format_lines_are_drawable(
    name: str, largest: float, normal: float, smallest: float
) -> None:
    target = number_format(name)
    assert (target.max, target.smallest_normal) == (largest, normal)
    assert target.smallest_subnormal == smallest


def test_unknown_names_list_near_ones() -> None:
    with pytest.raises(SettingError, match="did you mean float8_e4m3fn"):
        number_format("float8_e4m3fm")
    with pytest.raises(SettingError, match="rms"):
        derive(sketch_array(np.ones(1)), "rmsd")
    with pytest.raises(SettingError, match="between 0 and 1, got 2"):
        quantile(sketch_array(np.ones(1)), 2)
