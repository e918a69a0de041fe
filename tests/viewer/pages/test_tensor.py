"""The page of one tensor without a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from bokeh.events import Tap

from rankscope.store import open_run
from rankscope.viewer.choosing import Choosing

ORIGIN = "activation:blocks.2.mlp.act"


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", html.replace("<wbr>", ""))).strip()


def test_the_slider_has_a_place_for_each_recorded_step(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None, every=10)
    job.commit(range(45))
    page = open_page(job.path, page="tensor", kind="activation", site=ORIGIN, step=20)
    assert (page.told.last, page.told.at) == (4, 2)
    assert plain(page.told.place) == "step 20 · 3 of 5"

    page.go_to(3)

    assert page.session.choice.step == 30
    assert page.told.at == 3
    page.go_to(99)
    assert page.session.choice.step == 30


# `Any`: bokeh's sources are untyped here.
def test_the_step_alone_is_drawn_anew_while_scrubbing(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=20)
    drawn = list[str]()

    def watch(name: str, source: Any) -> None:
        source.on_change("data", lambda attr, old, new: drawn.append(name))

    watch("exponents", page.selection.exponents.bars)
    watch("training", page.training.lines.source)
    watch("ranks", page.selection.ranks.source)
    page.go_to(30)

    assert drawn == ["exponents"]


def test_the_life_of_a_tensor_is_painted_with_the_edges_of_the_format(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=20, format="float8_e4m3fn")

    shown = page.shown
    assert page.life.cells.data["state"][0][0, 40:60].tolist() == [3] * 20
    assert [edge.visible for edge in page.life.edges] == [True, True, True]
    highest, normal, _ = (edge.location for edge in page.life.edges)
    assert highest == pytest.approx(shown.first_bin + shown.high + 1 - np.log2(448))
    assert normal == shown.first_bin + shown.high + 1 + 6
    assert "not finite from step 40" in page.told.life_summary


def test_new_steps_of_a_life_are_patched(new_job: Callable, open_pages: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(20))
    pages = open_pages(job.path, page="tensor", site=ORIGIN, step=3)
    image = pages.page.life.cells.data["shade"][0]

    job.commit(range(20, 21))
    pages.session.follower.look()
    pages.tick()

    assert pages.page.life.cells.data["shade"][0] is image
    assert pages.page.shown.grid.last.tolist() == list(range(21))


def test_a_click_in_the_life_selects_its_step(broken_job: Path, open_page: Callable) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=20)

    figure = page.life.figure
    figure._trigger_event(Tap(figure, sx=0, sy=0, x=33.2, y=4.5))

    assert (page.session.choice.site, page.session.choice.step) == (ORIGIN, 33)


def test_all_statistics_are_drawn_once_they_are_asked_for(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=20)
    assert not any(len(source.data["step"]) for source in page.facets.sources.values())

    page.session.choice.more = "scalars"

    run = open_run(broken_job)
    for name in ("rms", "mean", "zero_share", "nonfinite"):
        drawn = page.facets.sources[name].data
        kept = run.scalar(name, sites=[ORIGIN]).values[:, 0].astype(float)
        there = np.isfinite(kept)
        values = np.log2(kept[there]) if name == "rms" else kept[there]
        np.testing.assert_allclose(drawn["value"], values, rtol=1e-6)
    assert page.facets.bad["rms"].data["step"].tolist() == list(range(40, 60))


def test_of_one_step_the_statistics_are_dots(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(7, 8))

    page = open_page(job.path, page="tensor", site=ORIGIN, step=7, more="scalars")

    for name in ("rms", "mean", "zero_share"):
        dots = page.facets.alone[name].data
        assert list(dots["step"]) == [7]
        assert dots["value"][0] == page.facets.sources[name].data["value"][0]


def test_what_is_sought_is_forgotten_before_the_page_is_left(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=20)
    page.sites.look_for("blocks.1 up")
    assert page.sites.told.found

    assert page.sites.forget()
    assert page.sites.told.found == ""
    assert not page.sites.forget()


def test_alerts_can_be_gone_through(judged_job: Path, open_page: Callable) -> None:
    page = open_page(judged_job, page="tensor", site=ORIGIN, step=20)
    steps = page.session.alert_steps().tolist()
    run = open_run(judged_job)
    alerts = run.alerts()
    assert steps == sorted(set(alerts[alerts["site"] == ORIGIN]["first_step"]))
    assert len(steps) > 1
    assert page.told.has_alerts

    visited = list[int]()
    for way in ("first", "next", "next", "last", "previous", "first", "previous"):
        page.session.to_alert(way)
        visited.append(page.session.choice.step)
    third = steps[min(2, len(steps) - 1)]
    assert visited == [steps[0], steps[1], third, steps[-1], steps[-2], steps[0], steps[0]]


def test_without_alerts_there_is_nothing_to_go_to(broken_job: Path, open_page: Callable) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=20)

    page.session.to_alert("next")

    assert page.session.choice.step == 20
    assert not page.told.has_alerts
    assert "no alert at this tensor" in page.told.alerts


def test_names_of_edges_are_legible_above_bars_and_hatches(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=20, theme="dark")

    assert {name.background_fill_color for name in page.beside.exponents.names} == {"#161c23"}
    assert all(name.background_fill_alpha >= 0.8 for name in page.beside.exponents.names)


def test_a_histogram_can_be_a_line_and_count_elements(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=20)
    shown = page.selection.exponents
    assert [one.visible for one in (*shown.drawn["bars"], *shown.drawn["line"])] == [1, 0, 0]

    page.session.choice.param.update(drawing="line", amount="count")

    assert [one.visible for one in (*shown.drawn["bars"], *shown.drawn["line"])] == [0, 1, 1]
    assert shown.figure.yaxis[0].axis_label == "elements"
    assert shown.figure.yaxis[0].formatter.args == {"total": 4 * 512}
    page.session.choice.amount = "share"
    assert shown.figure.yaxis[0].axis_label == "share of elements"


def test_without_a_tensor_it_says_how_to_choose_one(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(3))

    page = open_page(job.path, page="tensor")

    assert "No tensor is chosen. Open the Map" in plain(page.selection.told.cell)
    assert plain(page.told.place) == "no step"
    assert page.shown is None


UP = "activation:blocks.2.mlp.up"
GRADIENT = "weight_gradient:blocks.2.mlp.up"


# `Any`: bokeh's sources are untyped here.
def test_other_sites_stand_beside_in_the_histogram_and_over_steps(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=45)
    page.session.choice.beside = [UP, GRADIENT]

    run = open_run(broken_job)
    found = run.exponents(sites=[UP], steps=45).isel(step=0, site=0)
    shares = found["count"].values[found["count"].values > 0] / int(found["total"])
    drawn: Any = page.selection.exponents.others[0].data
    np.testing.assert_allclose(drawn["y"][1:-1][drawn["y"][1:-1] > 1e-20], shares)
    assert set(drawn["site"]) == {"blocks.2.mlp.up (activation)"}
    assert len(page.selection.exponents.others[2].data["x"]) == 0
    lines: Any = [one.data for one in page.beside.lines.lines]
    for site, line in zip((ORIGIN, UP, GRADIENT), lines, strict=False):
        kept = run.scalar("rms", sites=[site]).values[:, 0].astype(float)
        np.testing.assert_allclose(line["value"], np.log2(kept[np.isfinite(kept)]), rtol=1e-6)
    assert [len(one["step"]) for one in lines[3:]] == [0, 0]
    assert "blocks.2.mlp.up (activation): 2 048 elements between" in plain(page.beside.told.summary)
    assert "not finite from step 40; blocks.2.mlp.up (activation)" in (
        page.beside.told.curves_summary
    )

    table = page.twins.tables["tensor_exponents"].frame()
    assert list(table.columns)[2:] == [
        "share of blocks.2.mlp.up (activation)", "share of blocks.2.mlp.up (weight gradient)",
    ]  # fmt: skip
    np.testing.assert_allclose(table.sum()[["share", *table.columns[2:]]], 1)
    assert table["elements"].sum() == 2048
    assert page.twins.tables["tensor_beside"].frame().shape == (60, 3)

    page.session.choice.beside = []
    assert len(page.selection.exponents.others[0].data["x"]) == 0
    assert (page.beside.told.summary, page.beside.told.curves) == ("", "")
    assert page.selection.exponents.figure.x_range.start == page.selection.exponents.span[0]


def test_a_fifth_site_is_refused_and_one_that_there_is_not_is_told(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=20)
    session, sites = page.session, page.session.follower.sites().index.tolist()

    for site in sites[:5]:
        session.put_beside(site)

    assert session.choice.beside == sites[:4]
    assert session.options.refused.startswith("4 sites stand beside already")
    session.put_beside(sites[0])
    assert (session.choice.beside, session.options.refused) == (sites[1:4], "")
    session.choice.beside = sites[:6]
    assert page.beside.told.problem.startswith("Of 6 sites the first 4 are drawn")
    session.choice.beside = ["weight:<b>nowhere", sites[1]]
    assert "no site weight:<b>nowhere" in page.beside.told.problem
    assert "<b>" not in page.beside.told.legend


def test_the_line_of_another_site_counts_elements_where_the_bars_do(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=20)
    page.session.choice.param.update(beside=[UP], amount="count", drawing="smooth")

    smooth: Any = page.selection.exponents.smooth.data
    assert np.trapezoid(smooth["y"], smooth["x"]) == pytest.approx(
        1 - page.selection.held.aside["zero"] / page.selection.held.total, rel=1e-3
    )
    assert [one.visible for one in page.selection.exponents.drawn["smooth"]] == [True]
    other: Any = page.selection.exponents.others[0].data
    assert np.trapezoid(other["y"], other["x"]) == pytest.approx(1, rel=1e-3)  # 2048 of 2048


def test_sites_are_found_as_one_types_and_gone_through_in_order(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=20)

    page.sites.look_for("MLP 2 grad")
    assert "data-site=" in page.sites.told.found
    assert plain(page.sites.told.found).startswith("blocks.2.mlp.up weight gradient + beside")
    page.sites.take_first()
    assert (page.session.choice.site, page.session.choice.step) == (GRADIENT, 20)
    assert page.sites.told.found == ""
    page.sites.look_for("<b>")
    assert plain(page.sites.told.found) == "No site has &lt;b&gt; in its name."
    page.sites.take_first()
    page.sites.look_for("blocks")
    assert "and 24 more: write on" in plain(page.sites.told.found)

    page.session.choice.site = ORIGIN
    page.session.move_site(1)
    assert page.session.choice.site == "activation:blocks.3.norm1"
    page.session.move_site(-2)
    assert page.session.choice.site == UP
    page.session.choice.site = ""
    page.session.move_site(1)
    assert page.session.choice.site == "activation:blocks.0.norm1"


def test_what_is_often_put_beside_is_suggested(broken_job: Path, open_page: Callable) -> None:
    page = open_page(broken_job, page="tensor", site=UP, step=20)

    suggested = re.findall('data-beside="([^"]*)"[^>]*>([^<]*)<', page.sites.told.suggested)

    assert suggested == [
        (GRADIENT, "its weight gradient"),
        ("activation:blocks.2.norm2", "before it"),
        (ORIGIN, "after it"),
        ("activation:blocks.1.mlp.up", "the layer before"),
        ("activation:blocks.3.mlp.up", "the layer after"),
        ("activation:blocks.0.mlp.up", "the first layer"),
    ]
    page.session.put_beside(GRADIENT)
    assert page.sites.told.suggested.count('aria-pressed="true"') == 1


def test_parameters_of_one_module_are_told_apart() -> None:
    labels = ["activation:up", "weight:up.weight", "weight:up.bias", "weight_gradient:up.bias"]
    sites = pd.DataFrame(
        [(*label.split(":"), "", 0) for label in labels],
        columns=["kind", "name", "slot", "occurrence"],
        index=labels,
    )

    suggested = Choosing(sites).suggestions(labels[0])

    told = [one.why for one in suggested if one.site in labels[1:]]
    assert told == ["its weight (weight)", "its weight (bias)", "its weight gradient"]


def test_calls_of_one_module_are_told_apart() -> None:
    kinds = ("activation", "activation_gradient", "weight")
    labels = [f"{kind}:up{call}" for kind in kinds[:2] for call in ("", "#1")] + ["weight:up"]
    sites = pd.DataFrame(
        [(label.partition(":")[0], "up", "", int(label[-1] == "1")) for label in labels],
        columns=["kind", "name", "slot", "occurrence"],
        index=labels,
    )

    suggested = Choosing(sites).suggestions(labels[1])[:4]

    assert [(one.site, one.why) for one in suggested] == [
        ("activation:up", "its activation #0"),
        ("activation_gradient:up", "its activation gradient #0"),
        ("activation_gradient:up#1", "its activation gradient #1"),
        ("weight:up", "its weight"),
    ]


def test_a_site_that_there_is_not_draws_nothing(broken_job: Path, open_pages: Callable) -> None:
    pages = open_pages(broken_job, page="tensor", site="activation:nosuch")

    assert "This run has no site activation:nosuch." in plain(pages.page.selection.told.cell)
    assert not pages.page.selection.told.there
    pages.session.choice.site = ORIGIN
    assert pages.page.selection.told.there


@pytest.mark.parametrize("asked", [{"format": "bogus"}, {"statistic": "bogus"}])
def test_what_cannot_be_shown_is_told_once_whatever_size_the_page_gets(
    broken_job: Path, open_pages: Callable, asked: dict[str, str]
) -> None:
    pages = open_pages(broken_job, page="tensor", site=ORIGIN, step=20, **asked)
    assert "'bogus'" in pages.told.problem

    pages.page.life.figure.trigger("inner_width", 600, 500)

    assert "'bogus'" in pages.told.problem


def test_where_a_site_was_not_observed_the_nearest_step_is_named(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=2900)

    told = plain(page.selection.told.exponents_summary)
    assert re.fullmatch(r"Not observed at step 2900\. The nearest is at step \d+\.", told)
