"""What an imported LogFrame says, held against what the tensors were."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from rankscope.logframe import import_logframe, validate
from rankscope.logframe.sketches import Sketches, sketches
from rankscope.sketch import (
    COUNTS,
    FIRST_EXPONENT,
    MAIN,
    Tally,
    best_shift,
    derive,
    number_format,
    overflow,
    sketch_array,
    subnormal,
    underflow,
)
from rankscope.store import Run, open_run

from .tandv import build, exponent_counts, scalar_stats

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "sketch" / "golden_cases.json").read_text(encoding="utf-8")
)
HISTOGRAMS = [
    case
    for case in CASES
    if case["op"] == "exponent_histogram" and isinstance(case["input"], list) and case["input"]
    if isinstance(case["seed"], dict)
]
FORMATS = ("float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
NARROW = slice(-17 - FIRST_EXPONENT, 16 - FIRST_EXPONENT)


QUESTIONS = {"overflow": overflow, "underflow": underflow, "subnormal": subnormal}


def true_shares(name: str, *tensors: NDArray[Any], shift: int = 0) -> dict[str, float]:
    """Every element looked at."""
    target, values = number_format(name), np.concatenate([x.ravel() for x in tensors])
    seen = np.abs(values[np.isfinite(values) & (values != 0)].astype(np.float64))
    seen = np.ldexp(seen, shift)
    lost = {
        "overflow": seen >= target.overflow_threshold,
        "underflow": seen <= target.flush_threshold,
        "subnormal": seen < target.smallest_normal,
    }
    return {question: some.mean() if some.size else 0.0 for question, some in lost.items()}


def tensor_of(case: dict[str, Any]) -> NDArray[Any]:
    return np.array([float(value) for value in case["input"]], case["dtype"])


def known_of(*tensors: NDArray[Any], tensor_type: str = "Activation") -> Sketches:
    """What is known of tensors through a LogFrame."""
    rows = [(step, "layer", tensor_type, tensor) for step, tensor in enumerate(tensors)]
    return sketches(validate(build(rows)))


def count(known: Sketches, name: str, row: int = 0) -> int:
    return int(known.table.counts[row, COUNTS.index(name)])


def told(known: Sketches, statistic: str, row: int = 0) -> float:
    return float(known.told[row, MAIN.index(statistic)])


@pytest.mark.parametrize("case", HISTOGRAMS, ids=lambda case: case["id"])
def test_the_logs_of_these_tests_are_those_of_the_seed(case: dict[str, Any]) -> None:
    counts = exponent_counts(tensor_of(case))

    assert {str(label): n for label, n in counts.items() if n} == case["seed"]


@pytest.mark.parametrize("case", HISTOGRAMS, ids=lambda case: case["id"])
def test_golden_histograms_come_to_be_right_as_far_as_they_can(case: dict[str, Any]) -> None:
    right = case["right"]
    words = {"zero": "zero", "nan": "nan", "pos_inf": "+inf_val", "neg_inf": "-inf_val"}
    words |= {"under": "under", "over": "over"}

    known = known_of(tensor_of(case))

    bins = {int(n): count for n, count in right.get("bins", {}).items()}
    found = known.table.histogram[0]
    unseen = count(known, "unseen")
    for exponent, expected in bins.items():
        assert 0 <= expected - found[exponent - FIRST_EXPONENT] <= unseen
    for ours, theirs in words.items():
        assert 0 <= right.get(theirs, 0) - count(known, ours) <= unseen
    assert count(known, "count") + unseen == len(case["input"])
    assert found.sum() + sum(count(known, name) for name in words) == count(known, "count")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.25, 0.0], {"zero": 2, "unseen": 0}),  # the largest is below 0.5
        ([0.5, 0.75, 4.0], {"zero": 0, "unseen": 0}),  # the smallest is not 0
        ([0.0, 0.0], {"zero": 2, "unseen": 0}),
        ([0.0, 0.5, 0.0, 2.0], {"zero": 1, "unseen": 2}),  # one is 0, of two nobody knows
        ([1.0, np.nan, 0.5], {"nan": 1, "zero": 0, "unseen": 1}),
        ([1.0, np.inf, 0.5], {"pos_inf": 1, "neg_inf": 0, "unseen": 1}),
        ([1.0, -np.inf], {"pos_inf": 0, "neg_inf": 1, "unseen": 0}),
        ([-np.inf, np.inf, 0.0], {"pos_inf": 1, "neg_inf": 1, "unseen": 1}),
        ([2.0, 4.0], {"zero": 0, "nan": 0, "unseen": 0}),
    ],
)
def test_statistics_tell_what_is_in_the_mixed_column(
    values: Sequence[float], expected: dict[str, int]
) -> None:
    known = known_of(np.array(values, np.float32))

    assert {name: count(known, name) for name in expected} == expected


def test_what_is_not_known_is_never_zero() -> None:
    known = known_of(np.array([0.0, 0.5, 2.0], np.float32), np.array([np.nan, 1.0], np.float32))

    for row in (0, 1):
        assert np.isnan(told(known, "zero_share", row))
        for statistic in ("min", "max", "skewness", "kurtosis"):
            assert np.isnan(told(known, statistic, row))
    assert np.isnan(derive(known.table, "negative_share")).all()
    assert np.isnan(derive(known.table, "sum")).all()
    assert np.isnan(told(known, "abs_min"))  # the smallest that is not zero
    assert [told(known, "nonfinite", row) for row in (0, 1)] == [0, 1]  # at least one
    assert known.is_open.tolist() == [True, True]
    assert not known.table.has_checksum().any()


def test_a_log_without_statistics_says_nothing_of_its_mixed_column() -> None:
    tensor = np.array([0.0, 0.5, 2.0], np.float32)
    frame = build([(0, "layer", "Activation", tensor)], lambda _: {"norm": 2.06})

    known = sketches(validate(frame))

    assert count(known, "unseen") == 2
    assert np.isnan(known.told[0, [MAIN.index(name) for name in ("nonfinite", "rms")]]).all()


def test_statistics_that_the_dtype_broke_are_not_observed() -> None:
    large, small = np.full(2, 300, np.float16), np.full(2, 1e-25, np.float32)

    known = known_of(large), known_of(small)

    assert [told(one, "abs_max") for one in known] == [300, np.float32(1e-25)]
    for one in known:
        for statistic in ("rms", "rm4", "rm8", "l2"):
            assert np.isnan(told(one, statistic))
    assert told(known_of(np.zeros(3, np.float32)), "rm8") == 0


def test_counts_that_stopped_are_told() -> None:
    bfloat16: Any = ml_dtypes.bfloat16
    known = known_of(np.ones(300, bfloat16), np.ones(200, bfloat16), np.ones(300, np.float16))

    assert known.is_low.tolist() == [True, False, False]


def test_subnormal_elements_are_counted_where_the_columns_tell_them() -> None:
    values = np.array([2.0**-15, 2.0**-20, 1.0, -2.0], np.float16)

    assert count(known_of(values), "subnormal") == 2
    assert count(known_of(values.astype(np.float32)), "subnormal") == 0
    with_zero = np.append(values, np.float16(0)).astype(np.float32)
    assert count(known_of(with_zero), "subnormal") == -1  # of 2^-20 it is not known


floats = arrays.arrays(
    np.float32,
    st.integers(1, 30),
    elements=st.floats(width=32) | st.sampled_from([0.0, 0.5, -0.75, 1.0, np.nan, np.inf, -np.inf]),
)


@settings(deadline=None, max_examples=150)
@given(floats)
def test_what_is_certain_is_right(tensor: NDArray[np.float32]) -> None:
    true, known = sketch_array(tensor), known_of(tensor)

    unseen = count(known, "unseen")
    assert count(known, "count") + unseen == tensor.size
    for name in ("zero", "nan", "pos_inf", "neg_inf"):
        missing = int(true.counts[0, COUNTS.index(name)]) - count(known, name)
        assert 0 <= missing <= unseen
    lacking = true.histogram[0, NARROW] - known.table.histogram[0, NARROW]
    assert ((lacking == 0) | (np.arange(-17, 16) == -1)).all()
    assert lacking.min() >= 0
    assert lacking.sum() <= unseen
    assert count(known, "subnormal") in (-1, true.counts[0, COUNTS.index("subnormal")])
    bad = derive(true, "nonfinite")[0]
    assert told(known, "nonfinite") <= bad
    assert (told(known, "nonfinite") > 0) == (bad > 0)
    if bad == 0:
        for statistic in ("abs_max", "abs_min", "zero_share", "subnormal_share"):
            found = told(known, statistic)
            assert np.isnan(found) or found == np.float32(derive(true, statistic)[0])


@settings(deadline=None, max_examples=150)
@given(floats)
def test_bounds_of_formats_hold_for_what_was_seen(tensor: NDArray[np.float32]) -> None:
    known = known_of(tensor)
    if count(known, "unseen"):  # bounds are of what was looked at
        return
    for name in FORMATS:
        for question, share in true_shares(name, tensor).items():
            found = QUESTIONS[question](known.table, number_format(name))
            assert found.low[0] - 1e-12 <= share <= found.high[0] + 1e-12
            assert found.low[0] <= found.value[0] <= found.high[0]


@settings(deadline=None, max_examples=150)
@given(st.lists(floats, min_size=2, max_size=4), st.integers(1, 2), st.booleans())
def test_bounds_hold_of_tensors_that_are_put_together(
    tensors: list[NDArray[np.float32]], groups: int, with_statistics: bool
) -> None:
    rows = [(step, "layer", "Activation", tensor) for step, tensor in enumerate(tensors)]
    log = build(rows) if with_statistics else build(rows, lambda _: {"norm": 1.0})
    table = sketches(validate(log)).table
    if table.counts[:, COUNTS.index("unseen")].any():
        return
    group = np.arange(len(tensors)) % groups
    whole = Tally.of(table).united(group, groups)
    whole = whole.merge(Tally.of(table.take([0])).united(np.zeros(1, np.int64), groups))
    for name in FORMATS:
        target = number_format(name)
        best = best_shift(whole, target)
        for question, bounds in QUESTIONS.items():
            for shift in (np.zeros(groups, np.int64), best):
                found = bounds(whole, target, shift=shift)
                for row in range(groups):
                    members = tensors[row::groups] + tensors[:1] * (row == 0)
                    share = true_shares(name, *members, shift=int(shift[row]))[question]
                    assert found.low[row] - 1e-12 <= share <= found.high[row] + 1e-12
                    assert found.low[row] <= found.value[row] <= found.high[row]


@pytest.fixture(scope="module")
def tensors() -> dict[str, list[NDArray[np.float32]]]:
    """By layer what came in six steps: much lies beyond tandv's columns, some is not finite."""
    draw = np.random.default_rng(1)
    found: dict[str, list[NDArray[np.float32]]] = {}
    for number in range(12):
        found[f"layer{number}"] = many = []
        for step in range(6):
            spread = draw.uniform(0.1, 8)
            value = 10 ** (draw.uniform(-6, 6) + spread * draw.normal(size=40))
            value = np.clip(value, 1e-30, 1e30).astype(np.float32)
            # Of what is beside NaN or infinity in tandv's mixed column it does not tell.
            value[(value >= 0.5) & (value < 1)] = 2
            if number % 3 == 0 and step == 3:
                value[:2] = np.nan, np.inf
            many.append(value)
    return found


