"""The Formats page without a browser: what would break, its table, and what is taken home."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankscope.sketch import SettingError
from rankscope.store import open_run
from rankscope.viewer import fitting
from rankscope.viewer.pages import Formats
from rankscope.viewer.pages.formats import ROWS

SITE = "activation:blocks.2.mlp.act"


@pytest.fixture
def open_formats(open_page: Callable[..., Any]) -> Callable[..., Formats]:
    def open_(path: Path, **chosen: object) -> Formats:
        return open_page(path, page="formats", **chosen)

    return open_


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", html.replace("<wbr>", ""))).strip()


def body(html: str) -> list[str]:
    return re.findall("<tr[^>]*>(.*?)</tr>", html.partition("<tbody>")[2])


def test_it_tells_by_format_how_many_sites_would_break(
    open_formats: Callable[..., Formats], broken_job: Path
) -> None:
    page = open_formats(broken_job, step=39, formats="e4m3,float16")

    table = open_run(broken_job).format_table(39, formats=["float8_e4m3fn", "float16"])
    counts = [
        [int((table["verdict"].values[:, column] == word).sum()) for word in verdicts]
        for column in range(2)
        for verdicts in [("breaks", "may break", "fits", "not known")]
    ]
    shown = [plain(row) for row in body(page.told.answer)]
    for row, name, numbers in zip(shown, ("float8_e4m3fn", "float16"), counts, strict=True):
        assert row == f"{name} {' '.join(str(one) if one else '–' for one in numbers)}"
    assert "Of 36 sites, step 39" in page.told.answer
    assert "at most 0 % overflows and 1 % becomes zero" in page.told.answer
    assert plain(page.told.summary).startswith("36 sites, step 39; float8_e4m3fn: ")


def test_the_worst_come_first_and_say_what_they_lose(
    open_formats: Callable[..., Formats], broken_job: Path
) -> None:
    page = open_formats(broken_job, step=39, formats="e4m3", of="activation")

    first, *_ = body(page.told.table)
    assert page.found is not None
    assert page.found.order[0] == page.found.table["site"].to_numpy().tolist().index(SITE)
    assert "blocks.2.mlp.act activation" in plain(first)
    assert 'class="breaks"' in first
    assert "↑ " in plain(first)
    overflow = page.found.table["overflow"].sel(site=SITE).item()
    assert overflow > 0
    title = re.findall('title="([^"]*)"', first)[0]
    assert re.fullmatch(
        r"breaks; overflow .* \(step 39\); to zero .*; subnormal .* \(step 39\)", title
    )


def test_the_selected_site_is_marked_and_a_row_selects(
    open_formats: Callable[..., Formats], broken_job: Path
) -> None:
    page = open_formats(broken_job, step=39)
    assert page.session.choice.site == ""
    loaded = page.found

    page.session.choose(json.dumps({"site": SITE}))

    assert (page.session.choice.site, page.session.choice.step) == (SITE, 39)
    assert '<tr class="chosen" aria-selected="true">' in page.told.table
    assert page.found is loaded  # the store was not asked again


def test_the_best_scale_and_scales_by_kind(
    open_formats: Callable[..., Formats], broken_job: Path
) -> None:
    page = open_formats(broken_job, step=39, formats="e4m3")
    assert page.found is not None
    assert (page.found.table["shift"] == 0).all()

    page.session.choice.times = "site"
    assert float(page.found.table["overflow_high"].max()) == 0
    assert "×2" in page.told.table

    page.session.choice.times = "weight_gradient=8"
    kinds = page.found.table["kind"].to_numpy()
    assert set(page.found.table["shift"].values[kinds == "weight_gradient"].ravel()) == {8}
    assert set(page.found.table["shift"].values[kinds == "activation"].ravel()) == {0}


def test_the_worst_of_the_visible_steps(
    open_formats: Callable[..., Formats], broken_job: Path
) -> None:
    page = open_formats(broken_job, step=2, over="steps", zoom=(30.0, 39.0), formats="e4m3")

    assert "the worst of steps 30–39" in page.told.answer
    assert page.found is not None
    assert int(page.found.table["overflow_step"].sel(site=SITE).item()) == 39
    page.session.choice.zoom = (0.0, 9.0)
    assert "the worst of steps 0–9" in page.told.answer
    page.session.choice.over = ""
    assert "step 2" in page.told.answer


def test_many_steps_are_taken_together_and_it_says_so(
    open_formats: Callable[..., Formats], broken_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "AT_ONCE", 36 * 10)

    page = open_formats(broken_job, over="steps", formats="e4m3,mxfp8_e4m3")

    assert "(mxfp8_e4m3) 36 sites, for these are told step by step" in plain(page.told.reasons)
    assert "the worst of 10 stretches of steps 0–59, each as a whole" in page.told.answer
    assert "(step" not in page.told.table


def test_without_a_step_it_is_the_last_with_most_histograms(
    open_formats: Callable[..., Formats], new_job: Callable
) -> None:
    job = new_job(bad_step=None, every=10)
    job.commit(range(25))

    assert "step 20:" in open_formats(job.path).told.answer
    assert "step 10:" in open_formats(job.path, step=14).told.answer


def test_where_an_error_stands_it_is_the_last_healthy_step_and_says_why(
    open_formats: Callable[..., Formats], judged_job: Path
) -> None:
    page = open_formats(judged_job, formats="e4m3,mxfp8_e4m3")

    choice = page.session.choice
    began = choice.step
    assert page.found is not None
    assert began is not None
    assert page.found.steps == (began - 1, began - 1)
    why = plain(page.told.reasons)
    assert why.startswith(
        f"Step {began - 1} is the newest in which nearly all sites have histograms and no error "
        f"stood; “the selected step” shows {began}, where the first finding began."
    )
    assert "(mxfp8_e4m3) 36 sites of which no blocks were counted" in why

    choice.over = "step"
    assert page.found.steps == (began, began)
    choice.param.update(over="", step=began + 3)
    assert page.found.steps == (began + 3, began + 3)


def test_what_has_no_histogram_is_named(
    open_formats: Callable[..., Formats], new_job: Callable
) -> None:
    job = new_job(bad_step=None, every=2)
    job.commit(range(1, 2))
    job.sites = [one for one in job.sites if one.kind == "activation"]
    job.index = job.index[: len(job.sites)]
    job.commit(range(2, 3))

    told = plain(open_formats(job.path, formats="e4m3").told.reasons)

    assert told == (
        "Step 2 is the newest in which nearly all sites have histograms. "
        "Not known: 12 sites without a histogram there (weight gradient)."
    )


def test_what_may_be_lost_decides_what_fits(
    open_formats: Callable[..., Formats], broken_job: Path
) -> None:
    page = open_formats(broken_job, step=39, formats="e4m3", most="1:1")

    assert page.found is not None
    assert page.found.counts("float8_e4m3fn")["fits"] == 36


def test_sites_are_chosen_by_kind_and_name(
    open_formats: Callable[..., Formats], broken_job: Path
) -> None:
    page = open_formats(broken_job, of="weight_gradient", pattern="mlp")

    assert page.found is not None
    assert set(page.found.table["kind"].to_numpy()) == {"weight_gradient"}
    assert all("mlp" in one for one in page.found.table["name"].to_numpy())


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ({"pattern": "["}, "The name filter is no regular expression"),
        ({"pattern": "nowhere"}, "No site's name matches 'nowhere'"),
        ({"formats": "fp9"}, "There is no number format 'fp9'"),
        ({"times": "much"}, "Powers of two are given as 4 for all, or by kind"),
        ({"times": "bias=4"}, "`scale` names the kind 'bias'"),
        ({"most": "2"}, "What may be lost is given as two shares between 0 and 1"),
        ({"over": "steps", "zoom": (7.2, 7.4)}, ""),
    ],
)
def test_what_cannot_be_shown_is_told(
    open_formats: Callable[..., Formats], broken_job: Path, chosen: dict[str, Any], problem: str
) -> None:
    page = open_formats(broken_job, **chosen)

    assert page.told.problem.startswith(problem)
    if problem:
        assert (page.told.table, page.told.answer, page.csv(), page.recipe()) == ("", "", "", "")
        page.session.choice.param.update(pattern="", formats="", times="", most="")
        assert (page.told.problem, page.found is None) == ("", False)


def test_table_and_recipe_can_be_taken_home(
    open_formats: Callable[..., Formats], broken_job: Path
) -> None:
    page = open_formats(broken_job, step=39, formats="e4m3,bf16", times="site")

    table = pd.read_csv(StringIO(page.csv()), index_col=["site", "format"])
    recipe = json.loads(page.recipe())
    assert len(table) == 72
    assert recipe["run"] == "gpt-small"
    assert recipe["steps"] == [39, 39]
    for site in np.unique(table.index.get_level_values("site")):
        assert sum(bool(re.fullmatch(one["pattern"], site)) for one in recipe["sites"]) == 1


def test_rows_are_turned_over(open_formats: Callable[..., Formats], new_job: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(2))
    page = open_formats(job.path)
    page.told.total = ROWS + 1  # as of a run with one site more

    page.turn(-1)
    assert page.told.first == 0
    page.turn(1)
    page.turn(1)
    assert page.told.first == ROWS


def test_a_run_without_histograms_says_so(
    open_formats: Callable[..., Formats], new_job: Callable
) -> None:
    assert open_formats(new_job().path).told.problem == "No histogram has been recorded yet."


def test_scales_are_read_as_they_are_written() -> None:
    assert fitting.read_scale("") == 0
    assert fitting.read_scale("-3") == -3
    assert fitting.read_scale("weight=4, activation=-2") == {"weight": 4, "activation": -2}
    assert fitting.read_scale("kind") == "kind"
    with pytest.raises(SettingError, match="got 'weight=x'"):
        fitting.read_scale("weight=x")
    assert fitting.read_formats("e4m3, float8_e4m3fn,nvfp4") == ["float8_e4m3fn", "nvfp4"]


def test_what_is_not_finite_says_so_beside_its_name(
    open_formats: Callable[..., Formats], broken_job: Path
) -> None:
    page = open_formats(broken_job, step=45, of="activation")

    bad = [plain(row) for row in body(page.told.table) if "NaN or infinity" in row]
    assert len(bad) == 7  # the origin, and block 3 after it
    assert any("blocks.2.mlp.act activation NaN or infinity" in row for row in bad)
