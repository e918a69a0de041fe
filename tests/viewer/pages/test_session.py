"""What all pages share: what is chosen at first, the header, which page is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rankscope.store import Event
from rankscope.viewer.columns import NONFINITE
from rankscope.viewer.figures import colours

NOW = 1_760_000_000.0 + 75
ORIGIN = "activation:blocks.2.mlp.act"


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", html.replace("<wbr>", ""))).strip()


def test_the_finding_is_selected_when_the_address_asks_for_nothing(
    broken_job: Path, judged_job: Path, open_page: Callable
) -> None:
    page, judged = open_page(broken_job), open_page(judged_job)

    assert (judged.session.choice.kind, judged.session.choice.site, judged.session.choice.step) == (
        "activation",
        ORIGIN,
        27,
    )
    assert (page.session.choice.kind, page.session.choice.site, page.session.choice.step) == (
        "activation",
        ORIGIN,
        40,
    )


def test_a_site_without_a_step_is_shown_at_the_last_that_has_the_statistic(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None, every=4)
    job.commit(range(11))
    after = job.record(job.writer.next_record, 11, without=(), spike={})
    job.writer.commit([replace(after, final=True)], streams={})

    asked, session = open_page(job.path, site=ORIGIN), open_page(job.path).session
    assert (session.choice.site, session.choice.step) == ("", None)
    session.select_site(ORIGIN)

    assert asked.session.choice.step == session.choice.step == 8
    session.choice.step = 3
    session.move_site(1)
    assert session.choice.step == 3


def test_the_header_tells_how_the_run_is_doing(new_job: Callable, open_pages: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(5), without=(1, 3))

    told = open_pages(job.path).told

    assert plain(told.header).startswith("rankscope gpt-small in ")
    assert plain(told.chips).startswith("live ▲ late: step 4 , 1 min ago")
    assert "▲ 2 of 4 ranks; missing: 1, 3" in plain(told.chips)


def test_the_header_tells_of_ranks_that_were_lost(new_job: Callable, open_pages: Callable) -> None:
    job = new_job(bad_step=None, watched=True)
    lost = Event(kind="rank-lost", attempt=0, rank=1, step=4, text="Rank 1 was silent for 30 s.")
    job.commit(range(5), events=(lost,))
    job.writer.finish()

    pages = open_pages(job.path, page="triage")

    assert plain(pages.told.chips).startswith("▲ ranks lost: 1 (last seen in step 4) step 4 ")
    state = plain(pages.page.told.state)
    assert "The job did not end well: ranks lost: 1 (last seen in step 4); no rule found" in state


def test_the_page_triage_tells_of_a_job_that_does_not_move(
    new_job: Callable, open_pages: Callable
) -> None:
    job, text = (
        new_job(bad_step=None, watched=True),
        "No rank has moved for 30 s: rank 1 in step 5.",
    )
    job.commit(range(5), events=(Event(kind="stalled", attempt=0, rank=1, step=5, text=text),))

    told = open_pages(job.path, page="triage").page.told

    assert "The job does not move; no rule found" in plain(told.state)
    assert f"Stalled , and nothing was recorded since: {text}" in plain(told.grounds)


def test_runs_of_one_name_are_told_apart_by_where_they_lie(
    new_job: Callable, open_pages: Callable
) -> None:
    pages = [open_pages(new_job(f"{store}/runs/job").path) for store in ("here", "there")]

    assert [plain(one.told.header) for one in pages] == [
        "rankscope gpt-small in here/runs",
        "rankscope gpt-small in there/runs",
    ]
    assert [one.session.title for one in pages] == [
        "gpt-small in here/runs",
        "gpt-small in there/runs",
    ]


def test_a_run_whose_records_come_rarely_is_not_late(
    new_job: Callable, open_pages: Callable
) -> None:
    job = new_job(bad_step=None)
    for step in (0, 30, 60):
        job.commit(range(step, step + 1))
    pages = open_pages(job.path)
    assert "late" not in pages.told.chips

    pages.session.now = lambda: NOW + 1000
    pages.tick()

    assert "▲ late: step 60 , 16 min ago" in plain(pages.told.chips)


def test_one_lands_on_triage_and_pages_are_made_when_they_are_visited(
    broken_job: Path, open_pages: Callable
) -> None:
    pages = open_pages(broken_job)
    assert (pages.told.page, list(pages.made)) == ("triage", ["triage"])

    pages.session.visit("map")

    assert (pages.told.page, list(pages.made)) == ("map", ["triage", "map"])
    assert pages.page.heatmap.grid is not None
    assert pages.page.selection.exponents.bars.data["count"]


def test_an_unknown_page_in_the_address_leads_to_triage(
    broken_job: Path, open_pages: Callable
) -> None:
    pages = open_pages(broken_job, page="fame")

    assert (pages.told.page, pages.session.choice.page) == ("triage", "triage")


def test_a_page_that_nobody_sees_is_left_alone_until_it_is_entered(
    new_job: Callable, open_pages: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(5))
    pages = open_pages(job.path, page="map")
    shown = pages.page
    pages.session.visit("triage")

    job.commit(range(5, 8))
    pages.session.follower.look()
    pages.tick()
    pages.session.choice.statistic = "abs_max"
    assert "rms" in shown.told.heatmap
    assert list(shown.training.lines.source.data["step"]) == list(range(5))

    pages.session.visit("map")
    assert pages.page is shown
    assert "abs_max" in shown.told.heatmap
    assert list(shown.training.lines.source.data["step"]) == list(range(8))


def test_a_page_that_is_entered_again_draws_only_what_has_changed(
    broken_job: Path, open_pages: Callable
) -> None:
    pages = open_pages(broken_job, page="map")
    shown = pages.page.heatmap.grid

    pages.session.visit("triage")
    pages.session.visit("map")
    assert pages.page.heatmap.grid is shown

    pages.session.choice.step = 7
    assert pages.page.heatmap.grid is shown


def test_zoom_and_step_are_those_of_every_page(broken_job: Path, open_pages: Callable) -> None:
    pages = open_pages(broken_job, page="map")
    pages.session.choice.param.update(zoom=(10.0, 30.0), step=12)

    pages.session.visit("tensor")

    lines = pages.page.selection.ranks.figure
    assert (lines.x_range.start, lines.x_range.end) == (10.0, 30.0)
    assert pages.session.pinned.location == 12
    assert pages.page.selection.exponents.bars.data["count"]


def test_escape_leads_from_a_tensor_to_the_map_and_there_selects_nothing(
    broken_job: Path, open_pages: Callable
) -> None:
    session = open_pages(broken_job, page="tensor").session

    session.back()
    assert (session.choice.page, session.choice.site) == ("map", ORIGIN)
    session.back()
    assert (session.choice.page, session.choice.site) == ("map", "")


def test_what_a_page_cannot_show_is_told_until_it_can(
    broken_job: Path, open_pages: Callable
) -> None:
    pages = open_pages(broken_job, page="tensor", statistic="fame")
    assert "There is no statistic 'fame'" in pages.told.problem
    pages.session.choice.step = 3
    assert "There is no statistic 'fame'" in pages.told.problem

    pages.session.choice.statistic = "rms"
    assert pages.told.problem == ""


def test_links_hold_addresses_as_text(broken_job: Path, open_pages: Callable) -> None:
    pages = open_pages(broken_job)

    pages.tell_links(
        [("triage", "Triage", "?a=1&b=2"), ("map", "<b>", '?name="><script>')],
        other=("Dark", '?theme=dark&name="><script>'),
    )

    assert (
        '<a href="?a=1&amp;b=2" data-page="triage" aria-current=page>Triage</a>' in pages.told.links
    )
    assert "<script>" not in pages.told.links
    assert "&lt;b&gt;" in pages.told.links


def test_a_paused_session_stands_still_and_says_how_much_is_new(
    new_job: Callable, open_pages: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(5))
    pages = open_pages(job.path, page="map")
    assert pages.told.pause == "Pause"
    pages.pause_or_resume()
    shown = pages.page.heatmap.grid

    job.commit(range(5, 8))
    pages.session.live.look()
    pages.tick()
    pages.session.choice.param.update(statistic="abs_max", site=ORIGIN, step=3)

    assert pages.page.heatmap.grid is not shown
    assert pages.page.heatmap.grid.last.tolist() == [0, 1, 2, 3, 4]
    assert list(pages.page.selection.ranks.source.data["step"]) == [0, 1, 2, 3, 4]
    assert (pages.session.steps.start, pages.session.steps.end) == (-0.5, 4.5)
    assert "paused, 3 newer records" in plain(pages.told.chips)
    assert "step 7" in plain(pages.told.chips)
    assert pages.told.pause == "Go on"

    pages.pause_or_resume()
    assert pages.page.heatmap.grid.last.tolist() == list(range(8))
    assert plain(pages.told.chips).startswith("live")


def test_a_finished_run_cannot_be_paused(new_job: Callable, open_pages: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(2))
    job.writer.finish()

    assert open_pages(job.path).told.pause == ""


def test_figures_have_the_colours_of_the_theme(broken_job: Path, open_pages: Callable) -> None:
    pages = open_pages(broken_job, page="map", theme="dark")

    heatmap = pages.page.heatmap
    assert heatmap.figure.background_fill_color == colours.DARK.surface
    assert heatmap.mapper.palette == colours.DARK.ramp
    assert heatmap.figure.renderers[1].glyph.color_mapper.palette[NONFINITE] == (
        colours.DARK.nonfinite
    )
    assert colours.DARK.ramp[0] in pages.page.told.legend
    pages.session.choice.statistic = "mean"
    assert heatmap.mapper.palette == colours.DARK.diverging
