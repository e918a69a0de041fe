"""Compare: where two runs part."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankscope.viewer.pages.compare import Compare

SITE = "activation:blocks.1.mlp.up"


@pytest.fixture
def two_jobs(new_job: Callable) -> tuple[Path, Path]:
    """The same, but for one site, which is 16 times as large in step 7 of the second."""
    one, other = new_job("one", bad_step=None), new_job("other", bad_step=None)
    one.commit(range(12))
    other.commit(range(12), spike={(7, SITE): 16.0})
    return one.path, other.path


def plain(html: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", html.replace("<wbr>", "")).split())


def test_it_says_in_which_step_and_where_they_part(
    two_jobs: tuple[Path, Path], open_page: Callable
) -> None:
    page: Compare = open_page(two_jobs[0], beside=two_jobs[1], page="compare")
    answer = plain(page.told.answer)

    assert page.told.problem == ""
    assert f"Numbers part in step 7 at {SITE}: rms " in answer
    assert "blocks.1.mlp.up" in plain(page.told.sites)
    assert f'data-site="{SITE}" data-step="7"' in page.told.sites


def test_the_picture_shows_the_ratio_where_they_part(
    two_jobs: tuple[Path, Path], open_page: Callable
) -> None:
    page: Compare = open_page(two_jobs[0], beside=two_jobs[1], page="compare", kind="activation")
    shown = page.heatmap.grid
    assert shown is not None
    row, column = shown.row(SITE), shown.column(7)
    assert row is not None
    assert column is not None

    largest = np.unravel_index(np.nanargmax(np.abs(shown.shade)), shown.shade.shape)
    assert tuple(int(at) for at in largest) == (row, column)
    assert shown.shade[row, column] == pytest.approx(4.0, abs=0.3)
    assert "furthest apart is blocks.1.mlp.up from step 7" in plain(page.told.summary)
    page.select(row, column)
    assert (page.session.choice.site, page.session.choice.step) == (SITE, 7)


def test_where_they_part_by_what_is_not_finite_it_says_so(
    new_job: Callable, open_page: Callable
) -> None:
    one, other = new_job("one", bad_step=None), new_job("other", bad_step=None)
    one.commit(range(12))
    other.commit(range(12), spike={(step, SITE): np.nan for step in range(7, 12)})

    page: Compare = open_page(one.path, beside=other.path, page="compare", kind="activation")

    answer, summary = plain(page.told.answer), plain(page.told.summary)
    assert f"Numbers part in step 7 at {SITE}: non-finite elements 0 against " in answer
    assert "other non-finite elements from step 7" in plain(page.told.sites)
    assert "non-finite values in 1 row, from step 7; where rms is finite it is " in summary


def test_runs_of_one_name_are_told_apart_by_their_folders(
    two_jobs: tuple[Path, Path], open_page: Callable
) -> None:
    page: Compare = open_page(two_jobs[0], beside=two_jobs[1], page="compare", site=SITE)

    assert plain(page.told.runs) == "one other"
    assert [one.name for one in page.training.drawn[:2]] == ["one", "other"]
    assert list(page.site.lines[1].data["step"]) == list(range(12))


def test_several_runs_stand_beside_one_another(
    new_job: Callable, open_pages: Callable, two_jobs: tuple[Path, Path]
) -> None:
    third = new_job("third", bad_step=None)
    third.commit(range(12), spike={(9, SITE): 4.0})
    pages = open_pages(
        two_jobs[0],
        beside=(two_jobs[1], third.path),
        page="compare",
        kind="activation",
        other="other",
        also=["third", "one", "gone"],
        maps="each",
        site=SITE,
    )
    page: Compare = pages.page

    assert page.told.problem == ""
    answers = [plain(one) for one in re.findall("<p.*?</p>", page.told.answer)]
    assert [one.partition(":")[0] for one in answers] == ["other", "third"]
    assert [f"Numbers part in step {step} at {SITE}" in one
            for step, one in zip((7, 9), answers, strict=True)] == [True, True]  # fmt: skip
    assert plain(page.told.runs) == "one other third"
    assert [bool(title) for title in page.each.told.titles] == [True, True, True, False]
    shown = [one.grid for one in page.each.maps[:3]]
    assert len({(one.mapper.low, one.mapper.high) for one in page.each.maps[:3]}) == 1
    assert shown[2] is not None
    row, column = shown[2].row(SITE), shown[2].column(9)
    assert row is not None
    assert column is not None
    page.each.select(2, row, column)
    assert (page.session.choice.site, page.session.choice.step) == (SITE, 9)

    assert list(page.site.lines[2].data["step"]) == list(range(12))
    page.session.choice.also = []
    assert plain(page.told.runs) == "one other"
    assert list(page.site.lines[2].data["step"]) == []


def test_runs_that_are_alike_do_not_part(new_job: Callable, open_page: Callable) -> None:
    one, same = new_job("one", bad_step=None), new_job("same", bad_step=None)
    for job in (one, same):
        job.commit(range(5))
    page: Compare = open_page(one.path, beside=same.path, page="compare")

    assert "not a bit differs" in plain(page.told.answer)
    assert "None does." in plain(page.told.sites)


def test_a_zoom_between_two_steps_asks_of_the_nearer_one(
    new_job: Callable, open_page: Callable
) -> None:
    one, same = new_job("one", bad_step=None), new_job("same", bad_step=None)
    for job in (one, same):
        job.commit(range(5))
    page: Compare = open_page(one.path, beside=same.path, page="compare", zoom=(2.6, 2.9))

    assert "Over 1 step" in plain(page.told.answer)


def test_it_follows_the_run_that_it_is_compared_with(
    new_job: Callable, open_pages: Callable
) -> None:
    one, other = new_job("one", bad_step=None), new_job("other", bad_step=None)
    one.commit(range(9))
    other.commit(range(3))
    pages = open_pages(one.path, beside=other.path, page="compare")
    assert "Over 3 steps" in plain(pages.page.told.answer)

    other.commit(range(3, 9))
    one.commit(range(9, 12))
    pages.session.live.look()
    pages.tick()
    assert "Over 9 steps" in plain(pages.page.told.answer)
    assert list(pages.page.training.lines[1].data["step"]) == list(range(9))

    other.commit(range(9, 11))  # and nothing is new in this run
    pages.session.live.look()
    pages.tick()
    assert list(pages.page.training.lines[1].data["step"]) == list(range(11))


def test_the_others_are_looked_at_once_a_tick(
    two_jobs: tuple[Path, Path], open_pages: Callable
) -> None:
    pages = open_pages(two_jobs[0], beside=two_jobs[1], page="compare", site=SITE)
    [other] = pages.session.others()
    looks = list[int]()
    other.listen(lambda: looks.append(1))()  # as another page does, that has left
    leave = other.listen(lambda: looks.append(1))
    other.interval_s = 1e9

    pages.tick()
    leave()

    assert len(looks) == 1


def test_alone_it_says_how_to_see_others(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(3))
    page: Compare = open_page(job.path, page="compare")

    assert "This run alone is open. " in page.told.problem
    assert "rankscope view rankscope-runs," in page.told.problem
    assert page.told.answer == ""


def test_a_run_that_is_alone_in_its_folder_is_told_as_that(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(3))
    page: Compare = open_page(job.path, beside=job.path, page="compare")

    assert page.told.problem.startswith("This folder holds this run alone; ")


def test_a_run_that_there_is_not_is_told_with_near_names(
    two_jobs: tuple[Path, Path], open_pages: Callable
) -> None:
    pages = open_pages(two_jobs[0], beside=two_jobs[1], page="compare", other="othr")
    page: Compare = pages.page

    assert page.told.problem == "There is no run “othr” in this folder; near are other."
    assert page.told.sites == ""
    pages.session.choice.other = "nosuch"
    assert page.told.problem == "There is no run “nosuch” in this folder; there are other."
    pages.session.choice.other = "one"
    assert page.told.problem.startswith("“one” is this run itself; ")

    pages.session.choice.other = "other"

    assert page.told.problem == ""
    assert plain(page.told.runs) == "one other"


def test_the_lines_of_the_selected_site_have_its_name(
    two_jobs: tuple[Path, Path], open_page: Callable
) -> None:
    page: Compare = open_page(two_jobs[0], beside=two_jobs[1], page="compare", site=SITE)

    assert plain(page.told.site) == "blocks.1.mlp.up activation, rms in each run"


def test_what_is_drawn_is_there_in_tables(two_jobs: tuple[Path, Path], open_page: Callable) -> None:
    page: Compare = open_page(two_jobs[0], beside=two_jobs[1], page="compare", site=SITE)
    for name in ("compare_training", "compare_map", "compare_site"):
        page.twins.toggle(name)

    ratios = page.twins.tables["compare_map"].frame()
    assert ratios.loc[7, "blocks.1.mlp.up"] == pytest.approx(16, rel=0.25)
    assert list(page.twins.tables["compare_site"].frame().columns) == ["one", "other"]
    assert all(page.twins.told.html.values())


def test_both_runs_are_shown_in_the_same_colours_and_rows(
    two_jobs: tuple[Path, Path], open_page: Callable
) -> None:
    page: Compare = open_page(
        two_jobs[0], beside=two_jobs[1], page="compare", kind="activation", maps="each"
    )
    this, other, *_ = page.each.maps

    assert this.grid is not None
    assert other.grid is not None
    assert this.grid.row_sites == other.grid.row_sites
    assert (this.mapper.low, this.mapper.high) == (other.mapper.low, other.mapper.high)
    row, column = other.grid.row(SITE), other.grid.column(7)
    assert row is not None
    assert column is not None
    apart = other.grid.shade - this.grid.shade
    assert apart[row, column] == pytest.approx(4.0, abs=0.3)
    assert this.name in page.twins.tables
    page.each.select(1, row, column)
    assert (page.session.choice.site, page.session.choice.step) == (SITE, 7)
    assert dict(this.chosen.data) == dict(other.chosen.data)
    assert list(this.chosen.data["left"]) == [6.5]


def test_without_a_common_site_it_says_so(two_jobs: tuple[Path, Path], open_page: Callable) -> None:
    page: Compare = open_page(
        two_jobs[0], beside=two_jobs[1], page="compare", kind="weight", maps="each"
    )
    assert "No site is of kind weight" in page.told.problem
