"""`scope.print`: what is printed, when, and what it leaves out rather than hold up training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray
from torch import nn

from rankscope.agent.printing import MOST, Printer, PrintOptions, Printout, printed
from rankscope.sketch import SettingError

if TYPE_CHECKING:
    from conftest import Observed


def ends(array: NDArray[np.float64], how: PrintOptions) -> NDArray[np.float64]:
    """What a summary needs of an array."""
    for axis in how.cuts(array.shape):
        kept = np.r_[: how.edgeitems + 1, array.shape[axis] - how.edgeitems : array.shape[axis]]
        array = array.take(kept, axis)
    return array


@given(
    arrays(np.float64, array_shapes(max_dims=3, max_side=9), elements=st.floats(-1e3, 1e3)),
    st.integers(1, 4),
    st.integers(0, 200),
)
def test_a_summary_is_printed_as_numpy_prints_the_whole(
    array: NDArray[np.float64], edgeitems: int, threshold: int
) -> None:
    how = PrintOptions(threshold=threshold, edgeitems=edgeitems)
    chosen = ends(array, how) if how.is_summary(array.size) else array
    whole = np.array2string(
        array,
        max_line_width=80,
        precision=4,
        separator=", ",
        threshold=threshold,
        edgeitems=edgeitems,
        floatmode="maxprec_equal",
    )
    text = printed(chosen, array.shape, "float64", how)
    assert text == f"float64{list(array.shape)}\n{whole}"


def test_numbers_have_exponents_where_that_is_asked_for() -> None:
    numbers = np.array([1.0, -2e-6, np.nan, np.inf])
    never, always = (PrintOptions(sci_mode=mode, precision=2) for mode in (False, True))
    assert printed(numbers, (4,), "float32", never).endswith("[ 1., -0., nan, inf]")
    assert printed(numbers, (4,), "float32", always).endswith("[ 1.00e+00, -2.00e-06,  nan,  inf]")


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("precision", -1, "`precision` must be an integer of at least 0, got -1"),
        ("edgeitems", 0, "`edgeitems` must be an integer of at least 1, got 0"),
        ("linewidth", 2.5, "`linewidth` must be an integer of at least 1, got 2.5"),
        ("sci_mode", "auto", "`sci_mode` must be None, True or False, got 'auto'"),
    ],
)
def test_options_that_cannot_be_used_are_refused(option: str, value: object, why: str) -> None:
    settings: dict[str, object] = {option: value}
    with pytest.raises(SettingError, match=why):
        PrintOptions(**settings)  # pyright: ignore[reportArgumentType]


def test_what_has_no_room_is_left_out_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    there, jobs = False, list[Callable[[], object]]()
    printer = Printer(jobs.append)
    for number in range(MOST + 3):
        printer.put(
            Printout(
                title=f"x{number}",
                shape=(),
                dtype="float32",
                how=PrintOptions(),
                nbytes=8,
                elements=lambda: np.array(1.0),
                is_there=lambda: there,
            )
        )
    printer.attend()
    assert capsys.readouterr().out == (
        "rankscope: 3 tensors were not printed, for too many waited to be.\n"
    )
    there = True
    jobs[0]()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["x0 float32[]", "1."]
    assert lines[-2:] == [f"x{MOST - 1} float32[]", "1."]


class Printed(nn.Module):
    """Prints what it is given, before it changes it in place."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.print = nn.Parameter(torch.ones(1)), lambda x: x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.print(x * self.scale).mul_(2.0)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_tensor_and_its_gradient_are_printed_by_name(
    observed: Observed, capsys: pytest.CaptureFixture[str], compiled: bool
) -> None:
    model = Printed()
    with observed.observe(model, kinds="tap", schedules={"tap": 2}) as scope:
        model.print = lambda x: scope.print("x", x, mode="sum", precision=1)
        forward = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        for _ in range(3):
            for value in (1.5, 2.0):
                forward(torch.tensor([value, -value])).sum().backward()
            scope.step()
    text = "".join(
        f"x (step {step}, rank 0) float32[2]\n[ 3.5, -3.5]\n"
        f"x gradient (step {step}, rank 0) float32[2]\n[4., 4.]\n"
        for step in (0, 2)
    )
    assert capsys.readouterr().out == text
    assert observed.labels() == []


def test_of_a_large_tensor_the_ends_are_printed_in_any_dtype(
    observed: Observed, capsys: pytest.CaptureFixture[str]
) -> None:
    large = torch.arange(400.0).reshape(4, 100)
    with observed.observe(nn.Linear(1, 1), kinds="tap") as scope:
        for dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.float64):
            scope.print("x", large.to(dtype), threshold=10, edgeitems=1)
        scope.step()
    out = capsys.readouterr().out
    assert "x (step 0, rank 0) float8_e4m3fn[4, 100]\n[[  0., ...,  96.],\n ...,\n" in out
    assert "x#1 (step 0, rank 0) bfloat16[4, 100]\n[[  0., ...,  99.],\n ...,\n" in out
    assert "x#2 (step 0, rank 0) float64[4, 100]\n" in out
    assert out.endswith("[[  0., ...,  99.],\n ...,\n [300., ..., 399.]]\n")


def test_what_cannot_be_printed_is_told_and_training_goes_on(
    observed: Observed, capsys: pytest.CaptureFixture[str]
) -> None:
    with observed.observe(nn.Linear(1, 1), kinds="tap") as scope:
        for _ in range(2):
            assert scope.print("three", 3) == 3  # pyright: ignore[reportArgumentType]
            scope.print("x", torch.ones(2), precision=-1)
            scope.print("y", torch.ones(2), mode="last", gradient=False)
            scope.step()
    assert capsys.readouterr().out.count("y (step") == 2
    reports = observed.reports()
    assert reports.count("print:three is not measured, for 3 is no tensor") == 1
    assert reports.count("`precision` must be an integer of at least 0, got -1") == 1
    assert reports.count("All calls of the print y are taken: 'last' is no mode") == 1
