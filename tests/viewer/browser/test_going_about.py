"""From page to page: links, Back, the address, the themes, the sizes of screens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from rankscope.rules import why
from rankscope.store import Alert, open_run
from rankscope.viewer import words
from rankscope.viewer.views import CONTENTS

from .watching import COLOUR, SIZES

GROUND = "getComputedStyle(document.body).backgroundColor"
MARKUP = "<img src=gone onerror=document.body.dataset.hacked=1>"


def test_the_index_leads_to_a_run(visit: Callable, start: Callable, broken_job: Path) -> None:
    server = start(broken_job.parent)
    page = visit(server.address)
    page.page.goto(server.address)

    page.page.get_by_role("link", name="gpt-small").click()

    page.settle()
    folder = words.place(broken_job.parent)
    assert page.page.title() == f"gpt-small in {folder} – rankscope"
    page.page.wait_for_url("**/?run=broken&kind=activation&site=*")


def test_the_colours_stay_from_the_index_to_a_run_and_back(
    visit: Callable, start: Callable, broken_job: Path
) -> None:
    page = visit(start(broken_job.parent).address)
    page.page.goto(page.address + "?theme=dark")

    page.page.get_by_role("link", name="gpt-small").click()
    page.settle()

    page.page.wait_for_url("**/?run=broken&theme=dark&kind=activation&site=*")
    page.page.get_by_title("All runs").click()
    page.page.wait_for_url("**/?theme=dark")
    page.page.get_by_role("link", name="gpt-small").wait_for()
    assert page.page.evaluate(GROUND) == "rgb(14, 19, 24)"


def test_a_click_on_a_finding_selects_its_site_and_step(
    visit: Callable, start: Callable, judged_job: Path
) -> None:
    page = visit(start(judged_job).address)
    page.open("?kind=weight_gradient&name=qkv")
    page.sees("1 incident.")

    [found] = why(open_run(judged_job)).findings
    page.page.get_by_role("button", name=found.what).click()

    page.sees(f"activation · step {found.first_step} · float16")
    page.page.wait_for_url(
        f"**/?page=tensor&kind=activation&site={found.site}&step={found.first_step}*"
    )


def test_what_a_hostile_job_says_is_shown_as_text(
    visit: Callable, start: Callable, new_job: Callable
) -> None:
    bad = "<img src=/gone onerror=alert(1)>"
    job = new_job(bad_step=None)
    told = Alert(
        rule=bad, severity=bad, attempt=0, site=f"weight:{bad}", ranks=(1,), first_step=1,
        last_step=None, value=1.0, threshold=0.0, text=f"It is {bad}.", time_ns=1,
        evidence={bad: 1.0},
    )  # fmt: skip
    job.commit(range(3), alerts=(told,))
    page = visit(start(job.path).address)

    page.open()

    page.sees(f"It is {bad}.")
    assert page.page.locator("img").count() == 0
    page.page.get_by_role("button", name="It is <img").click()
    page.sees("This run has no site")
    assert page.page.locator("img").count() == 0


@pytest.mark.parametrize("key", ["step", "draw"])
def test_what_an_address_says_is_shown_as_text(visit: Callable, key: str) -> None:
    page = visit()

    page.open(f"?page=map&{key}={quote(MARKUP)}")

    page.sees(f"The address says {key}={MARKUP}, which cannot be used.")
    assert page.page.locator("img").count() == 0


def test_the_name_of_a_folder_is_shown_as_text(
    visit: Callable, start: Callable, broken_job: Path, tmp_path: Path
) -> None:
    for name in ("one", "other", MARKUP):
        shutil.copytree(broken_job, tmp_path / name)
    page = visit(start(tmp_path).address)

    page.open(f"?run=one&page=compare&with=other&also={quote('<img src=away>')}")

    page.page.get_by_placeholder("further runs").click()
    page.page.locator(".choices__item", has_text=MARKUP).first.click()
    page.page.wait_for_url(f"**also=*{quote(MARKUP, safe='')}*")
    page.settle()
    assert page.page.locator("img").count() == 0


@pytest.mark.parametrize("size", SIZES)
def test_back_returns_to_the_page_and_tensor_before(
    visit: Callable, broken_job: Path, size: tuple[int, int]
) -> None:
    page = visit(size=size)
    page.open()
    browser = page.page
    browser.get_by_role("button", name="elements that are not finite").click()
    page.sees("rms on each rank")
    browser.wait_for_url("**/?page=tensor&*step=40*")
    page.settle()
    browser.keyboard.press("ArrowLeft")
    browser.wait_for_url("**/?page=tensor&*step=39*")
    browser.get_by_role("link", name="Map").click()
    browser.wait_for_url("**/?page=map&*step=39*")
    page.settle()

    browser.go_back()
    browser.get_by_role("link", name="Tensor").and_(browser.locator("[aria-current]")).wait_for()
    page.sees("activation · step 39 · float16")
    browser.go_back()
    browser.get_by_role("link", name="Triage").and_(browser.locator("[aria-current]")).wait_for()
    browser.get_by_role("button", name="elements that are not finite").wait_for()
    browser.go_forward()
    page.sees("activation · step 39 · float16")
    assert "page=tensor" in browser.url


def test_each_page_fits_the_width_of_the_screen(visit: Callable) -> None:
    page = visit(size=SIZES[0])
    for entry in CONTENTS:
        page.open(f"?page={entry.name}")
        shown = page.page.get_by_role("link", name=entry.title)
        assert shown.get_attribute("aria-current") == "page"
        for width, height in (*SIZES[1:], SIZES[0]):
            page.page.set_viewport_size({"width": width, "height": height})
            page.settle()
            assert page.page.evaluate("document.documentElement.scrollWidth") <= width
            told = page.page.locator(".chip").last.bounding_box()
            pause = page.page.get_by_role("button", name="Pause").bounding_box()
            assert told is not None
            assert pause is not None
            assert pause["x"] > told["x"]  # nothing of how the run does stands in a line of its own
            assert pause["y"] < told["y"] + told["height"]


def test_the_other_theme_is_a_link_that_keeps_what_is_chosen(visit: Callable) -> None:
    page = visit()
    page.open("?page=map&step=40")
    assert page.page.evaluate(GROUND) == "rgb(244, 246, 248)"

    page.page.get_by_role("link", name="Dark").click()

    page.page.wait_for_url("**/?page=map&theme=dark&*step=40*")
    page.settle()
    assert page.page.evaluate(GROUND) == "rgb(14, 19, 24)"
    assert page.page.evaluate(COLOUR, [45, 17.5])[:3] == [0xE8, 0x20, 0x7F]
    page.page.get_by_role("link", name="Light").click()
    page.page.wait_for_url("**/?page=map&kind*step=40*")


def test_a_right_click_leads_from_a_tensor_back_to_the_map(visit: Callable) -> None:
    page = visit()
    page.open("?page=tensor&site=activation:blocks.2.mlp.act&step=40")

    page.page.mouse.click(*page.at("life", 12, 5.5), button="right")

    page.page.wait_for_url("**/?page=map&*step=40*")


def test_escape_ends_a_search_before_it_leaves_the_tensor(visit: Callable) -> None:
    page = visit()
    page.open("?page=tensor&site=activation:blocks.2.mlp.act&step=40")
    box = page.page.get_by_placeholder("words of its name")
    box.press_sequentially("blocks.1 up")
    page.sees("+ beside")

    box.press("Escape")

    page.page.get_by_text("+ beside").first.wait_for(state="detached")
    assert (box.input_value(), "page=tensor" in page.page.url) == ("", True)
    page.page.keyboard.press("Escape")
    page.page.wait_for_url("**/?page=map&*step=40*")