@pytest.fixture(scope="module")
def log_run(
    tensors: dict[str, list[NDArray[np.float32]]], tmp_path_factory: pytest.TempPathFactory
) -> Run:
    rows = [
        (step, name, "Activation", tensors[name][step]) for step in range(6) for name in tensors
    ]
    path = tmp_path_factory.mktemp("formats") / "run"
    import_logframe(build(rows), path, run="run")
    return open_run(path)


@pytest.mark.parametrize("scale", [0, -3, "site"])
@pytest.mark.parametrize("step", [2, 3])
def test_a_table_of_formats_holds_for_what_was_logged(
    log_run: Run, tensors: dict[str, list[NDArray[np.float32]]], step: int, scale: Any
) -> None:
    table = log_run.format_table(step, formats=FORMATS, scale=scale)

    widths = set[bool]()
    for place, many in enumerate(tensors.values()):
        if not np.isfinite(many[step]).all():
            continue
        for name in FORMATS:
            found = table.isel(site=place).sel(format=name)
            shift = int(found["shift"])
            for question, share in true_shares(name, many[step], shift=shift).items():
                low, high = float(found[f"{question}_low"]), float(found[f"{question}_high"])
                assert low - 1e-12 <= share <= high + 1e-12
                widths.add(low < high)
            if scale == "site":
                assert float(found["overflow_high"]) == 0
    assert widths == {False, True}


