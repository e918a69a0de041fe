"""Numbers, ranks and times as people read them."""

from __future__ import annotations

import math

import pytest

from rankscope.viewer import words


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"),
        (1.5, "1.5"),
        (-2.0, "−2"),
        (1e-9, "1.000e−9"),
        (math.inf, "+∞"),
        (math.nan, "NaN"),
    ],
)
def test_numbers(value: float, expected: str) -> None:
    assert words.number(value) == expected


def test_whole_numbers_are_told_digit_by_digit_where_they_may_be_counts() -> None:
    assert words.count_or_number(1234567.0) == words.thousands(1234567)
    assert words.count_or_number(2.5) == "2.5"
    assert words.count_or_number(2.0**120) == "1.329e+36"
    assert words.count_or_number(math.inf) == "+∞"


def test_powers_of_two() -> None:
    assert words.as_power(2.0**-24) == "2⁻²⁴"
    assert words.as_power(65504.0) == "2¹⁶"
    assert words.power(-3.5) == "2⁻³·⁵"
    assert words.power(-0.01) == "2⁰"


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.99999, ">99.9 %"),
        (0.9961, "99.6 %"),
        (0.25, "25 %"),
        (3e-6, "3 ppm"),
        (2e-9, "2 ppb"),
    ],
)
def test_a_share_that_is_not_nothing_never_reads_as_nothing(part: float, expected: str) -> None:
    assert words.share(part) == expected


def test_ranks_are_told_in_runs() -> None:
    assert words.ranks([5, 0, 1, 2, 9]) == "0–2, 5, 9"
    assert words.rank_words([2]) == "rank 2"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3.0, "× 3"),
        (0.025, "÷ 40"),
        (2.0**125, "× 4.254e+37"),
        (2.0**200 * 0.6, "× ∞"),
        (2.0**-200 * 0.6, "÷ ∞"),
        (math.inf, "× ∞"),
        (0.0, "÷ ∞"),
    ],
)
def test_a_number_over_zero_is_endless(value: float, expected: str) -> None:
    assert words.ratio(value) == expected


def test_ages() -> None:
    assert [words.age(s) for s in (0.5, 42, 125, 7300, 200000)] == [
        "just now",
        "42 s ago",
        "2 min ago",
        "2 h ago",
        "2 days ago",
    ]


def test_a_long_name_keeps_its_end() -> None:
    assert words.shorten("model.layers.17.attention.wo", 12) == "…ttention.wo"
