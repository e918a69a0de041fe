"""Plots as tables."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from rankscope.store import open_run
from rankscope.viewer import grid, series, twins
from rankscope.viewer.spectrum import load_spectrum

ORIGIN = "activation:blocks.2.mlp.act"


def test_a_heatmap_is_a_table_of_its_cells(broken_job: Path) -> None:
    run = open_run(broken_job)
    shown = grid.load_grid(run, statistic="rms", kind="activation", width=1000, height=500)

    table = twins.grid_table(shown)

    values = run.scalar("rms", kind="activation")
    assert table.index.tolist() == list(range(60))
    np.testing.assert_allclose(
        table.loc[:39].to_numpy(float), values.sel(step=slice(0, 39)).values, rtol=1e-5
    )
    assert set(table.loc[40:, "blocks.2.mlp.act"]) == {"not finite"}


def test_lines_are_a_table_of_ranks(broken_job: Path) -> None:
    lines = series.load_training(open_run(broken_job), "loss")

    table = twins.lines_table(lines)

    assert list(table.columns) == ["rank 0", "rank 1", "rank 2", "rank 3"]
    np.testing.assert_array_equal(table["rank 2"], lines.values[2])


def test_a_histogram_is_a_table_of_all_elements(broken_job: Path) -> None:
    spectrum = load_spectrum(open_run(broken_job), site=ORIGIN, step=45)

    table = twins.spectrum_table(spectrum)

    assert spectrum is not None
    assert sum(table["elements"].tolist()) == spectrum.total == 2048
    assert sum(table["share"].tolist()) == 1
    assert table.loc["+∞", "elements"] == 8


def test_nothing_is_an_empty_table() -> None:
    for empty in (twins.grid_table(None), twins.lines_table(None), twins.spectrum_table(None)):
        assert "Plot: nothing to show." in twins.html(empty, "Plot")


def test_a_long_table_is_shortened_on_the_page_and_says_so() -> None:
    frame = pd.DataFrame(np.zeros((10_000, 50)), index=pd.Index(range(10_000), name="step"))

    html = twins.html(frame, "Plot")

    rows = re.findall(r'<th scope="row">(\d+)</th>', html)
    assert (len(rows), rows[0], rows[-1]) == (300, "0", "9999")
    assert "and 40 of 50 columns; CSV has all" in html


def test_names_in_tables_are_escaped() -> None:
    frame = pd.DataFrame({"<b>x": ["<i>y"]}, index=pd.Index(["<u>z"], name="<s>"))

    html = twins.html(frame, "<p>caption")

    assert [tag for tag in ("<b>", "<i>", "<u>", "<s>", "<p>") if tag in html] == []


def test_a_table_is_made_when_it_is_asked_for_and_follows(
    new_job: Callable, open_pages: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(5))
    pages = open_pages(job.path, page="map", kind="activation", site=ORIGIN, step=3)
    told = pages.page.twins.told
    assert told.html == {}

    pages.page.twins.toggle("training")
    assert '<th scope="row">4</th>' in told.html["training"]
    job.commit(range(5, 7))
    pages.session.follower.look()
    pages.tick()
    assert '<th scope="row">6</th>' in told.html["training"]
    pages.page.twins.toggle("training")
    pages.page.twins.toggle("no such plot")
    assert told.html == {}

    csv = pd.read_csv(io.StringIO(pages.page.twins.csv("heatmap")), index_col="step")
    assert csv.shape == (7, 24)
    assert pages.page.twins.csv("no such plot") == ""
