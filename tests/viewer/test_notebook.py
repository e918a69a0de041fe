"""The same pictures in a notebook."""

from __future__ import annotations

from pathlib import Path

import holoviews as hv
import numpy as np
import pytest

from rankscope.sketch import SettingError
from rankscope.store import open_run
from rankscope.viewer import grid, notebook

ORIGIN = "activation:blocks.2.mlp.act"


def test_the_heatmap_holds_the_same_cells_as_the_page(broken_job: Path) -> None:
    run = open_run(broken_job)
    cells = grid.load_grid(run, statistic="rms", kind="activation", width=1000, height=500)

    shades, bad = notebook.heatmap(run)

    assert shades.bounds.lbrt() == (-0.5, 0.0, 59.5, 24.0)
    np.testing.assert_array_equal(
        shades.dimension_values("log2 rms", flat=False), cells.shade[::-1]
    )
    assert np.nansum(bad.dimension_values("non-finite")) == (cells.state == grid.NONFINITE).sum()


def test_the_exponents_come_with_the_formats_edges(broken_job: Path) -> None:
    drawn = notebook.exponents(open_run(broken_job), site=ORIGIN, step=40)

    assert [type(part) for part in drawn] == [hv.Histogram, hv.VLine, hv.VLine, hv.VLine]
    assert "float16" in drawn.label or "float16" in drawn.group


def test_what_was_not_observed_is_told(broken_job: Path) -> None:
    with pytest.raises(SettingError, match=r"was not observed at step 99; see run\.records\(\)\."):
        notebook.exponents(open_run(broken_job), site=ORIGIN, step=99)


def test_lines_have_a_curve_for_each_rank(broken_job: Path) -> None:
    run = open_run(broken_job)

    assert list(notebook.lines(run, site=ORIGIN).keys()) == [0, 1, 2, 3]
    assert list(notebook.training(run).keys()) == [0, 1, 2, 3]
