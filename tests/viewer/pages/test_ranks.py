"""The Ranks page without a browser: how far ranks are from their peers, and who stands out."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bokeh.events import Tap

from rankscope.store import Alert, open_run
from rankscope.viewer import rank_map, tables, words
from rankscope.viewer.columns import MISSING, NONFINITE, NUMBER
from rankscope.viewer.pages import Ranks

SITE = "activation:blocks.2.mlp.act"
DIVERGED = Alert(
    rule="replica-divergence",
    attempt=0,
    site="weight:<b>up",
    ranks=(1, 2),
    first_step=3,
    last_step=None,
    value=0.5,
    threshold=0.0,
    text="Copies of <i>up differ.",
    time_ns=1,
)


@pytest.fixture
def open_ranks(open_page: Callable[..., Any]) -> Callable[..., Ranks]:
    def open_(path: Path, **chosen: object) -> Ranks:
        return open_page(path, page="ranks", **chosen)

    return open_


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", html.replace("<wbr>", ""))).strip()


def rows(html: str) -> list[str]:
    body = html.partition("<tbody>")[2]
    return [plain(row) for row in re.findall("<tr>(.*?)</tr>", body)]


def test_each_rank_is_a_row_in_the_order_of_the_mesh(
    open_ranks: Callable[..., Ranks], broken_job: Path
) -> None:
    page = open_ranks(broken_job, site=SITE)

    grid = page.heatmap.grid
    assert grid is not None
    assert grid.names == [f"rank {rank} (dp={rank})" for rank in range(4)]
    assert grid.shade.shape == grid.state.shape == (4, 60)
    # Rank 2 grows from step 26 on by 0.9 powers of two a step.
    assert np.abs(grid.shade[:, :26]).max() < 1
    assert grid.shade[2, 36] == pytest.approx(9, abs=0.8)  # clipped to float16
    assert np.abs(grid.shade[[0, 1, 3]]).max() < 1
    assert (grid.state[2, 40:] == NONFINITE).all()
    assert (grid.state[:, :40] == NUMBER).all()
    limits: Any = page.heatmap.mapper
    assert limits.low == -limits.high
    said: Any = page.heatmap.rows.data["sites"]
    assert said == grid.names


def test_the_summary_names_the_rank_that_is_furthest(
    open_ranks: Callable[..., Ranks], broken_job: Path
) -> None:
    page = open_ranks(broken_job, site=SITE, statistic="rms")

    told = plain(page.told.summary)
    assert told.startswith("4 ranks, steps 0–59; furthest from the median of its peers is rank 2 ")
    assert told.endswith("not finite on rank 2, from step 40.")
    assert "activation, rms over the median of its peers" in plain(page.told.title)


def test_noise_is_not_magnified(open_ranks: Callable[..., Ranks], new_job: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(5))

    page = open_ranks(job.path, site=SITE)

    limits: Any = page.heatmap.mapper
    assert 0.5 <= limits.high == -limits.low < 1
    assert "NaN" not in page.told.summary


def test_the_onset_of_a_blow_up_is_seen_beside_its_end(
    open_ranks: Callable[..., Ranks], broken_job: Path
) -> None:
    page = open_ranks(broken_job, site=SITE, statistic="rms")

    shown = page.heatmap.grid
    assert shown is not None
    assert np.nanmax(shown.shade) > 8  # 256 times the median, and more
    colours = page.heatmap.mapper
    assert (colours.low, colours.high) == (-3.0, 3.0)
    assert "×8 and more" in plain(page.told.legend)


def test_without_a_selected_site_it_shows_where_ranks_differ_most(
    open_ranks: Callable[..., Ranks], tmp_path: Path, new_job: Callable
) -> None:
    job = new_job(bad_step=3, ranked=True)  # before, a tensor of rank 2 grows
    job.commit(range(3))

    page = open_ranks(job.path)

    assert page.site == SITE
    assert plain(page.told.summary).startswith("No site is selected: this is where ranks differ")


def test_a_rank_that_sent_nothing_is_missing_and_not_equal(
    open_ranks: Callable[..., Ranks], new_job: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(3))
    job.commit(range(3, 6), without=(1,))

    page = open_ranks(job.path, site=SITE)

    grid = page.heatmap.grid
    assert grid is not None
    assert (grid.state[1] == [NUMBER] * 3 + [MISSING] * 3).all()
    assert "12 % of the cells not observed" in page.told.summary


def test_one_rank_has_no_peers(open_ranks: Callable[..., Ranks], new_job: Callable) -> None:
    job = new_job(bad_step=None, ranks=1)
    job.commit(range(3))

    page = open_ranks(job.path, site=SITE)

    assert "nothing to compare" in page.told.summary
    assert "no numbers of several ranks" in page.told.outliers
    assert "no peer" in page.told.legend


def test_a_click_on_a_cell_selects_its_step(
    open_ranks: Callable[..., Ranks], broken_job: Path
) -> None:
    page = open_ranks(broken_job, site=SITE)
    figure: Any = page.heatmap.figure

    figure._trigger_event(Tap(figure, sx=0, sy=0, x=36, y=1.5))

    assert page.session.choice.step == 36
    assert list(page.heatmap.chosen.data["top"]) == [2]  # the rank that is furthest there


def test_the_selected_step_is_told_in_numbers(
    open_ranks: Callable[..., Ranks], broken_job: Path
) -> None:
    page = open_ranks(broken_job, site=SITE, step=45, statistic="abs_max")

    run = open_run(broken_job)
    values = run.ranks("abs_max", site=SITE, steps=45).values[0]
    bad = run.ranks("nonfinite", site=SITE, steps=45).values[0]
    found = rows(page.told.numbers)
    assert len(found) == 4
    assert found[0].startswith(f"0, dp=0 {words.number(values[0])} ")
    assert found[2].startswith(f"2, dp=2 {words.number(values[2])} ")
    over = run.rank_ratios("abs_max", site=SITE, steps=45)
    ratio = 2.0 ** float(over.values[2, 0])
    assert found[2].endswith(f" {words.ratio(ratio)} {int(bad[2])}")
    page.session.choice.step = None
    assert page.told.numbers == ""


def test_a_zoom_asks_for_the_visible_steps_alone(
    open_ranks: Callable[..., Ranks], broken_job: Path
) -> None:
    page = open_ranks(broken_job, site=SITE, zoom=(10.0, 20.0))

    grid = page.heatmap.grid
    assert grid is not None
    assert (int(grid.first[0]), int(grid.last[-1])) == (10, 20)
    assert "steps 10–20" in page.told.summary


def test_a_rank_that_differs_in_few_of_many_steps_is_named(
    open_ranks: Callable[..., Ranks], new_job: Callable
) -> None:
    job = new_job(bad_step=40, ranked=True)
    job.commit(range(40))  # in 13 of them a tensor of rank 2 grows
    told = rows(open_ranks(job.path, site=SITE).told.outliers)

    assert told[0].startswith("blocks.2.mlp.act activation 2 ")


def outlier(**changes: Any) -> rank_map.Outlier:
    # `Any`: facts of an outlier are of several types.
    facts: dict[str, Any] = {
        "site": "activation:<up>", "rank": 3, "peers": 8, "score": -7.5, "ratio": 0.25,
        "worst_score": -30.0, "worst_ratio": 0.1, "worst_step": 12, "own_ratio": math.nan,
    }  # fmt: skip
    return rank_map.Outlier(**facts | changes)


def test_outliers_are_a_table_whose_rows_select() -> None:
    told = tables.outliers([outlier()], "rms", why_none="")

    assert rows(told) == ["&lt;up&gt; activation 3 ÷ 4 −7.5 score −30 at step 12"]
    assert 'data-step="12"' in told
    assert "<b>−7.5</b>" in told


def test_of_two_ranks_none_is_named_unless_its_past_tells() -> None:
    two = outlier(peers=2, score=math.nan, worst_score=math.nan)
    told = [two, replace(two, own_ratio=0.11), replace(two, own_ratio=1.1)]

    assert rows(tables.outliers(told, "rms", why_none="")) == [
        "&lt;up&gt; activation not known 4 apart – 10 apart at step 12",
        "&lt;up&gt; activation 3, by its own past ÷ 4 – ÷ 10 at step 12",
        "&lt;up&gt; activation not known 4 apart – 10 apart at step 12",
    ]


def test_who_parts_at_last_comes_before_who_usually_differs_by_chance(
    open_ranks: Callable[..., Ranks], new_job: Callable
) -> None:
    # Tensors are made anew every 30 steps: by chance some usually differ a little.
    job = new_job(bad_step=40, bad_rank=13, ranks=20, hold=30, ranked=True)
    job.commit(range(45))

    page = open_ranks(job.path)

    told = rows(page.told.outliers)
    assert len(told) > 1
    assert told[0].startswith("blocks.2.mlp.act activation 13 ")
    assert page.site == SITE


def test_of_two_ranks_the_page_names_the_one_that_left_its_past(
    open_ranks: Callable[..., Ranks], new_job: Callable
) -> None:
    job = new_job(bad_step=40, bad_rank=1, ranks=2, ranked=True)
    job.commit(range(40))  # from step 26 on a tensor of rank 1 grows

    page = open_ranks(job.path, step=36)

    assert page.site == SITE
    first = rows(page.told.outliers)[0]
    assert first.startswith("blocks.2.mlp.act activation 1, by its own past ")
    summary = plain(page.told.summary)
    assert "furthest apart are ranks 0–1 at step 39, where rms on rank 1 (dp=1) is that" in summary
    assert "its own past tells that rank 1 (dp=1) is the odd one" in summary
    assert list(page.heatmap.chosen.data["top"]) == [1]  # outlined
    assert "the other one" in plain(page.told.legend)


def test_of_two_ranks_that_were_never_alike_none_is_named(
    open_ranks: Callable[..., Ranks], new_job: Callable
) -> None:
    job = new_job(bad_step=8, bad_rank=1, ranks=2, ranked=True)
    job.commit(range(8))  # rank 1 is large from the start

    page = open_ranks(job.path, step=6)

    assert " not known " in rows(page.told.outliers)[0]
    assert "which of the two is odd cannot be known" in plain(page.told.summary)
    assert list(page.heatmap.chosen.data["top"]) == []


def test_two_ranks_that_are_alike_are_told_to_be(
    open_ranks: Callable[..., Ranks], new_job: Callable
) -> None:
    job = new_job(bad_step=None, ranks=2, ranked=True)
    job.commit(range(9))

    told = plain(open_ranks(job.path).told.outliers)

    assert "In their finite elements ranks are alike: at most 1." in told
    assert "no score can tell which is odd" in told


def test_agreement_is_told_with_what_it_means() -> None:
    one = rank_map.Agreement(
        site="local_weight_gradient:up.weight", agreement=0.75, largest=1.5, largest_rank=2
    )

    told = tables.agreements([one], step=9, addends=4)

    assert "step 9: 100 % is where all 4 say the same, 50 % where" in told
    assert rows(told) == ["up.weight local weight gradient 75 % 1.5 × on rank 2"]


def test_divergences_are_told_with_their_ranks_as_text(
    open_ranks: Callable[..., Ranks], new_job: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(9), alerts=(DIVERGED,))

    page = open_ranks(job.path)

    [row] = rows(page.told.divergences)
    assert row == "&lt;b&gt;up weight Copies of &lt;i&gt;up differ. 1–2 from 3, goes on"
    assert 'data-site="weight:&lt;b&gt;up" data-step="3"' in page.told.divergences
    page.session.choose(json.dumps({"site": "weight:<b>up", "step": "3"}))
    assert (page.session.choice.site, page.session.choice.step) == ("weight:<b>up", 3)
    assert "There is no site 'weight:<b>up'" in page.told.problem


def test_divergences_are_marked_on_the_map_of_their_site(
    open_ranks: Callable[..., Ranks], new_job: Callable
) -> None:
    job = new_job(bad_step=None)
    ended = replace(DIVERGED, site=SITE, last_step=5)
    unknown = replace(DIVERGED, site=SITE, rule="conservation", ranks=(), first_step=7)
    job.commit(range(9), alerts=(DIVERGED, ended, unknown))

    page = open_ranks(job.path, site=SITE)

    marks: Any = page.heatmap.marks.data
    assert marks["row"] == [0.5, 1.5, 2.5, 3.5, 1.5, 2.5]
    assert marks["first"] == [7] * 4 + [3] * 2
    assert marks["last"] == [8] * 4 + [5] * 2
    assert "a sum does not add up, on ranks 0–3, steps 3–8." in page.told.summary
    assert "copies differ, or a sum does not add up" in page.told.legend
    page.session.choice.site = "activation:blocks.0.norm1"
    cleared: Any = page.heatmap.marks.data
    assert list(cleared["row"]) == []
    assert "copies differ" not in page.told.legend + page.told.summary


def test_an_alert_about_steps_that_were_trained_again_is_not_marked(
    open_ranks: Callable[..., Ranks], new_job: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(5), alerts=(replace(DIVERGED, site=SITE),))
    job.attempt = job.writer.catalog.attempt_of("launch-2")
    job.commit(range(2, 7))

    marks: Any = open_ranks(job.path, site=SITE).heatmap.marks.data
    assert list(marks["row"]) == []


def test_without_divergences_it_says_whether_any_was_looked_for(
    open_ranks: Callable[..., Ranks], new_job: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(3))

    told = plain(open_ranks(job.path).told.divergences)

    assert told.startswith(
        "Copies that differ, and sums over ranks that do not add up. No rule checked any"
    )


def test_an_empty_run_says_so(open_ranks: Callable[..., Ranks], new_job: Callable) -> None:
    page = open_ranks(new_job().path)

    assert page.told.problem in ("No site has been recorded yet.", "")
    assert rank_map.load_agreement(page.session.run, step=None) == ([], None, 0)
