"""Histograms, distributions and pictures of named tensors."""

from __future__ import annotations

import math
from typing import Any, Literal

import holoviews as hv
import numpy as np
import pytest
import torch
from bokeh.document import Document
from bokeh.io.doc import patch_curdoc

from rankscope.agent.torch.tensors import NamedTensors, ecdf, heatmap, hist
from rankscope.sketch import SettingError


@pytest.fixture
def tensors() -> NamedTensors:
    torch.manual_seed(0)
    return NamedTensors(
        {
            "a.weight": torch.randn(30, 20),
            "a.bias": torch.tensor([1.0, math.nan, math.inf, -4], dtype=torch.bfloat16),
            "b.weight": torch.randn(3, 2, 2),
        }
    )


def drawn(plot: Any, backend: Literal["bokeh", "matplotlib"] = "bokeh") -> None:
    page = Document()  # the process's own may be one that a test before has closed
    with patch_curdoc(page):
        hv.render(plot, backend=backend)


def test_a_histogram_counts_every_finite_element(tensors: NamedTensors) -> None:
    whole, each = hist(tensors, bins=7), hist(tensors, by="tensor", logy=True)

    assert whole.dimension_values("elements").sum() == 600 + 2 + 12
    assert len(whole.edges) == 8
    assert whole.edges[0] == min(-4, tensors["a.weight"].min().item())
    assert {name: plot.dimension_values("elements").sum() for name, plot in each.items()} == {
        "a.weight": 600,
        "a.bias": 2,
        "b.weight": 12,
    }
    drawn(whole, "matplotlib")
    drawn(each)


def test_patterns_are_honoured_by_every_plot(tensors: NamedTensors) -> None:
    chosen: dict[str, Any] = {"include": "^a", "exclude": "weight", "by": "tensor"}

    assert hist(tensors, **chosen).edges[0] == -4
    assert ecdf(tensors, **chosen).dimension_values("x").tolist() == [-4, 1]
    assert heatmap(tensors, include="b.w").label == "b.weight"
    assert heatmap(tensors, include="a").keys() == [
        ("Image", "A_full_stop_weight"),
        ("Image", "A_full_stop_bias"),
    ]


def test_a_distribution_is_the_share_of_elements_up_to_each(tensors: NamedTensors) -> None:
    curve = ecdf(tensors, include="a.weight", operation="abs", logx=True)
    x, share = (curve.dimension_values(axis) for axis in ("|x|", "share"))
    sizes = tensors["a.weight"].abs().double().numpy()

    np.testing.assert_allclose(share, [(sizes <= at).mean() for at in x])
    assert share[-1] == 1
    drawn(curve)
    assert len(ecdf(NamedTensors({"x": torch.arange(100_000.0)}))) == 1000


def test_a_picture_has_an_element_a_cell_and_row_0_on_top(tensors: NamedTensors) -> None:
    image = heatmap(tensors, include="b.weight")
    values = tensors["b.weight"].reshape(3, 4)

    assert image[0.5, 0.5] == pytest.approx(values[0, 0].item())
    assert image[3.5, 2.5] == pytest.approx(values[2, 3].item())
    assert hv.Store.lookup_options("bokeh", image, "plot").kwargs["invert_yaxis"] is True
    drawn(heatmap(tensors))
    drawn(heatmap(tensors, operation="square", log=True, vmax=2.0))


def test_a_large_picture_keeps_its_largest_elements() -> None:
    large = torch.zeros(5000, 30)
    large[4321, 7], large[17, 3] = -9.0, 5.0
    cells = heatmap(NamedTensors({"x": large})).dimension_values(2)

    assert cells.size == 400 * 30
    assert cells.min() == -9
    assert cells.max() == 5


# HoloViews looks for the extremes of a picture once more when it draws with Matplotlib.
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
@pytest.mark.parametrize("log", [False, True])
def test_a_tensor_without_a_finite_element_is_drawn_beside_others(log: bool) -> None:
    pictures = heatmap(
        NamedTensors({"good": torch.tensor([1.0, 2]), "bad": torch.full((3, 2), math.nan)}), log=log
    )
    good, bad = (picture.dimension_values(2) for picture in pictures)

    assert good.tolist() == [1, 2]
    assert np.isnan(bad).all()
    assert bad.size == 6
    drawn(pictures)
    drawn(pictures, "matplotlib")
    with pytest.raises(SettingError, match=r"no (finite )?element.* The tensors are bad\."):
        heatmap(NamedTensors({"bad": torch.full((2,), math.nan)}), log=log)


def test_shades_are_in_order() -> None:
    tensors = NamedTensors({"x": torch.tensor([-1.0, 2])})

    assert heatmap(tensors).range(2) == (-2, 2)
    assert heatmap(tensors, vmin=5).range(2) == (5, 5)
    assert heatmap(tensors, vmax=-5).range(2) == (-5, -5)
    with pytest.raises(SettingError, match="`vmin` must not be above `vmax`, got 2 and 1"):
        heatmap(tensors, vmin=2, vmax=1)


def test_what_cannot_be_drawn_is_told() -> None:
    many = NamedTensors({f"x{number}": torch.ones(2) for number in range(41)})

    with pytest.raises(SettingError, match="1 to 40 tensors, got 41; choose some with `include`"):
        hist(many, by="tensor")
    with pytest.raises(SettingError, match="no element above 0"):
        hist(NamedTensors({"x": -torch.ones(2)}), logx=True)
    with pytest.raises(SettingError, match=r"no finite element\. The tensor is whole"):
        ecdf(NamedTensors({"x": torch.full((2,), math.nan)}))
    with pytest.raises(SettingError, match="must be identity, abs, square; got 'log'"):
        hist(many, operation="log")  # pyright: ignore[reportArgumentType]
    wrong: list[Any] = [0, 2.5, [0.0, 1.0]]
    for bins in wrong:
        with pytest.raises(SettingError, match=r"`bins` must be a whole number of at least 1, got"):
            hist(many, bins=bins)
    for draw in (hist, ecdf):
        with pytest.raises(SettingError, match="`by` must be 'tensor', 'whole' or a function"):
            draw(many, by="layer")  # pyright: ignore[reportArgumentType]
