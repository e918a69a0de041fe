"""The page without a browser: what is chosen, and what the figures and texts then hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bokeh.events import RangesUpdate, Reset, Tap

from rankscope.rules import why
from rankscope.sketch import BlockExponents
from rankscope.store import Alert, open_run
from rankscope.viewer import grid
from rankscope.viewer.figures import colours
from rankscope.viewer.follow import Follower
from rankscope.viewer.page import Page
from rankscope.viewer.state import Choice

NOW = 1_760_000_000.0 + 75
ORIGIN = "activation:blocks.2.mlp.act"


HOSTILE = Alert(
    rule="<b>conservation",
    severity="<i>error",
    attempt=0,
    site="weight_gradient:<img src=x>",
    ranks=(),
    first_step=3,
    last_step=4,
    value=0.5,
    threshold=1e-6,
    text="It is not <the> sum.",
    evidence={"<u>off": 1.0},
    time_ns=1,
)
"""What rules find follows from what jobs say."""


def open_page(path: Path, **chosen: object) -> Page:
    return Page(Follower(open_run(path)), Choice(**chosen), now=lambda: NOW)


def grid_of(page: Page) -> grid.Grid:
    assert page.heatmap.grid is not None
    return page.heatmap.grid


# `Any`: bokeh's figures are untyped here, and a click by hand goes through a private door.
def tap(figure: Any, x: float, y: float) -> None:
    """A click, as the browser would tell it."""
    figure._trigger_event(Tap(figure, sx=0, sy=0, x=x, y=y))


def column(source: Any, name: str) -> list[Any]:
    return list(source.data[name])


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", html)).strip()


def test_a_finding_says_what_where_when_on_which_rank_and_what_to_try(judged_job: Path) -> None:
    page = open_page(judged_job)

    [found] = why(open_run(judged_job)).findings
    [card] = page.told.cards
    facts, advice = plain(card.facts), plain(card.advice)
    assert plain(page.told.state) == "What is wrong 1 incident."
    assert card.text == found.what
    assert f"severity error steps from {found.first_step}, goes on" in facts
    assert f"site {ORIGIN} (GELU) ranks rank 2 (node-0, cuda:2) rule {found.rule}" in facts
    assert f"spread {found.spread}, also {', '.join(found.others)}" in facts
    assert f"confidence {found.confidence}. {found.reason}" in facts
    assert f"origin First non-finite values: {ORIGIN} on rank 2, step 40." in facts
    assert advice.startswith(f"What it means, and what to try {found.meaning} {found.advice}")
    assert f"In numbers: value {found.value:.4g}, at most {found.threshold:g}, " in advice


def test_what_was_checked_and_what_was_not_observed_is_told(judged_job: Path) -> None:
    told = plain(open_page(judged_job).told.grounds)

    assert told.startswith("Checked , with the number of records: ")
    assert "nonfinite (60)" in told
    assert told.endswith("Not observed: No weight was observed.")


def test_a_run_that_no_rule_judged_is_not_called_healthy(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(3))

    page = open_page(job.path)

    assert plain(page.told.state) == (
        "What is wrong Not observed: no rule could judge anything. "
        "No non-finite values in 36 sites × 4 ranks over steps 0–2."
    )
    assert page.told.cards == []
    assert "an older collector stored them" in plain(page.told.grounds)
    assert "Click a cell" in page.told.selection


def test_of_a_run_that_no_rule_judged_the_first_bad_numbers_are_told(broken_job: Path) -> None:
    page = open_page(broken_job)

    assert plain(page.told.state) == "What is wrong Not observed: no rule could judge anything."
    [card] = page.told.cards
    assert card.text == (
        "First non-finite values: activation:blocks.2.mlp.act on rank 2, step 40. "
        "Not all weights were observed in this step: it began in steps 39 to 40."
    )
    assert plain(card.facts) == f"severity error steps from 40 site {ORIGIN} ranks rank 2"


def test_first_bad_numbers_are_told_beside_what_an_older_collector_found(new_job: Callable) -> None:
    job = new_job(bad_step=4)
    job.commit(range(6), alerts=(HOSTILE,))

    page = open_page(job.path)

    assert "2 incidents" in page.told.state
    assert [card.text[:24] for card in page.told.cards] == [
        "First non-finite values:",
        "It is not <the> sum.",
    ]


def test_texts_of_findings_are_escaped(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(9), alerts=(HOSTILE,))

    page = open_page(job.path)

    [card] = page.told.cards
    assert card.text == "It is not <the> sum."  # plain: it is the label of a button
    assert "&lt;img src=x&gt;" in card.facts
    html = card.facts + card.advice
    assert [tag for tag in ("<img", "<i>", "<u>", "<b>") if tag in html] == []
    assert "&lt;u&gt;off" in html


def test_a_finding_tells_its_steps(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    again = replace(HOSTILE, first_step=100, last_step=None, record=100)
    job.commit(range(200), alerts=(HOSTILE, again))

    page = open_page(job.path)

    assert "2 incidents, what goes on and is worst first." in page.told.state
    steps = [re.findall("steps (.*?) site", plain(card.facts)) for card in page.told.cards]
    assert steps == [["from 100, goes on"], ["3–4"]]


def test_the_finding_is_selected_when_the_address_asks_for_nothing(
    broken_job: Path, judged_job: Path
) -> None:
    page, judged = open_page(broken_job), open_page(judged_job)

    assert (judged.choice.kind, judged.choice.site, judged.choice.step) == (
        "activation",
        ORIGIN,
        27,
    )
    assert (page.choice.kind, page.choice.site, page.choice.step) == ("activation", ORIGIN, 40)


def test_the_header_tells_how_the_run_is_doing(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(5), without=(1, 3))

    header = plain(open_page(job.path).told.header)

    assert "gpt-small live attempt 0 step 4 , 1 min ago" in header
    assert "▲ 2 of 4 ranks; missing: 1, 3" in header


def test_a_healthy_run_says_what_was_looked_at(new_job: Callable) -> None:
    job = new_job(bad_step=None, watched=True)
    job.commit(range(3))

    page = open_page(job.path)

    assert page.told.cards == []
    assert plain(page.told.state) == (
        "What is wrong Healthy, as far as it was observed: "
        "no rule found anything in 36 sites × 4 ranks over steps 0–2."
    )
    assert "nonfinite (3)" in plain(page.told.grounds)
    assert "Click a cell" in page.told.selection


def test_an_empty_run_opens_and_fills(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    page = open_page(job.path)
    assert plain(page.told.state) == "What is wrong Nothing has been recorded yet."

    job.commit(range(3))
    page.follower.look()
    page.tick()

    assert page.choice.kind == "activation"
    assert grid_of(page).last.tolist() == [0, 1, 2]
    assert column(page.training.source, "step") == [0, 1, 2]


def test_a_click_selects_a_cell_and_shows_its_histogram(broken_job: Path) -> None:
    page = open_page(broken_job)

    tap(page.heatmap.figure, 29.7, 5.5)

    assert (page.choice.site, page.choice.step) == ("activation:blocks.0.mlp.act", 30)
    assert "blocks.0.mlp.act activation · step 30 · float16 · 8×64 · GELU" in plain(
        page.told.selection
    )
    table = open_run(broken_job).table(30, ["activation:blocks.0.mlp.act"])[1]
    assert sum(page.selection.exponents.bars.data["count"]) == table.histogram.sum()
    assert page.pinned.location == 30


def test_of_a_rank_that_was_kept_its_own_exponents_are_shown(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(1))
    job.commit(range(1, 2), kept=(1,))
    site = job.site("blocks.0.mlp.act")
    page = open_page(job.path, kind="activation", site=site, step=1, view="1")
    run = open_run(job.path)

    own = run.table(1, [site], view=1)[1].histogram.sum()
    assert sum(page.selection.exponents.bars.data["count"]) == own
    assert own < run.table(1, [site])[1].histogram.sum()
    assert "elements of rank 1" in page.told.exponents_summary

    page.choice.step = 0
    every = run.table(0, [site])[1].histogram.sum()
    assert sum(page.selection.exponents.bars.data["count"]) == every
    assert "That is of all ranks: rank 1 was not kept here." in page.told.exponents_summary
    page.choice.view = "max"
    assert "That is of all ranks" not in page.told.exponents_summary


def test_a_click_beside_the_cells_selects_nothing(broken_job: Path) -> None:
    page = open_page(broken_job)

    tap(page.heatmap.figure, -20, 5.5)

    assert page.choice.site == ORIGIN


def test_a_click_in_the_loss_moves_the_step(broken_job: Path) -> None:
    page = open_page(broken_job)

    tap(page.training.figure, 12.4, 3.0)

    assert (page.choice.site, page.choice.step) == (ORIGIN, 12)


def test_nonfinite_is_painted_above_the_shades_in_the_reserved_colour(broken_job: Path) -> None:
    page = open_page(broken_job)
    state = page.heatmap.cells.data["state"][0]
    row = grid_of(page).row(ORIGIN)

    assert np.all(state[row, 40:60] == grid.NONFINITE)
    assert not np.any(state[:, :40] == grid.NONFINITE)
    top = page.heatmap.figure.renderers[1].glyph
    assert top.color_mapper.palette[grid.NONFINITE] == colours.NONFINITE


def test_infinities_stand_beside_the_histogram(broken_job: Path) -> None:
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


def test_the_worst_rank_is_named(broken_job: Path) -> None:
    page = open_page(broken_job)

    assert page.ranks.label.text == "rank 2"
    assert "rank 2 not finite at step 40" in plain(page.told.ranks)
    assert column(page.ranks.bad, "rank") == [2] * 20


def test_the_formats_edges_are_drawn_and_the_table_marks_the_own_format(broken_job: Path) -> None:
    page = open_page(broken_job)
    assert [edge.visible for edge in page.selection.exponents.edges] == [True, True, True]

    page.choice.format = "float8_e4m3fn"

    assert page.selection.exponents.edges[0].location == pytest.approx(np.log2(448))
    assert 'class="chosen"><th scope="row">float8_e4m3fn' in page.told.fit
    assert "overflow" in set(page.selection.exponents.bars.data["zone"])


def test_blocks_that_were_counted_have_a_table_of_their_own(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    site = job.site("blocks.0.mlp.up")
    quantity, x = BlockExponents(rows=1, columns=16, scale="amax"), np.ones((2, 32))
    x[0, 0] = 1000
    place = int(job.index[[one.label for one in job.sites].index(site)])
    job.writer.catalog.add_quantities([(place, quantity.name)])
    record = job.record(0, 5, without=(), spike={})
    job.writer.commit([replace(record, quantities={0: quantity.count(x)})], streams={})

    page = open_page(job.path, kind="activation", site=site, step=5)

    text = plain(page.told.fit)
    assert "If each block of 1 × 16 is scaled by its largest magnitude and cast to" in text
    assert "float4_e2m1fn 0 % 23 % 23 % clipped" in text.split("If each block")[1]
    page.choice.site = job.site("blocks.1.mlp.up")
    assert "If each block" not in page.told.fit


def test_a_format_that_reaches_further_is_told_at_the_border(broken_job: Path) -> None:
    page = open_page(broken_job)

    page.choice.format = "bfloat16"

    assert [edge.visible for edge in page.selection.exponents.edges] == [False, False, False]
    assert page.selection.exponents.away[1].text == "max 2¹²⁸ →"


@pytest.mark.parametrize("view", ["merged", "max", "min", "argmax", "argmin", "2"])
@pytest.mark.parametrize("statistic", ["rms", "mean", "abs_min", "nonfinite"])
def test_every_view_of_every_sort_of_statistic_is_shown(
    broken_job: Path, view: str, statistic: str
) -> None:
    page = open_page(broken_job, kind="weight_gradient", view=view, statistic=statistic)

    assert page.told.problem == ""
    assert grid_of(page).shade.shape == (12, 60)
    assert statistic in page.told.heatmap_summary


def test_a_broken_filter_is_told_and_the_picture_stays(broken_job: Path) -> None:
    page = open_page(broken_job)

    page.choice.pattern = "mlp["
    assert page.told.problem.startswith("The name filter is no regular expression:")
    page.choice.pattern = "nothing like this"
    assert page.told.problem.startswith("No site's name matches 'nothing like this'")
    assert len(grid_of(page).names) == 24

    page.choice.pattern = r"mlp\.act$"
    assert page.told.problem == ""
    assert len(grid_of(page).names) == 4


def test_an_address_with_unknown_parts_is_told(broken_job: Path) -> None:
    page = open_page(
        broken_job, kind="activation", site="activation:gone", step=3, statistic="fame"
    )

    assert "There is no statistic 'fame'" in page.told.problem
    assert "no site activation:gone" in plain(page.told.selection)


def test_names_from_the_store_are_escaped(broken_job: Path) -> None:
    page = open_page(broken_job, kind="activation", site="activation:<script>")

    assert "<script>" not in page.told.selection


def test_arrows_and_escape_move_and_clear(broken_job: Path) -> None:
    page = open_page(broken_job)

    page.move(-1)
    assert page.choice.step == 39
    page.move(1)
    assert page.choice.step == 40
    page.clear()
    assert (page.choice.site, page.choice.step) == ("", None)
    assert not page.pinned.visible


def test_a_finding_can_be_gone_to_from_anywhere(judged_job: Path) -> None:
    page = open_page(judged_job, kind="weight_gradient", pattern="qkv", zoom=(3.0, 9.0))

    page.select_finding(0)

    [found] = why(open_run(judged_job)).findings
    assert (page.choice.kind, page.choice.site) == ("activation", ORIGIN)
    assert page.choice.step == found.first_step < 40
    assert (page.choice.pattern, page.choice.zoom) == ("", None)


def test_a_finding_of_no_single_site_leads_to_its_step(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(9), alerts=(replace(HOSTILE, site=""),))
    page = open_page(job.path, kind="activation", site=ORIGIN, step=7)

    page.select_finding(0)

    assert (page.choice.site, page.choice.step) == (ORIGIN, 3)


def test_zoom_by_the_mouse_asks_for_the_visible_steps_only(broken_job: Path) -> None:
    page = open_page(broken_job)

    figure = page.heatmap.figure
    figure._trigger_event(RangesUpdate(figure, x0=9.6, x1=20.2, y0=0, y1=1))

    assert page.choice.zoom == (9.6, 20.2)
    assert (grid_of(page).first[0], grid_of(page).last[-1]) == (9, 21)
    figure._trigger_event(Reset(figure))
    assert page.choice.zoom is None
    assert (page.steps.start, page.steps.end) == (-0.5, 59.5)


def test_new_steps_are_patched_and_zoom_and_selection_stay(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(20))
    page = open_page(job.path)
    tap(page.heatmap.figure, 7, 5.5)
    page.choice.zoom = (2.0, 12.0)
    before = dict(page.choice.query())

    for step in range(20, 23):
        job.commit(range(step, step + 1))
        page.follower.look()
        page.tick()

    assert page.choice.query() == before
    assert (page.steps.start, page.steps.end) == (2.0, 12.0)
    assert column(page.training.source, "step") == list(range(23))
    assert column(page.ranks.source, "step") == list(range(23))
    assert "step 22" in plain(page.told.header)


def test_without_zoom_the_page_follows(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(20))
    page = open_page(job.path)
    image = page.heatmap.cells.data["shade"][0]

    job.commit(range(20, 21))
    page.follower.look()
    page.tick()

    assert (page.steps.start, page.steps.end) == (-0.5, 20.5)
    assert page.heatmap.cells.data["shade"][0] is image, "patched in place, not replaced"
    assert np.isfinite(image[:, :21]).all()
    assert np.isnan(image[:, 21:]).all()


def test_a_finding_shows_up_while_the_page_is_open(new_job: Callable) -> None:
    job = new_job(bad_step=20, bad_rank=1, watched=True)
    job.commit(range(5))
    page = open_page(job.path)
    assert page.told.cards == []

    job.commit(range(5, 22))
    page.follower.look()
    page.tick()

    [card] = page.told.cards
    assert "rank 1 (node-0, cuda:1)" in card.facts
    assert "goes on" in plain(card.facts)
    assert card.severity == "error"


def test_steps_recorded_now_and_then_are_drawn_where_they_are(new_job: Callable) -> None:
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


def test_between_sketches_the_sentinel_is_shown(new_job: Callable) -> None:
    job = new_job(bad_step=17, every=10)
    job.commit(range(25))
    page = open_page(job.path, kind="activation", statistic="rms")

    assert "rank 2, step 17" in page.told.cards[0].text
    held = sorted({int(step) for step in grid_of(page).first if step >= 0})
    assert held == [0, 10, *range(17, 25)]
    page.choice.statistic = "abs_max"
    assert sorted({int(step) for step in grid_of(page).first}) == list(range(25))
    page.choice.param.update(site="activation:blocks.0.norm1", step=12)
    told = plain(page.told.exponents_summary)
    assert told.startswith("At step 12 the sentinel alone looked at this site: |x| is at most")
    assert told.endswith("The nearest is at step 10.")
    assert not any(zone.visible for zone in page.selection.exponents.zones)
    page.choice.step = 10
    assert all(zone.visible for zone in page.selection.exponents.zones)
    page.choice.step = 12
    page.choice.view = "argmax"
    page.choice.statistic = "rms"
    assert page.told.problem == ""


def test_a_sample_is_told_beside_the_histogram(new_job: Callable) -> None:
    job = new_job(bad_step=None, unseen=3584)
    job.commit(range(3))
    page = open_page(job.path, kind="activation", site="activation:blocks.0.norm1", step=1)

    told = plain(page.told.exponents_summary)
    assert told.startswith("A sample of 2 048 elements of 16 384")
    assert "extremes are bounds, sums estimates. They lie between" in told


def test_the_page_shows_all_steps_though_few_were_sketched(new_job: Callable) -> None:
    job = new_job(bad_step=None, every=10)
    job.commit(range(25))
    page = open_page(job.path, kind="activation", statistic="rms")

    assert (page.steps.start, page.steps.end) == (-5, 25)  # columns of ten steps
    page.choice.param.update(site="activation:blocks.0.norm1", step=12)
    page.move(1)
    assert page.choice.step == 20
    page.choice.step = 12
    page.move(-1)
    assert page.choice.step == 10
    tap(page.ranks.figure, 18.9, 0.0)
    assert page.choice.step == 20
    tap(page.training.figure, 18.9, 3.0)
    assert page.choice.step == 19
