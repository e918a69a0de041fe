"""The report: one file that opens offline and says what is wrong, with its evidence."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from rankscope.rules import why
from rankscope.sketch import SettingError
from rankscope.store import Alert, Event, open_run
from rankscope.viewer import plots
from rankscope.viewer.report import write_report
from rankscope.viewer.report.command import report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ORIGIN = "activation:blocks.2.mlp.act"
HOSTILE = (
    '<img src="http://example.com/x.png" onerror="window.hurt=1"></script><script>window.hurt=1'
)


def text_of(path: Path) -> str:
    """What a reader may see, without the scripts."""
    page = path.read_text(encoding="utf-8")
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_it_says_what_the_rules_say(judged_job: Path, tmp_path: Path) -> None:
    run = open_run(judged_job)

    page = text_of(write_report(run, tmp_path / "report.html"))

    found = why(run)
    assert found.findings
    for one in found.findings:
        assert one.what in page
        assert one.site in page
    assert "Checked" in page
    assert "What was not observed" in page


def test_each_finding_comes_with_its_evidence(judged_job: Path, tmp_path: Path) -> None:
    run = open_run(judged_job)

    page = write_report(run, tmp_path / "report.html").read_text(encoding="utf-8")

    for name in ("training", "heatmap", "exponents", "exponents_aside", "ranks-0"):
        assert f'"name":"{name}' in page
    assert "float8_e4m3fn" in text_of(tmp_path / "report.html")


def test_it_can_be_dark_all_over(judged_job: Path, tmp_path: Path) -> None:
    told = write_report(open_run(judged_job), tmp_path / "report.html", theme="dark").read_text()

    assert "--surface: #161c23;" in told
    grounds = set(re.findall(r'"background_fill_color":"(#\w+)"', told))
    assert grounds == {"#161c23"}
    assert "background: #f" not in told
    with pytest.raises(SettingError, match="`theme` must be one of light, dark, got 'blue'"):
        write_report(open_run(judged_job), tmp_path / "report.html", theme="blue")


def test_pages_of_this_process_are_not_its_business(
    judged_job: Path, tmp_path: Path, closed_page: None
) -> None:
    run = open_run(judged_job)

    written = write_report(run, tmp_path / "report.html")
    saved = plots.save(plots.scalar_heatmap(run), tmp_path / "plot.html")

    assert "rankscope report" in text_of(written)
    assert saved.read_bytes().startswith(b"<!doctype")


def test_a_tensor_and_a_step_can_be_asked_for(broken_job: Path, tmp_path: Path) -> None:
    run = open_run(broken_job)

    page = text_of(
        write_report(run, tmp_path / "a.html", site="weight_gradient:blocks.0.mlp.up", step=12)
    )

    assert "weight gradient · step 12" in page
    assert "Asked for." in page
    with pytest.raises(SettingError, match="There is no site 'activation:nothing'"):
        write_report(run, tmp_path / "b.html", site="activation:nothing")
    with pytest.raises(SettingError, match="Step 99 was not recorded; the nearest recorded is 59"):
        write_report(run, tmp_path / "b.html", step=99)
    assert not list(tmp_path.glob("*b.html*")), "no half a file is left"


def test_a_sound_run_is_told_to_be_sound_and_what_was_checked(
    new_job: Callable[..., Any], tmp_path: Path
) -> None:
    job = new_job(bad_step=None, watched=True)
    job.commit(range(20))

    page = text_of(write_report(open_run(job.path), tmp_path / "report.html"))

    assert "Healthy, as far as it was observed" in page
    assert "this has the largest number at step 19" in page
    assert "No frame was lost." in page


def test_a_run_that_has_stored_nothing_yet_has_a_report(
    new_job: Callable[..., Any], tmp_path: Path
) -> None:
    page = text_of(write_report(open_run(new_job().path), tmp_path / "report.html"))

    assert "Nothing has been recorded yet." in page


def test_what_was_lost_is_listed(new_job: Callable[..., Any], tmp_path: Path) -> None:
    job = new_job()
    gap = Event(
        kind="gap", attempt=0, rank=3, step=5, last_step=6, frames=2, cause="window",
        text="Rank 3 dropped 2 frames.",
    )  # fmt: skip
    job.commit(range(10), without=(3,), events=(gap,))

    page = text_of(write_report(open_run(job.path), tmp_path / "report.html"))

    assert "2 frames were lost." in page
    assert "<td>5–6</td><td>2</td><td>window</td>" in page
    assert "10 records of 10 lack a rank, the first at step 0." in page


def test_it_opens_offline_and_asks_for_nothing(
    judged_job: Path, tmp_path: Path, browser: Browser
) -> None:
    path = write_report(open_run(judged_job), tmp_path / "report.html")
    context = browser.new_context(viewport={"width": 1366, "height": 768}, offline=True)
    page = context.new_page()
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)

    page.goto(path.as_uri())
    page.wait_for_function("() => Bokeh.documents.length && Bokeh.documents[0].is_idle")
    painted = page.evaluate(
        "() => [...Bokeh.index.query((view) => view.model.name === 'heatmap')].length"
    )
    magenta = page.evaluate(
        "() => getComputedStyle(document.querySelector('.key .bad')).backgroundColor"
    )
    unfolded = page.evaluate(
        "() => [...document.querySelectorAll('.finding details')].every((f) => f.open)"
    )

    context.close()
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    assert errors == []
    assert painted >= 1
    assert magenta == "rgb(214, 0, 108)"
    assert unfolded


def test_names_and_texts_of_a_run_are_never_markup(
    new_job: Callable[..., Any], tmp_path: Path, browser: Browser
) -> None:
    job = new_job(run="hostile")
    site = job.site("blocks.2.mlp.act")
    alert = Alert(
        rule="nonfinite", severity="error", attempt=0, site=site, ranks=(2,), first_step=5,
        last_step=None, value=1.0, threshold=0.0, text=HOSTILE, evidence={}, time_ns=1,
    )  # fmt: skip
    event = Event(kind="stalled", attempt=0, rank=0, step=3, text=HOSTILE)
    job.commit(range(10), alerts=(alert,), events=(event,))
    path = write_report(open_run(job.path), tmp_path / "report.html")
    page = browser.new_page()

    page.goto(path.as_uri())
    page.wait_for_function("() => Bokeh.documents.length && Bokeh.documents[0].is_idle")
    seen = page.evaluate("() => [window.hurt, document.querySelectorAll('img').length]")

    page.close()
    assert seen in ([None, 0], [0])
    assert "&lt;img src=" in text_of(path)


def test_the_command_writes_it_and_says_where(judged_job: Path, tmp_path: Path) -> None:
    path = tmp_path / "a" / "report.html"
    path.parent.mkdir()

    said = CliRunner().invoke(report, [str(judged_job), "-o", str(path), "--step", "40"])

    assert said.exit_code == 0, said.output
    assert said.output.startswith(f"Wrote {path}, ")
    assert path.stat().st_size < 5e6


@pytest.mark.parametrize("output", [".", "none/r.html"])
def test_where_it_cannot_be_written_it_says_why(judged_job: Path, output: str) -> None:
    with pytest.raises(SettingError, match=f"^{re.escape(output)} cannot be written: "):
        write_report(open_run(judged_job), output)
