"""The Map without a browser: what is chosen, and what the figures and texts then hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bokeh.embed.util import contains_tex_string
from bokeh.events import RangesUpdate, Reset, Tap

from rankscope.logframe import import_logframe
from rankscope.sketch import BlockExponents
from rankscope.store import open_run
from rankscope.viewer import grid
from rankscope.viewer.figures import colours
from rankscope.viewer.pages import Map

from ...logframe.tandv import build
from ..browser.big_run import write_big_run

ORIGIN = "activation:blocks.2.mlp.act"


def grid_of(page: Map) -> grid.Grid:
    assert page.heatmap.grid is not None
    return page.heatmap.grid


# `Any`: bokeh's figures are untyped here, and a click by hand goes through a private door.
def tap(figure: Any, x: float, y: float) -> None:
    """A click, as the browser would tell it."""
    figure._trigger_event(Tap(figure, sx=0, sy=0, x=x, y=y))


def column(source: Any, name: str) -> list[Any]:
    return list(source.data[name])


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", html.replace("<wbr>", ""))).strip()


def test_an_empty_run_opens_and_fills(new_job: Callable, open_pages: Callable) -> None:
    job = new_job(bad_step=None)
    pages = open_pages(job.path, page="map")
    page = pages.page
    assert page.told.problem == "No site has been recorded yet."

    job.commit(range(3))
    pages.session.follower.look()
    pages.tick()

    assert page.session.choice.kind == "activation"
    assert grid_of(page).last.tolist() == [0, 1, 2]
    assert column(page.training.lines.source, "step") == [0, 1, 2]


def test_a_click_selects_a_cell_and_shows_its_histogram(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job)

    tap(page.heatmap.figure, 29.7, 5.5)

    assert (page.session.choice.site, page.session.choice.step) == (
        "activation:blocks.0.mlp.act",
        30,
    )
    assert "blocks.0.mlp.act activation · step 30 · float16 · 8×64 · GELU" in plain(
        page.selection.told.cell
    )
    table = open_run(broken_job).table(30, ["activation:blocks.0.mlp.act"])[1]
    assert sum(page.selection.exponents.bars.data["count"]) == table.histogram.sum()
    assert page.session.pinned.location == 30


def test_the_row_of_the_selection_is_named(tmp_path: Path, open_page: Callable) -> None:
    write_big_run(tmp_path / "run", blocks=3, times=1, spikes={})
    page = open_page(tmp_path / "run", kind="activation", statistic="abs_max")
    axis: Any = page.heatmap.figure.yaxis[0]
    assert len(grid_of(page).names) > 40  # each third row is named
    assert axis.ticker.ticks[:4] == [0.5, 3.5, 6.5, 9.5]
    assert axis.ticker.ticks[-2:] == [54.5, 59.5]  # the last row is named, none beside it

    tap(page.heatmap.figure, 30, 5.5)

    assert axis.ticker.ticks[:3] == [0.5, 5.5, 9.5]
    assert axis.major_label_overrides[5.5]


@pytest.mark.parametrize("name", ["$$\\frac{1}{2}$$", "\\(loss\\)", "\\[loss\\]"])
def test_names_are_no_formulas(new_job: Callable, open_page: Callable, name: str) -> None:
    job = new_job(bad_step=None)
    job.training = lambda step, rank: {name: step + rank}
    named = replace(job.sites[-1], name=name)
    job.index = np.array(job.writer.catalog.add_sites([*job.sites[:-1], named]), np.intp)
    job.commit(range(3))

    page = open_page(job.path, kind=named.kind, training=name)

    drawn = [
        page.training.lines.figure.yaxis[0].axis_label,
        *page.heatmap.figure.yaxis[0].major_label_overrides.values(),
    ]
    assert contains_tex_string(name)
    assert not any(contains_tex_string(one) for one in drawn)
    assert sum(one.replace("\N{ZERO WIDTH SPACE}", "") == name for one in drawn) == 2


def test_a_loss_without_neighbours_is_a_dot(new_job: Callable, open_pages: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(1))
    pages = open_pages(job.path, page="map")
    lines = pages.page.training.lines
    assert column(lines.alone, "step") == [0] * job.ranks

    job.commit(range(1, 2))
    pages.session.follower.look()
    pages.tick()
    assert column(lines.alone, "step") == []


def test_of_a_rank_that_was_kept_its_own_exponents_are_shown(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(1))
    job.commit(range(1, 2), kept=(1,))
    site = job.site("blocks.0.mlp.act")
    page = open_page(job.path, kind="activation", site=site, step=1, view="1")
    run = open_run(job.path)

    own = run.table(1, [site], view=1)[1].histogram.sum()
    assert sum(page.selection.exponents.bars.data["count"]) == own
    assert own < run.table(1, [site])[1].histogram.sum()
    assert "elements of rank 1" in page.selection.told.exponents_summary

    page.session.choice.step = 0
    every = run.table(0, [site])[1].histogram.sum()
    assert sum(page.selection.exponents.bars.data["count"]) == every
    assert (
        "That is of all ranks: rank 1 was not kept here." in page.selection.told.exponents_summary
    )
    page.session.choice.view = "max"
    assert "That is of all ranks" not in page.selection.told.exponents_summary


def test_a_click_beside_the_cells_selects_nothing(broken_job: Path, open_page: Callable) -> None:
    page = open_page(broken_job)

    tap(page.heatmap.figure, -20, 5.5)

    assert page.session.choice.site == ORIGIN


def test_a_click_in_the_loss_moves_the_step(broken_job: Path, open_page: Callable) -> None:
    page = open_page(broken_job)

    tap(page.training.lines.figure, 12.4, 3.0)

    assert (page.session.choice.site, page.session.choice.step) == (ORIGIN, 12)


def test_nonfinite_is_painted_above_the_shades_in_the_reserved_colour(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job)
    state = page.heatmap.cells.data["state"][0]
    row = grid_of(page).row(ORIGIN)

    assert np.all(state[row, 40:60] == grid.NONFINITE)
    assert not np.any(state[:, :40] == grid.NONFINITE)
    top = page.heatmap.figure.renderers[1].glyph
    assert top.color_mapper.palette[grid.NONFINITE] == colours.LIGHT.nonfinite


def test_infinities_stand_beside_the_histogram(broken_job: Path, open_page: Callable) -> None:
    page = open_page(broken_job)

    aside = dict(
        zip(
            page.selection.exponents.aside.data["name"],
            page.selection.exponents.aside.data["count"],
            strict=True,
        )
    )

    assert aside["+∞"] == 3
    assert aside["NaN"] == 0


def test_the_worst_rank_is_named(broken_job: Path, open_page: Callable) -> None:
    page = open_page(broken_job)

    assert page.selection.ranks.label.text == "rank 2"
    assert "rank 2 not finite at step 40" in plain(page.selection.told.ranks)
    assert column(page.selection.ranks.bad, "rank") == [2] * 20


def test_the_formats_edges_are_drawn_and_the_table_marks_the_own_format(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job)
    assert [edge.visible for edge in page.selection.exponents.edges] == [True, True, True]

    page.session.choice.format = "float8_e4m3fn"

    assert page.selection.exponents.edges[0].location == pytest.approx(np.log2(448))
    assert 'class="chosen"><th scope="row">float8_e4m3fn' in page.selection.told.fit
    assert "overflow" in set(page.selection.exponents.bars.data["zone"])


def test_blocks_that_were_counted_have_a_table_of_their_own(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None)
    site = job.site("blocks.0.mlp.up")
    exact_count, x = BlockExponents(rows=1, columns=16, scale="amax"), np.ones((2, 32))
    x[0, 0] = 1000
    place = int(job.index[[one.label for one in job.sites].index(site)])
    job.writer.catalog.add_exact_counts([(place, exact_count.name)])
    record = job.record(0, 5, without=(), spike={})
    job.writer.commit([replace(record, exact_counts={0: exact_count.count(x)})], streams={})

    page = open_page(job.path, kind="activation", site=site, step=5)

    text = plain(page.selection.told.fit)
    assert "If each block of 1 × 16 is scaled by its largest magnitude and cast to" in text
    assert "float4_e2m1fn 0 % 23 % 23 % clipped" in text.split("If each block")[1]
    page.session.choice.site = job.site("blocks.1.mlp.up")
    assert "If each block" not in page.selection.told.fit


def test_a_format_that_reaches_further_is_told_at_the_border(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job)

    page.session.choice.format = "bfloat16"

    assert [edge.visible for edge in page.selection.exponents.edges] == [False, False, False]
    assert page.selection.exponents.away[1].text == "max 2¹²⁸ →"


@pytest.mark.parametrize("view", ["merged", "max", "min", "argmax", "argmin", "2"])
@pytest.mark.parametrize("statistic", ["rms", "mean", "abs_min", "nonfinite"])
def test_every_view_of_every_sort_of_statistic_is_shown(
    broken_job: Path, view: str, statistic: str, open_page: Callable
) -> None:
    page = open_page(broken_job, kind="weight_gradient", view=view, statistic=statistic)

    assert page.told.problem == ""
    assert grid_of(page).shade.shape == (12, 60)
    assert statistic in page.told.heatmap_summary


def test_a_broken_filter_is_told_and_the_picture_stays(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job)

    page.session.choice.pattern = "mlp["
    assert page.told.problem.startswith("The name filter is no regular expression:")
    page.session.choice.pattern = "nothing like this"
    assert page.told.problem.startswith("No site's name matches 'nothing like this'")
    assert len(grid_of(page).names) == 24

    page.session.choice.pattern = r"mlp\.act$"
    assert page.told.problem == ""
    assert len(grid_of(page).names) == 4


def test_an_address_with_unknown_parts_is_told(broken_job: Path, open_page: Callable) -> None:
    page = open_page(
        broken_job, kind="activation", site="activation:gone", step=3, statistic="fame"
    )

    assert "There is no statistic 'fame'" in page.told.problem
    assert "no site activation:gone" in plain(page.selection.told.cell)


def test_names_from_the_store_are_escaped(broken_job: Path, open_page: Callable) -> None:
    page = open_page(broken_job, kind="activation", site="activation:<script>")

    assert "<script>" not in page.selection.told.cell


def test_arrows_and_escape_move_and_clear(broken_job: Path, open_page: Callable) -> None:
    page = open_page(broken_job)

    page.session.move(-1)
    assert page.session.choice.step == 39
    page.session.move(1)
    assert page.session.choice.step == 40
    page.session.clear()
    assert (page.session.choice.site, page.session.choice.step) == ("", None)
    assert not page.session.pinned.visible


def test_zoom_by_the_mouse_asks_for_the_visible_steps_only(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job)

    figure = page.heatmap.figure
    figure._trigger_event(RangesUpdate(figure, x0=9.6, x1=20.2, y0=0, y1=1))

    assert page.session.choice.zoom == (9.6, 20.2)
    assert (grid_of(page).first[0], grid_of(page).last[-1]) == (9, 21)
    figure._trigger_event(Reset(figure))
    assert page.session.choice.zoom is None
    assert (page.session.steps.start, page.session.steps.end) == (-0.5, 59.5)


def test_new_steps_are_patched_and_zoom_and_selection_stay(
    new_job: Callable, open_pages: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(20))
    pages = open_pages(job.path, page="map")
    page = pages.page
    tap(page.heatmap.figure, 7, 5.5)
    page.session.choice.zoom = (2.0, 12.0)
    before = dict(page.session.choice.query())

    for step in range(20, 23):
        job.commit(range(step, step + 1))
        pages.session.follower.look()
        pages.tick()

    assert page.session.choice.query() == before
    assert (page.session.steps.start, page.session.steps.end) == (2.0, 12.0)
    assert column(page.training.lines.source, "step") == list(range(23))
    assert column(page.selection.ranks.source, "step") == list(range(23))
    assert "step 22" in plain(pages.told.chips)


def test_without_zoom_the_page_follows(new_job: Callable, open_pages: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(20))
    pages = open_pages(job.path, page="map")
    page = pages.page
    image = page.heatmap.cells.data["shade"][0]

    job.commit(range(20, 21))
    pages.session.follower.look()
    pages.tick()

    assert (page.session.steps.start, page.session.steps.end) == (-0.5, 20.5)
    assert page.heatmap.cells.data["shade"][0] is image, "patched in place, not replaced"
    assert np.isfinite(image[:, :21]).all()
    assert np.isnan(image[:, 21:]).all()


def test_steps_recorded_now_and_then_are_drawn_where_they_are(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(0, 10))
    job.commit(range(50, 100, 10))

    shown = grid_of(open_page(job.path))

    place = shown.column(70)
    assert place is not None
    assert shown.left + place * shown.stride <= 70 <= shown.left + (place + 1) * shown.stride
    empty = shown.column(30)
    assert empty is None
    assert (shown.state == grid.MISSING).any()


def test_between_sketches_the_sentinel_is_shown(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=17, every=10)
    job.commit(range(25))
    page = open_page(job.path, kind="activation", statistic="rms")

    assert (page.session.cards()[0].step, page.session.cards()[0].ranks) == (17, (2,))
    held = sorted({int(step) for step in grid_of(page).first if step >= 0})
    assert held == [0, 10, *range(17, 25)]
    page.session.choice.statistic = "abs_max"
    assert sorted({int(step) for step in grid_of(page).first}) == list(range(25))
    page.session.choice.param.update(site="activation:blocks.0.norm1", step=12)
    told = plain(page.selection.told.exponents_summary)
    assert told.startswith("At step 12 the sentinel alone looked at this site: |x| is at most")
    assert told.endswith("The nearest is at step 10.")
    assert not any(zone.visible for zone in page.selection.exponents.zones)
    page.session.choice.step = 10
    assert all(zone.visible for zone in page.selection.exponents.zones)
    page.session.choice.step = 12
    page.session.choice.view = "argmax"
    page.session.choice.statistic = "rms"
    assert page.told.problem == ""


def test_a_sample_is_told_beside_the_histogram(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None, unseen=3584)
    job.commit(range(3))
    page = open_page(job.path, kind="activation", site="activation:blocks.0.norm1", step=1)

    told = plain(page.selection.told.exponents_summary)
    assert told.startswith("A sample of 2 048 elements of 16 384")
    assert "extremes are bounds, sums estimates. They lie between" in told


def test_what_a_logframe_does_not_tell_is_told(tmp_path: Path, open_page: Callable) -> None:
    tensor = np.array([0.0, 0.5, 2.0, 0.0, 4.0], np.float32)
    log = build([(step, "layer", "Activation", tensor) for step in range(3)])
    import_logframe(log, tmp_path / "run", run="run")

    page = open_page(tmp_path / "run", kind="activation", site="activation:layer", step=1)

    assert plain(page.selection.told.exponents_summary).startswith(
        "3 elements of 5, of the others the LogFrame does not tell enough. They lie between 2¹ and"
    )
    assert plain(page.training.told.summary) == "No training statistic has been recorded."


def test_the_page_shows_all_steps_though_few_were_sketched(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None, every=10)
    job.commit(range(25))
    page = open_page(job.path, kind="activation", statistic="rms")

    assert (page.session.steps.start, page.session.steps.end) == (-5, 25)  # columns of ten steps
    page.session.choice.param.update(site="activation:blocks.0.norm1", step=12)
    page.session.move(1)
    assert page.session.choice.step == 20
    page.session.choice.step = 12
    page.session.move(-1)
    assert page.session.choice.step == 10
    tap(page.selection.ranks.figure, 18.9, 0.0)
    assert page.session.choice.step == 20
    tap(page.training.lines.figure, 18.9, 3.0)
    assert page.session.choice.step == 19


def test_without_a_selection_it_says_how_to_select(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(3))

    page = open_page(job.path)

    assert "Click a cell" in page.selection.told.cell
    assert page.selection.told.fit == ""


def test_a_folded_module_is_one_row_of_its_worst(broken_job: Path, open_page: Callable) -> None:
    page = open_page(broken_job, kind="activation", fold="2")
    shown = grid_of(page)

    assert shown.names == [f"blocks.{n} · 6 sites" for n in range(4)]
    assert shown.said[0] == "blocks.0 · 6 sites (activation)"
    assert "24 sites in 4 rows, steps 0–59" in page.told.heatmap_summary
    sites = shown.row_sites[2]
    run = open_run(broken_job)
    every = run.scalar("rms", sites=sites).values
    bad = (run.scalar("nonfinite", sites=sites).values > 0).any(axis=1)
    assert np.allclose(2.0 ** shown.shade[2], np.nanmax(every, axis=1))
    assert ((shown.state[2] == grid.NONFINITE) == bad).all()
    assert not (shown.state[:2] == grid.NONFINITE).any()

    tap(page.heatmap.figure, 40, 2.5)
    assert (page.session.choice.site, page.session.choice.step) == (ORIGIN, 40)
    box = page.heatmap.chosen
    assert (column(box, "top"), column(box, "bottom")) == ([2], [3])


@pytest.mark.parametrize("view", ["max", "min", "argmax", "argmin", "2"])
@pytest.mark.parametrize("statistic", ["rms", "abs_min"])
def test_every_view_of_a_folded_module_is_of_all_its_sites(
    broken_job: Path, view: str, statistic: str, open_page: Callable
) -> None:
    page = open_page(broken_job, kind="activation", view=view, statistic=statistic, fold="1")

    assert page.told.problem == ""
    [cells] = grid_of(page).shade
    scalar = open_run(broken_job).scalar
    asked = view.removeprefix("arg") if view in grid.RANK_VIEWS else grid.run_view(view)
    found = scalar(statistic, kind="activation", view=asked)
    smallest = view.endswith("min") or (statistic == "abs_min" and view != "argmax")
    places = (np.nanargmin if smallest else np.nanargmax)(found.values, axis=1)
    if view in grid.RANK_VIEWS:
        found = scalar(statistic, kind="activation", view=view)
    values = found.values[np.arange(60), places]
    assert np.allclose(cells if view in grid.RANK_VIEWS else 2.0**cells, values)


def test_modules_are_folded_and_unfolded_one_by_one(broken_job: Path, open_page: Callable) -> None:
    page = open_page(broken_job, kind="activation", site=ORIGIN, step=40)
    assert len(grid_of(page).names) == 24
    beside = page.folds.told.beside
    assert 'data-fold="blocks.2.mlp"' in beside
    assert 'aria-label="blocks.2: 6 sites"' in beside

    page.folds.toggle("blocks.1")
    assert page.session.choice.fold == "0,blocks.1"
    assert grid_of(page).names[5:8] == ["blocks.0.mlp.act", "blocks.1 · 6 sites", "blocks.2.norm1"]
    page.folds.toggle("blocks.1")
    assert page.session.choice.fold == "0"
    page.folds.toggle("no such module")
    assert page.session.choice.fold == "0"

    for fold in ("0,blocks.2.mlp", "0,blocks.2", "0,blocks", "0,blocks"):
        page.folds.fold()
        assert page.session.choice.fold == fold
    page.folds.unfold()
    assert len(grid_of(page).names) == 24


def test_with_nothing_selected_all_modules_fold_by_a_level(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, kind="activation")
    page.session.clear()
    assert list(page.folds.told.levels.items()) == [
        ("as fits (24 rows)", ""), ("all sites (24 rows)", "0"),
        ("blocks.0.attn, … (16 rows)", "3"), ("blocks.0, … (4 rows)", "2"),
        ("blocks, … (1 row)", "1"),
    ]  # fmt: skip

    folds = list[str]()
    for does in (page.folds.fold,) * 4 + (page.folds.unfold,):
        does()
        folds.append(page.session.choice.fold)
    assert folds == ["3", "2", "1", "1", "2"]
    assert len(grid_of(page).names) == 4


def test_a_name_filter_and_a_kind_have_their_own_tree(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, kind="activation", pattern="attn", fold="2,blocks.3")
    assert grid_of(page).names == [
        *(f"blocks.{n} · 2 sites" for n in range(3)), "blocks.3.attn · 2 sites",
    ]  # fmt: skip

    page.session.choice.pattern = "act$"
    assert grid_of(page).names == [f"blocks.{n}.mlp.act" for n in range(4)]
    assert page.folds.told.beside.count("<button") == 1
    page.session.choice.param.update(pattern="nothing like this")
    assert page.told.problem.startswith("No site's name matches")
    page.session.choice.param.update(pattern="", kind="weight_gradient")
    assert grid_of(page).names[:2] == ["blocks.0 · 3 sites", "blocks.1 · 3 sites"]


def test_sites_of_hostile_names_fold_as_others_do(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None)
    names = ['<img src=x>.a"b', "<img src=x>.c", "plain", "stage1.experts.3.up", "stage1.out"]
    job.sites = [
        replace(job.sites[0], name=name, order=order) for order, name in enumerate(names)
    ]  # fmt: skip
    job.index = np.array(job.writer.catalog.add_sites(job.sites), np.intp)
    job.sketch = lambda site, step, rank, spike: job.measured(
        replace(site, name="blocks.0.norm1"), step
    )
    job.commit(range(3))

    page = open_page(job.path, kind="activation", pattern="img|plain|stage", fold="1")

    assert grid_of(page).names == ["<img src=x> · 2 sites", "plain", "stage1 · 2 sites"]
    assert "<img" not in page.folds.told.beside
    page.folds.toggle("<img src=x>")
    assert grid_of(page).names[:2] == ['<img src=x>.a"b', "<img src=x>.c"]


def test_new_steps_are_patched_into_folded_rows(new_job: Callable, open_pages: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(20))
    pages = open_pages(job.path, page="map", fold="2")
    image, beside = pages.page.heatmap.cells.data["shade"][0], pages.page.folds.told.beside

    job.commit(range(20, 21))
    pages.session.follower.look()
    pages.tick()

    assert pages.page.heatmap.cells.data["shade"][0] is image, "patched in place, not replaced"
    assert np.isfinite(image[:4, :21]).all()
    assert pages.page.folds.told.beside == beside


def test_a_heatmap_without_anything_to_show_is_not_there(
    broken_job: Path, open_pages: Callable
) -> None:
    pages = open_pages(broken_job, page="map", kind="activation", pattern="(", site=ORIGIN)
    page: Map = pages.page

    assert page.told.problem.startswith("The name filter is no regular expression: ")
    assert not page.told.drawn
    pages.session.choice.pattern = "mlp"
    assert page.told.drawn
    pages.session.choice.statistic = "nosuch"
    assert not page.told.drawn
    assert page.selection.told.ranks == ""

    pages.session.choice.statistic = "rms"

    assert page.told.drawn
    assert "rms on each rank" in page.selection.told.ranks


@pytest.fixture
def states(tmp_path: Path) -> Path:
    """A run with two states of an optimizer, of which one is far smaller."""
    value = np.linspace(1, 2, 64, dtype=np.float32)
    rows = [
        (step, f"layers.{layer}", f"Optimiser_State.{state}", value * size)
        for step in range(3)
        for layer in range(4)
        for state, size in (("exp_avg", 2.0**-6), ("exp_avg_sq", 2.0**-30))
    ]
    import_logframe(build(rows), tmp_path / "run", run="run")
    return tmp_path / "run"


def test_a_state_of_the_optimizer_has_a_scale_of_its_own(states: Path, open_page: Callable) -> None:
    page = open_page(states, kind="optimizer_state", fold="0")
    both = page.heatmap.mapper.low, page.heatmap.mapper.high

    page.session.choice.pattern = "exp_avg_sq"

    assert both[0] < -28
    assert both[1] > -7
    assert -31 < page.heatmap.mapper.low < page.heatmap.mapper.high < -28
    page.session.choice.pattern = ""
    assert (page.heatmap.mapper.low, page.heatmap.mapper.high) == both


def test_that_states_of_the_optimizer_share_a_scale_is_said(
    states: Path, open_page: Callable
) -> None:
    page = open_page(states, kind="optimizer_state", fold="0")
    said = "exp_avg and exp_avg_sq share one scale of colours"
    assert said in plain(page.told.heatmap_summary)

    page.session.choice.pattern = "exp_avg_sq"

    assert said not in plain(page.told.heatmap_summary)


def test_where_nothing_is_finite_there_is_no_ramp_and_what_comes_later_sets_its_own(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None)
    site = "activation:blocks.0.mlp.up"
    job.commit(range(2), spike={(step, site): np.nan for step in range(2)})
    page = open_page(job.path, kind="activation", pattern=r"^blocks\.0\.mlp\.up$")
    assert 'class="ramp"' not in page.told.legend

    job.commit(range(2, 4))
    page.session.follower.look()
    page.show()

    rms = np.log2(open_run(job.path).scalar("rms", sites=[site], steps=(2, 3)).values)
    assert 'class="ramp"' in page.told.legend
    assert page.heatmap.mapper.high == pytest.approx(float(rms.max()), abs=0.6)


def test_one_state_is_named_in_the_title_and_not_beside_each_row(
    states: Path, open_page: Callable
) -> None:
    page = open_page(states, kind="optimizer_state", fold="0")
    assert "layers.0[exp_avg]" in grid_of(page).names

    page.session.choice.pattern = "exp_avg_sq"

    assert grid_of(page).names == [f"layers.{layer}" for layer in range(4)]
    assert plain(page.told.heatmap).startswith("rms of optimizer states exp_avg_sq")
