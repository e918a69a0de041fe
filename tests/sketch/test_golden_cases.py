"""The golden cases of the seed systems: the right value, beside the seed's wrong one.

`golden_cases.json` is a copy of shared/data of the same name. Cases of system `tandv` with
operation `exponent_histogram` or `scalar_stats`, and nnstat's moments and norms, concern
statistics.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from rankscope.sketch import COUNTS, FIRST_EXPONENT, SketchTable, derive, sketch_array

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "golden_cases.json").read_text(encoding="utf-8")
)
NARROW = range(-17, 16)
"""The seed's exponents; what lies outside is its `under` and `over`."""


def cases(operation: str) -> list[Any]:
    """The cases of one operation, with their ids."""
    return [pytest.param(case, id=case["id"]) for case in CASES if case["op"] == operation]


def tensor_of(case: dict[str, Any]) -> NDArray[Any]:
    """The input of a case."""
    given, dtype = case["input"], case["dtype"]
    target = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if isinstance(given, list):
        return np.array([float(x) if isinstance(x, str) else x for x in given]).astype(target)
    if given.startswith("ones("):
        count = given.removeprefix("ones(").removesuffix(")")
        return np.ones(2**24 + 1 if count == "2**24+1" else int(count), target)
    torch = pytest.importorskip("torch")
    if given.startswith("torch.randn(4096"):
        seeded = torch.Generator().manual_seed(7)
        return torch.randn(4096, dtype=torch.float64, generator=seeded).numpy()
    torch.manual_seed(0)
    return torch.randn(1_000_000).bfloat16().view(torch.uint16).numpy().view(target)


def told(table: SketchTable) -> dict[str, Any]:
    """A sketch in the words of the golden histograms."""
    count = dict(zip(COUNTS, table.counts[0].tolist(), strict=True))
    bins = {
        FIRST_EXPONENT + int(place): int(table.histogram[0, place])
        for place in np.flatnonzero(table.histogram[0])
    }
    words = {
        "zero": count["zero"],
        "nan": count["nan"],
        "+inf_val": count["pos_inf"],
        "-inf_val": count["neg_inf"],
        "under": count["under"] + sum(n for e, n in bins.items() if e < NARROW.start),
        "over": count["over"] + sum(n for e, n in bins.items() if e >= NARROW.stop),
        "bins": {str(e): n for e, n in bins.items() if e in NARROW},
    }
    return {name: value for name, value in words.items() if value}


@pytest.mark.parametrize("case", cases("exponent_histogram"))
def test_histograms_have_the_right_value_and_not_the_seeds(case: dict[str, Any]) -> None:
    answer = told(sketch_array(tensor_of(case)))
    right = case["right"]
    if case["id"] in ("hist_e4m3_edges", "hist_fp16_edges"):
        assert answer.get("bins") == right["bins"]
        assert answer.get("under", 0) == right.get("under", 0)
    else:
        assert answer == right
    seed = case["seed"]
    assert isinstance(seed, str) or not seed or answer.get("bins") != seed


@pytest.mark.parametrize("case", cases("scalar_stats"))
def test_scalars_have_the_right_value(case: dict[str, Any]) -> None:
    table = sketch_array(tensor_of(case))
    right = case["right"]
    if isinstance(right, str):  # decisions told in words: see the next tests
        return
    ours = {
        "mean": derive(table, "mean"),
        "std_unbiased": derive(table, "std"),
        "std_biased": np.sqrt(table.moments[:, 2] / table.finite()),
        "mean_abs": derive(table, "mean_abs"),
        "max_abs": derive(table, "abs_max"),
        "rm2": derive(table, "rms"),
        "rm4": derive(table, "rm4"),
        "rm8": derive(table, "rm8"),
        "l1": derive(table, "l1"),
        "l2": derive(table, "l2"),
        "n": table.finite().astype(np.float64),
    }
    for name, value in right.items():
        if name == "min_abs":  # the seed's counts zeros; ours is over non-zero elements
            zeros = table.counts[0, COUNTS.index("zero")]
            answer = 0.0 if zeros else float(derive(table, "abs_min")[0])
        else:
            answer = float(ours[name][0])
        if value is None:
            assert np.isnan(answer), name
        else:
            assert answer == pytest.approx(value, rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize(("spoiler", "column"), [(np.nan, "nan"), (np.inf, "pos_inf")])
def test_one_bad_element_leaves_the_others_statistics(spoiler: float, column: str) -> None:
    table = sketch_array(np.array([1.0, spoiler], np.float32))
    assert table.counts[0, COUNTS.index(column)] == 1
    for statistic in ("mean", "rms", "rm4", "rm8", "abs_max", "mean_abs"):
        assert derive(table, statistic)[0] == pytest.approx(1.0), "the seed says NaN or inf"


def test_an_empty_tensor_has_undefined_statistics_and_never_raises() -> None:
    table = sketch_array(np.zeros(0, np.float32))
    assert table.counts[0, 0] == 0
    for statistic in ("mean", "std", "rms", "rm4", "rm8", "abs_max", "abs_min", "min", "kurtosis"):
        assert np.isnan(derive(table, statistic)[0]), "the seed raises RuntimeError"
    assert derive(table, "l1")[0] == derive(table, "l2")[0] == 0


def test_higher_moments_are_scipys() -> None:
    right = next(c for c in CASES if c["id"] == "nnstat_moments")
    table = sketch_array(np.array(right["input"]))
    assert derive(table, "var")[0] == pytest.approx(right["right"]["var_unbiased"])
    assert derive(table, "skewness")[0] == pytest.approx(right["right"]["skew_biased"])
    assert derive(table, "kurtosis")[0] == pytest.approx(right["right"]["kurtosis_excess_biased"])


def test_norms_over_all_parameters_come_from_the_merged_sketch() -> None:
    right = next(c for c in CASES if c["id"] == "nnstat_norms")["right"]
    parts = [np.array([[3.0, -4], [0, 1]]), np.array([[2.0, -2]]), np.array([1.0])]
    table = SketchTable.empty(1)
    for part in parts:
        table = table.merge(sketch_array(part))
    assert derive(table, "l1")[0] == right["1"]
    assert derive(table, "l2")[0] == pytest.approx(right["2"])
    assert derive(table, "abs_max")[0] == right["inf"], "the seed says 1.0"
