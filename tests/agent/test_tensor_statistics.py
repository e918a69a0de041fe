"""Every statistic of named tensors, tables of them, and files."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.agent.torch.tensors import NamedTensors, compute_stats, load, save, weights
from rankscope.sketch import STATISTICS, SettingError, derive, sketch_array

NUMBERS = st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3)


def named(**tensors: object) -> NamedTensors:
    return NamedTensors({name: torch.tensor(values) for name, values in tensors.items()})


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model after a step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2), torch.nn.Linear(2, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).square().mean().backward()
    optimizer.step()
    return model, optimizer


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
    torch.int64, torch.uint8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_statistic_is_that_of_the_sketch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    numbers = (torch.randn(40, 7) * 10).abs().to(dtype)
    tensors = NamedTensors(
        {"a": numbers, "b": numbers.t(), "one": numbers[0, 0], "none": numbers[:0]}
    )
    wide = numbers.double() if dtype.itemsize == 8 else numbers.float()
    table = tensors.describe("sketch")

    assert table["count"].tolist() == [280, 280, 1, 0]
    for statistic in ("mean", "var", "skewness", "kurtosis", "rm8", "abs_max", "zero_share", "l1"):
        expected = derive(sketch_array(wide.numpy()), statistic)[0]
        assert table.loc["a", statistic] == pytest.approx(
            expected, rel=1e-9, abs=1e-12, nan_ok=True
        )
        assert table.loc["b", statistic] == pytest.approx(
            expected, rel=1e-9, abs=1e-12, nan_ok=True
        )


@given(st.lists(st.floats(-1e3, 1e3, width=32), max_size=40), st.integers(0, 40))
def test_the_whole_is_what_its_parts_make_up(values: list[float], cut: int) -> None:
    parts = named(a=values[:cut], b=values[cut:])
    whole = sketch_array(np.array(values, np.float32))

    for name in STATISTICS:
        expected = derive(whole, name)[0]
        assert parts.statistic(name) == pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True)


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    tensors = named(x=[1.0, math.nan, math.inf, -3])

    assert tensors.statistic("nonfinite") == 2
    assert tensors.statistic("mean", by="tensor") == {"x": -1}
    assert tensors.norm(3) == pytest.approx(28 ** (1 / 3))


def test_of_complex_numbers_the_parts_are_read() -> None:
    tensors = named(x=[3 + 4j, -1j]).apply(torch.conj)

    assert tensors.statistic("count") == 4
    assert tensors.statistic("min") == -4
    assert tensors.norm(3) == pytest.approx((27 + 64 + 1) ** (1 / 3))


def test_integers_are_read_as_they_are() -> None:
    tensors = NamedTensors({"x": torch.tensor([-128, 127], dtype=torch.int8)})

    assert tensors.norm(4) == pytest.approx((128**4 + 127**4) ** 0.25)
    assert tensors.statistic("mean") == -0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("p", [1, 2, 3, 8, 0.5, math.inf])
def test_norms_of_narrow_formats_do_not_overflow(dtype: torch.dtype, p: float) -> None:
    tensors = NamedTensors({"x": torch.full((300,), torch.finfo(dtype).max, dtype=dtype)})

    assert tensors.norm(p) == pytest.approx(torch.finfo(dtype).max * 300 ** (1 / p))


@given(NUMBERS, st.floats(0.5, 9))
def test_the_norm_of_several_is_that_of_their_elements(values: list[float], p: float) -> None:
    tensors = named(a=values[:1], b=values[1:])
    expected = float(torch.tensor(values).double().norm(p))

    assert tensors.norm(p) == pytest.approx(expected, rel=1e-9, abs=1e-30)
    assert tensors.norm(p, by=lambda _: "all") == {"all": tensors.norm(p)}
    assert tensors.norm(math.inf) == max(map(abs, values))


@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
def test_a_norm_of_which_no_element_is_finite_is_unknown_and_that_of_nothing_is_0(p: float) -> None:
    tensors = named(bad=[math.nan, math.inf], zero=[0.0], empty=[])

    found = tensors.norm(p, by="tensor")
    assert found == {"bad": pytest.approx(math.nan, nan_ok=True), "zero": 0, "empty": 0}
    assert tensors.norm(p) == 0


def test_what_is_no_norm_or_statistic_is_refused() -> None:
    with pytest.raises(SettingError, match="`p` must be positive"):
        named(a=[1.0]).norm(0)
    with pytest.raises(SettingError, match=r"no statistic 'skew'; did you mean skewness"):
        named(a=[1.0]).statistic("skew")
    with pytest.raises(SettingError, match="`by` must be 'tensor', 'whole' or a function"):
        named(a=[1.0]).describe(by="layer")  # pyright: ignore[reportArgumentType]
    for ask in (named(a=[1.0]).numpy, lambda by: named(a=[1.0]).reduce(torch.sum, by=by)):  # pyright: ignore[reportUnknownLambdaType]
        with pytest.raises(SettingError, match="or a function of a tensor's name, got 'layer'"):
            ask(by="layer")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SettingError, match=r"Across ranks only the norms 1, 2 and ∞"):
        named(a=[1.0]).norm(3, across=object())
    with pytest.raises(SettingError, match="`reductions` are not known there"):
        named(a=[1.0]).describe(reductions={"a": torch.sum}, across=object())
    assert NamedTensors({}).norm() == NamedTensors({}).norm(math.inf) == 0


# Tables.


def test_a_table_has_the_groups_of_columns_that_nnstat_has() -> None:
    model, _ = trained()
    table = weights(model).describe()

    assert table.index.tolist() == [name for name, _ in model.named_parameters()]
    assert table.columns.tolist() == [
        "shape", "L1_norm", "L2_squared", "mean", "variance", "skew", "kurtosis",
    ]  # fmt: skip
    for name, parameter in model.named_parameters():
        assert table.loc[name, "shape"] == tuple(parameter.shape)
        assert table.loc[name, "L2_squared"] == pytest.approx(parameter.square().sum().item())


def test_rows_are_tensors_groups_of_them_or_the_whole() -> None:
    model, _ = trained()
    taken = weights(model)
    layers = taken.describe("all", by=lambda name: name.partition(".")[0])
    whole = taken.describe("all", by="whole")

    assert layers["num_params"].tolist() == [8, 4, 12]
    assert whole.index.tolist() == ["weight"]
    assert whole["num_params"].item() == taken.numel() == 24
    assert whole["L2_norm"].item() == pytest.approx(taken.norm())
    assert "shape" not in layers


def test_what_one_call_leaves_out_the_next_has() -> None:
    tensors = named(x=[1.0, 2])
    first = tensors.describe("all", exclude=["L1_norm", "shape"])
    own = tensors.describe(
        ["L1_norm", "rms"], reductions={"largest": lambda x: x.max().item()}, exclude="shape"
    )

    assert "L1_norm" not in first
    assert "L1_norm" in tensors.describe("all")
    assert own.loc["x"].to_dict() == {"L1_norm": 3, "rms": pytest.approx(2.5**0.5), "largest": 2}
    assert "largest" not in tensors.describe("all")
    with pytest.raises(SettingError, match="no column or group 'L1_nrom'; did you mean L1_norm"):
        tensors.describe("L1_nrom")


def test_reductions_take_each_tensor_or_all_elements_together() -> None:
    tensors = named(a=[[1.0], [2.0]], b=[5.0])

    assert tensors.reduce(lambda x: x.sum().item()) == {"a": 3, "b": 5}
    assert tensors.reduce(lambda x: x.median().item(), by="whole") == {"whole": 2}
    assert tensors.reduce(lambda x: x.mul_(0).sum().item()) == {"a": 0, "b": 0}
    assert tensors["b"].item() == 5


def test_the_whole_of_no_tensors_has_a_row_and_reductions_none_to_take() -> None:
    table = NamedTensors({}).describe("all", by="whole", reductions={"sum": torch.sum})

    assert table.index.tolist() == ["whole"]
    assert table.loc["whole", "num_params"] == 0
    assert math.isnan(table.loc["whole", "sum"])  # pyright: ignore[reportArgumentType]
    assert NamedTensors({}).describe("all", reductions={"sum": torch.sum}).empty


def test_the_statistics_of_a_model_are_one_table() -> None:
    model, optimizer = trained()
    table = compute_stats(model, optimizer, ("exp_avg", "exp_avg_sq"))
    layers = compute_stats(model, by="tensor", include="weight", groups=("l2", "max"))

    assert [kind for kind, _ in table.index] == [
        "weight", "weight_gradient", "optimizer_state[exp_avg]", "optimizer_state[exp_avg_sq]",
    ]  # fmt: skip
    assert table.loc["weight", "L2_norm"].item() == pytest.approx(weights(model).norm())
    assert layers.loc["weight"].index.tolist() == ["0.weight", "1.weight", "2.weight"]
    assert isinstance(layers, pd.DataFrame)


# Files.


def test_tensors_come_back_from_a_file_as_they_were(tmp_path: Path) -> None:
    numbers = torch.randn(4, 6)
    tensors = NamedTensors(
        {
            "strided": numbers[:, ::2],
            "same": numbers,
            "half": numbers.bfloat16(),
            "bytes": numbers.to(torch.float8_e4m3fn),
            "scalar": torch.tensor(3),
        },
        kind="optimizer_state",
    )
    with pytest.raises(SettingError, match=r"Tensors are saved as \.safetensors, got 'a\.pkl'"):
        save(tensors, tmp_path / "a.pkl")
    save(tensors, tmp_path / "tensors.safetensors")
    found = load(tmp_path / "tensors.safetensors")

    assert found == tensors
    assert list(found) == list(tensors)
    assert found.kind == "optimizer_state"


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    tensors, path = named(a=[1.0]), tmp_path / "a.safetensors"

    with pytest.raises(
        FileNotFoundError, match=r"no folder .*none to save a\.safetensors in; make"
    ):
        save(tensors, tmp_path / "none" / "a.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(OSError, match=r"folder\.safetensors cannot be written"):
        save(tensors, tmp_path / "folder.safetensors")
    names: list[Any] = ["__metadata__", 3]
    for name in names:
        with pytest.raises(SettingError, match=f"has for itself; got {name!r}: save it under"):
            save(NamedTensors({name: torch.ones(1)}), path)
    with pytest.raises(SettingError, match=r"hold no torch\.complex128; convert it"):
        save(tensors.to(torch.complex128), path)
    assert not path.exists()


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("hello")

    with pytest.raises(SettingError, match="other is no file of named tensors"):
        load(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")


def test_nothing_is_loaded_before_it_is_asked_for(tmp_path: Path) -> None:
    script = (
        "import sys, rankscope.agent.torch.tensors as t, torch\n"
        "sys.modules.update(numba=None, pandas=None, holoviews=None, safetensors=None)\n"
        "x = t.snapshot({'x': torch.ones(2)})\n"
        "print(x.norm(1), {'xarray', 'bokeh'} & sys.modules.keys())\n"
        "y = t.NamedTensors({'a': torch.arange(6).view(2, 3).T, 'none': torch.ones(0)})\n"
        "print(y.statistic('max'), y.statistic('count', by='tensor'))\n"
        "for ask in (x.describe, lambda: t.hist(x), lambda: t.save(x, 'x')):\n"
        "    try: ask()\n"
        "    except ImportError as error: print(error)\n"
    )
    command = [sys.executable, "-c", script]
    words = subprocess.check_output(command, text=True, cwd=tmp_path).splitlines()

    assert words == [
        "2.0 set()",
        "5.0 {'a': 6.0, 'none': 0.0}",
        "A table of statistics needs pandas, which is not installed: "
        "pip install 'rankscope[toolkit]'.",
        "A plot needs holoviews, which is not installed: pip install 'rankscope[toolkit]'.",
        "Saving tensors needs safetensors, which is not installed: "
        "pip install 'rankscope[toolkit]'.",
    ]
