"""The Quantities page without a browser: lines, a vector, marks, and what is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bokeh.events import Tap

from rankscope.sketch import sketch_array
from rankscope.store import SiteInfo, open_run
from rankscope.viewer.columns import NUMBER, UNDEFINED
from rankscope.viewer.pages import Quantities

from ...store.conftest import build_record
from ...store.test_agreement import written

ACT = "blocks.1.mlp.act"


@pytest.fixture
def open_quantities(open_page: Callable[..., Any]) -> Callable[..., Quantities]:
    def open_(path: Path, **chosen: object) -> Quantities:
        return open_page(path, page="quantities", **chosen)

    return open_


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", html.replace("<wbr>", ""))).strip()


def test_a_number_is_a_line_for_each_module_and_part(
    open_quantities: Callable[..., Quantities], derived_job: Path
) -> None:
    page = open_quantities(derived_job)

    asked = open_run(derived_job).quantity("dead_neurons", of=ACT)
    assert page.told.shown == "lines"
    assert list(page.lines.lines[0].data["step"]) == asked["step"].tolist()
    np.testing.assert_array_equal(page.lines.lines[0].data["value"], asked["value"])
    assert list(page.lines.lines[1].data["value"]) == [0.25] * 15
    assert plain(page.told.legend) == f"{ACT} blocks.1.mlp.up (tp=0)"
    assert f'data-site="activation:{ACT}"' in page.told.legend
    assert f"{ACT} 0.45 to 1.15" in page.told.summary
    assert list(page.twins.tables["quantity"].frame().columns) == [ACT, "blocks.1.mlp.up (tp=0)"]


def test_the_selected_site_is_among_the_lines(
    open_quantities: Callable[..., Quantities], derived_job: Path
) -> None:
    last = "blocks.3.mlp.act"
    page = open_quantities(derived_job, quantity="output_norm")
    first = plain(page.told.legend)
    assert last not in first

    page.session.select_site(f"activation:{last}")

    assert plain(page.told.legend).endswith(f" {last}")
    assert page.told.summary.endswith("12 more not drawn: a name filter chooses others.</p>")
    page.session.clear()
    assert plain(page.told.legend) == first


def test_where_a_bound_was_passed_is_marked(
    open_quantities: Callable[..., Quantities], derived_job: Path
) -> None:
    page = open_quantities(derived_job)

    assert list(page.lines.foot.events.data["step"]) == [20]
    assert f"▲ step 20: dead_neurons of {ACT} is 0.95, above 0.9." in page.told.summary


def test_what_was_asked_for_comes_before_what_sketches_tell(
    open_quantities: Callable[..., Quantities], derived_job: Path
) -> None:
    page = open_quantities(derived_job)
    assert page.told.names[:2] == ["", "input_cov_spectrum"]
    assert "output_norm" in page.told.names

    page.session.choice.quantity = "output_norm"
    assert "12 of 24 parts" in plain(page.told.title)
    assert "12 more not drawn" in page.told.summary
    page.session.choice.pattern = "mlp.act"
    assert "4 of 4 parts" in plain(page.told.title)


def test_a_vector_is_a_map_by_index_and_its_numbers_at_the_step(
    open_quantities: Callable[..., Quantities], derived_job: Path
) -> None:
    page = open_quantities(derived_job, quantity="input_cov_spectrum", step=8)

    shown = page.heatmap.grid
    assert page.told.shown == "vector"
    assert shown is not None
    column = shown.column(8)
    expected = np.log2(9.0) - 2 * np.arange(6)
    np.testing.assert_allclose(shown.shade[:, column], expected, rtol=1e-6)
    assert (shown.state[:, column] == NUMBER).all()
    assert (shown.state[:, shown.column(10)] == UNDEFINED).all()
    np.testing.assert_allclose(page.vector.source.data["value"], 2.0**expected)
    assert "6 numbers in 15 steps; at step 8 from 0.008789 to 9." in page.told.summary

    figure = page.heatmap.figure
    figure._trigger_event(Tap(figure, x=10, y=0.5))
    assert page.session.choice.step == 10
    assert "could not be known: see the events" in page.told.summary


def test_what_follows_from_several_kinds_is_drawn_and_what_is_not_finite_told_apart(
    open_quantities: Callable[..., Quantities], new_job: Callable[..., Any]
) -> None:
    job, up = new_job(ranks=1, bad_step=None, hold=1), "blocks.1.mlp.up"
    pair = [SiteInfo(kind=kind, name=up, dtype="float32") for kind in ("weight", "update")]
    job.sites = [*job.sites, *pair]
    job.index = np.array(job.writer.catalog.add_sites(job.sites), np.intp)
    job.kept[job.site(up, "update"), 3, 0, True] = sketch_array(np.zeros(512, np.float32))
    for kind in ("weight", "update"):
        job.kept[job.site(up, kind), 4, 0, True] = sketch_array(np.zeros(512, np.float32))
    job.commit(range(6))

    page = open_quantities(job.path, quantity="trust_ratio")

    asked = open_run(job.path).quantity("trust_ratio")
    assert {"update_ratio", "trust_ratio", "unchanged_share"} < {*page.told.names}
    assert page.told.shown == "lines"
    drawn = page.lines.lines[0].data
    known = asked[~asked["step"].isin([3, 4])]
    np.testing.assert_array_equal(asked.loc[asked["step"].isin([3, 4]), "value"], [np.inf, np.nan])
    np.testing.assert_array_equal(drawn["step"], known["step"])
    np.testing.assert_array_equal(drawn["value"], known["value"])
    assert page.curves is not None
    assert [list(one) for one in page.curves.bad] == [[3, 4]]
    assert plain(page.told.legend) == up


def test_the_noise_scale_is_a_line_of_the_whole_model(
    open_quantities: Callable[..., Quantities], tmp_path: Path
) -> None:
    dice = np.random.default_rng(6)
    run = written(
        tmp_path / "r", build_record, [[*own] for own in 1 + dice.normal(size=(4, 3, 50))]
    )

    page = open_quantities(run.path, quantity="noise_scale")

    asked = run.quantity("noise_scale")["value"]
    assert len(asked) == 4
    np.testing.assert_array_equal(page.lines.lines[0].data["value"], asked)
    assert plain(page.told.legend) == "(root)"
    assert "1 of 1 part" in plain(page.told.title)


def test_a_run_without_quantities_says_how_to_ask(
    open_quantities: Callable[..., Quantities], new_job: Callable
) -> None:
    page = open_quantities(new_job().path)

    assert "`observe(…, quantities=" in page.told.problem
    assert page.told.shown == ""


def test_what_there_is_not_is_told(
    open_quantities: Callable[..., Quantities], derived_job: Path
) -> None:
    page = open_quantities(derived_job, quantity="dead_neurons", pattern="nowhere")
    assert page.told.problem.startswith("No dead_neurons of 'nowhere' was derived.")

    page.session.choice.pattern = "("
    assert page.told.problem.startswith("The name filter is no regular expression")

    page.session.choice.pattern = ""
    assert (page.told.problem, page.told.shown) == ("", "lines")
