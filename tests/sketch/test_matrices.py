"""Covariances merge as if they were of one set of samples; what a spectrum tells, and does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.sketch import (
    Weighted,
    length_of,
    merged,
    read,
    read_values,
    spectrum,
    square,
)


def covariance(x: np.ndarray) -> Weighted:
    mean = x.mean(axis=0)
    upper = np.triu_indices(x.shape[1])
    centred = x - mean
    return Weighted(len(x), np.concatenate([mean, (centred.T @ centred)[upper]]))


def gram(x: np.ndarray) -> Weighted:
    return Weighted(len(x), (x.T @ x)[np.triu_indices(x.shape[1])])


def told(statistic: str, x: np.ndarray, of: str = "covariance") -> float:
    part = covariance(x) if of == "covariance" else gram(x)
    found, reason = spectrum(of, x.shape[1], part)  # pyright: ignore[reportArgumentType]
    assert not reason
    [value] = read(statistic, found, of)  # pyright: ignore[reportArgumentType]
    return value


@settings(max_examples=30)
@given(
    st.integers(1, 6),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.sampled_from([0.0, 1e6]),
    st.integers(0, 2**32 - 1),
)
def test_parts_make_up_the_covariance_of_the_whole(
    features: int, sizes: list[int], offset: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parts = [offset + rng.standard_normal((size, features)) for size in sizes]
    found = merged("covariance", "mean", map(covariance, parts))
    whole = covariance(np.concatenate(parts))

    assert found.weight == whole.weight
    assert len(found.array) == length_of("covariance", features)
    np.testing.assert_allclose(found.array, whole.array, rtol=1e-9, atol=1e-8)


def test_gram_matrices_and_values_merge() -> None:
    x = np.random.default_rng(0).standard_normal((9, 3))
    found = merged("gram", "mean", [gram(x[:4]), gram(x[4:])])
    np.testing.assert_allclose(square(found.array, 3), x.T @ x, rtol=1e-12)

    parts = [Weighted(1, np.array([1.0, 5.0])), Weighted(3, np.array([2.0, 4.0]))]
    expected = {"mean": [1.75, 4.25], "sum": [3, 9], "minimum": [1, 4], "maximum": [2, 5]}
    for merge, values in expected.items():
        assert merged("values", merge, parts).array.tolist() == values  # pyright: ignore[reportArgumentType]


def test_the_golden_cases_of_taiyi() -> None:
    x = np.array([[1.0, 2], [3, -4], [0, 1], [2, 2]])
    w = np.array([[1.0, 0], [0, 1], [-3, -3]])

    assert told("largest", x) == pytest.approx(9.0917423)
    assert told("stable_rank", x) == pytest.approx(1.0907334)
    assert told("condition", x) == pytest.approx(11.0213, rel=1e-5)
    assert told("condition20", x) == 1
    assert told("condition50", x) == told("condition80", x) == told("condition", x)
    assert told("effective_rank", x @ w.T, "gram") == pytest.approx(1.71423, rel=1e-5)


def test_a_gram_matrix_tells_singular_values() -> None:
    x = np.random.default_rng(1).standard_normal((20, 4))
    levels = np.linalg.svd(x, compute_uv=False)

    assert told("largest", x, "gram") == pytest.approx(levels[0])
    assert told("trace", x, "gram") == pytest.approx((x**2).sum())
    assert told("stable_rank", x, "gram") == pytest.approx((x**2).sum() / levels[0] ** 2)
    assert told("condition", x, "gram") == pytest.approx(levels[0] / levels[-1])


def test_what_has_no_spectrum_says_why() -> None:
    spoilt = covariance(np.array([[1.0, 2], [np.nan, 4], [5, 6]]))
    for part, words in (
        (spoilt, "not finite"),
        (covariance(np.ones((1, 2))), "needs two samples, and there is 1"),
    ):
        found, reason = spectrum("covariance", 2, part)
        assert words in reason
        assert np.isnan(read("largest", found, "covariance")).all()


def test_a_direction_without_variance_has_no_condition() -> None:
    x = np.outer(np.arange(5.0), [1.0, 2.0])

    assert told("condition", x) == np.inf
    assert told("stable_rank", x) == pytest.approx(1)
    assert np.isnan(told("stable_rank", np.zeros((3, 2))))
    assert told("trace", np.zeros((3, 2))) == 0


def test_values_tell_cosines_ratios_and_shares() -> None:
    a, b = np.array([3.0, 4]), np.array([4.0, 3])
    products = np.array([a @ b, a @ a, b @ b])

    assert read_values("cosine", products, 0).tolist() == pytest.approx([24 / 25])
    assert read_values("ratio", np.array([1.0, 4]), 0).tolist() == [0.25]
    assert read_values("share_at_most", np.array([-3.0, -2, 0, 1]), -2).tolist() == [0.5]
    assert np.isnan(read_values("share_at_most", np.array([-3.0, np.nan]), -2)).all()
    with np.errstate(all="ignore"):
        assert np.isnan(read_values("cosine", np.zeros(3), 0)).all()