@pytest.mark.parametrize("width", [1, 2])
def test_a_table_of_formats_holds_for_stretches_of_what_was_logged(
    log_run: Run, tensors: dict[str, list[NDArray[np.float32]]], width: int
) -> None:
    table = log_run.format_table(formats=FORMATS, width=width)

    for place, many in enumerate(tensors.values()):
        parts = [many] if width == 1 else [many[:3], many[3:]]
        for name in FORMATS:
            found = table.isel(site=place).sel(format=name)
            for question in QUESTIONS:
                if not all(np.isfinite(tensor).all() for tensor in many):
                    continue
                worst = max(true_shares(name, *part)[question] for part in parts)
                low, high = float(found[f"{question}_low"]), float(found[f"{question}_high"])
                assert low - 1e-12 <= worst <= high + 1e-12


def test_formats_of_one_site_and_the_table_say_the_same(log_run: Run) -> None:
    table = log_run.format_table(3, formats=FORMATS)

    for site in table["site"].values:
        one = log_run.formats(site=str(site), step=3, formats=FORMATS)
        for question in QUESTIONS:
            for bound in ("", "_low", "_high"):
                found = table[question + bound].sel(site=site).values
                np.testing.assert_array_equal(found, one[question + bound])


def test_a_run_holds_what_its_log_held(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    tensors = [np.maximum(draw.normal(size=100), 0.0).astype(np.float32) for _ in range(3)]
    log = build([(step, "a", "Activation", tensor) for step, tensor in enumerate(tensors)])

    import_logframe(log, tmp_path / "run", run="run")

    run = open_run(tmp_path / "run")
    for step, tensor in enumerate(tensors):
        for theirs, ours in {"mean": "mean", "rm4": "rm4", "max_abs": "abs_max"}.items():
            expected = np.float32(scalar_stats(tensor)[theirs])
            assert run.scalar(ours, steps=step).item() == expected
    found = run.exponents().isel(site=0)
    # Half are 0, and so many between 0.5 and 1 that both cannot be told apart.
    assert found["zero"].values.tolist() == [1, 1, 1]
    assert (found["unseen"] > 50).all()
    assert (found["total"] + found["unseen"] == 100).all()
    assert np.isnan(run.scalar("zero_share")).all()
    assert np.isnan(run.scalar("kurtosis")).all()
    assert run.scalar("nonfinite").values.tolist() == [[0]] * 3
