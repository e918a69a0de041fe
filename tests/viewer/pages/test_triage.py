"""Triage without a browser: what is told of what is wrong, and where it leads."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankscope.rules import why
from rankscope.store import Alert, Event, RankInfo, open_run
from rankscope.viewer.pipeline import load_pipeline

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


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", html.replace("<wbr>", ""))).strip()


def test_a_finding_says_what_where_when_on_which_rank_and_what_to_try(
    judged_job: Path, open_page: Callable
) -> None:
    page = open_page(judged_job, page="triage")

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


def test_the_steps_before_stand_in_numbers_beside_those_of_the_peers(
    judged_job: Path, open_page: Callable
) -> None:
    page = open_page(judged_job, page="triage")

    [found] = why(open_run(judged_job)).findings
    [card] = page.told.cards
    told = card.moments
    assert told.startswith("<details open><summary>The steps before, in numbers</summary>")
    assert (
        f"{ORIGIN}, over all ranks step rms rms on rank 2 median of its peers largest not finite "
        in plain(told)
    )
    rows = [plain(row).split() for row in re.findall("<tr>(.*?)</tr>", told)[1:]]
    assert [int(row[0]) for row in rows] == [at.step for at in found.stored.moments]
    before, begun = rows[0], next(row for row in rows if int(row[0]) == found.first_step)
    assert float(before[2]) < 1.2 * float(before[3])
    assert float(begun[2]) > 1.5 * float(begun[3])

    kept = open_run(judged_job).ranks("rms", site=ORIGIN, steps=found.first_step)
    others = np.median(kept.sel(rank=[0, 1, 3]).values)
    assert float(begun[3]) == float(f"{others:.4g}")


def test_what_was_checked_and_what_was_not_observed_is_told(
    judged_job: Path, open_page: Callable
) -> None:
    told = plain(open_page(judged_job, page="triage").told.grounds)

    assert told.startswith("Checked , with the number of records: ")
    assert "nonfinite (60)" in told
    assert told.endswith("Not observed: No weight was observed.")


def test_a_run_that_no_rule_judged_is_not_called_healthy(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(3))

    page = open_page(job.path, page="triage")

    assert plain(page.told.state) == (
        "What is wrong Not observed: no rule could judge any tensor. "
        "No non-finite values in 36 sites × 4 ranks over steps 0–2."
    )
    assert page.told.cards == []
    assert "an older collector stored them" in plain(page.told.grounds)


def test_of_a_run_that_no_rule_judged_the_first_bad_numbers_are_told(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="triage")

    assert plain(page.told.state) == "What is wrong 1 incident."
    [card] = page.told.cards
    assert card.text == f"{ORIGIN} holds 3 elements that are not finite."
    assert (card.site, card.step, card.ranks) == (ORIGIN, 40, (2,))
    assert plain(card.facts).endswith(
        f"First non-finite values: {ORIGIN} on rank 2, step 40. "
        "Not all weights were observed in this step: it began in steps 39 to 40."
    )
    assert "an older collector stored them" in plain(page.told.grounds)


def test_first_bad_numbers_are_told_beside_what_an_older_collector_found(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=4)
    job.commit(range(6), alerts=(HOSTILE,))

    page = open_page(job.path, page="triage")

    assert "2 incidents" in page.told.state
    assert [card.text for card in page.told.cards] == [
        f"{ORIGIN} holds 3 elements that are not finite.",
        "It is not <the> sum.",
    ]


def test_texts_of_findings_are_escaped(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(9), alerts=(HOSTILE,))

    page = open_page(job.path, page="triage")

    [card] = page.told.cards
    assert card.text == "It is not <the> sum."  # plain: it is the label of a button
    assert "&lt;img src=x&gt;" in card.facts
    html = card.facts + card.advice
    assert [tag for tag in ("<img", "<i>", "<u>", "<b>") if tag in html] == []
    assert "&lt;u&gt;off" in html


def test_a_finding_tells_its_steps(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None)
    again = replace(HOSTILE, first_step=100, last_step=None, record=100)
    job.commit(range(200), alerts=(HOSTILE, again))

    page = open_page(job.path, page="triage")

    assert "2 incidents, what goes on and is worst first." in page.told.state
    steps = [re.findall("steps (.*?) site", plain(card.facts)) for card in page.told.cards]
    assert steps == [["from 100, goes on"], ["3–4, ended 195 steps before the last"]]


def test_a_healthy_run_says_what_was_looked_at(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None, watched=True)
    job.commit(range(3))

    page = open_page(job.path, page="triage")

    assert page.told.cards == []
    assert plain(page.told.state) == (
        "What is wrong Healthy, as far as it was observed: "
        "no rule found anything in 36 sites × 4 ranks over steps 0–2."
    )
    assert "nonfinite (3)" in plain(page.told.grounds)


def test_a_finding_can_be_gone_to_from_anywhere(judged_job: Path, open_page: Callable) -> None:
    page = open_page(
        judged_job, kind="weight_gradient", pattern="qkv", zoom=(3.0, 9.0), page="triage"
    )

    page.select_finding(0)

    [found] = why(open_run(judged_job)).findings
    assert (page.session.choice.kind, page.session.choice.site) == ("activation", ORIGIN)
    assert page.session.choice.step == found.first_step < 40
    assert (page.session.choice.pattern, page.session.choice.zoom) == ("", None)


def test_a_finding_of_no_single_site_leads_to_its_step(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(9), alerts=(replace(HOSTILE, site=""),))
    page = open_page(job.path, kind="activation", site=ORIGIN, step=7, page="triage")

    page.select_finding(0)

    assert (page.session.choice.site, page.session.choice.step) == (ORIGIN, 3)


def test_a_finding_shows_up_while_the_page_is_open(new_job: Callable, open_pages: Callable) -> None:
    job = new_job(bad_step=20, bad_rank=1, watched=True)
    job.commit(range(5))
    pages = open_pages(job.path)
    page = pages.page
    assert page.told.cards == []

    job.commit(range(5, 22))
    pages.session.follower.look()
    pages.tick()

    [card] = page.told.cards
    assert "rank 1 (node-0, cuda:1)" in card.facts
    assert "goes on" in plain(card.facts)
    assert card.severity == "error"


def test_an_empty_run_says_so_until_it_fills(new_job: Callable, open_pages: Callable) -> None:
    job = new_job(bad_step=None)
    pages = open_pages(job.path)
    assert plain(pages.page.told.state) == "What is wrong Nothing has been recorded yet."

    job.commit(range(3))
    pages.session.follower.look()
    pages.tick()

    assert "over steps 0–2" in plain(pages.page.told.state)
    assert list(pages.page.training.lines.source.data["step"]) == [0, 1, 2]


def test_what_is_over_is_told_below_what_goes_on(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None)
    later = replace(HOSTILE, first_step=160, last_step=161, record=161)
    job.commit(range(200), alerts=(HOSTILE, later))

    page = open_page(job.path, page="triage")

    assert [(card.step, card.now) for card in page.told.cards] == [(3, False), (160, True)]
    recent = "the last 50 records (steps 150–199)"
    assert plain(page.told.now) == f"Now goes on, or was so in {recent}"
    assert plain(page.told.earlier) == "Earlier in the run is over, or of an earlier attempt"


def test_where_nothing_is_wrong_now_it_says_how_far_it_looked(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(200), alerts=(HOSTILE,))

    page = open_page(job.path, page="triage")

    recent = "the last 50 records (steps 150–199)"
    assert plain(page.told.now) == f"Now nothing: no rule found anything in {recent}"
    assert [card.now for card in page.told.cards] == [False]


def test_findings_are_marked_on_the_training_lines(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None)
    grave = replace(HOSTILE, severity="error", first_step=160, last_step=None, record=161)
    job.commit(range(200), alerts=(HOSTILE, grave))

    page = open_page(job.path, page="triage")

    marks = page.training.lines.events.data
    assert (marks["step"], marks["fill"]) == ([160, 3], [1.0, 0.0])
    assert marks["text"] == [HOSTILE.text] * 2
    assert "▲: findings began at 3, 160." in plain(page.training.told.summary)


def test_the_pipeline_tells_its_losses_and_its_cost(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None)
    lost = Event(
        kind="gap", attempt=0, rank=3, step=5, last_step=6, time_ns=1, frames=2,
        cause="<i>dropped by the agent", text="Rank 3 dropped 2 frames.",
    )  # fmt: skip
    health = {"wall_seconds": 11.0, "hook_seconds": 1.0, "frames_dropped": 2.0, "stretch": 1.0}
    costly = health | {"hook_seconds": 2.0}
    first = job.record(0, 0, without=(), spike={})
    told = {rank: costly if rank == 2 else health for rank in range(4)}
    job.writer.commit([replace(first, health=told)], streams={}, events=(lost,))
    job.commit(range(1, 9), without=(3,))

    page = open_page(job.path, page="triage")

    text = plain(page.told.pipeline)
    assert "records 9, one every 1 s; the longest pause was 1 s" in text
    assert "agent adds 10 % to a step; most on rank 2: 22 %" in text
    assert "incomplete 8 of 9 records lack a rank" in text
    assert "lost 2 frames of 1 rank: &lt;i&gt;dropped by the agent" in text
    assert "agents 8 frames dropped for want of room" in text


def test_the_time_between_two_attempts_is_no_pause(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(3))
    job.attempt = job.writer.catalog.attempt_of("launch-2")
    job.commit(range(200, 203))  # a record a second: these come minutes later

    page = open_page(job.path, page="triage")

    assert "one every 1 s; the longest pause was 1 s" in plain(page.told.pipeline)


def test_ranks_are_laid_out_by_the_mesh_and_say_how_they_are(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None, ranks=6)
    mesh = [
        RankInfo(rank=rank, host="<b>", device="cpu", coordinates={"pp": rank // 3, "dp": rank % 3})
        for rank in range(5)
    ]
    job.writer.catalog.set_attempt(job.attempt, 6, {"pp": 2, "dp": 3}, mesh)
    alert = replace(HOSTILE, ranks=(2,), last_step=None)
    job.commit(range(9), without=(4,), alerts=(alert,))

    page = open_page(job.path, page="triage")

    rows = re.findall("<tr>(.*?)</tr>", page.told.mesh)
    states = [re.findall('td class="([a-z]+)"', row) for row in rows]
    assert states == [["present", "present", "blamed"], ["present", "missing", "unknown"]]
    assert [plain(row) for row in rows] == ["pp=0 0 1 2", "pp=1 3 4"]
    assert 'title="rank 4 (pp=1, dp=1; &lt;b&gt;, cpu): missing there"' in page.told.mesh
    assert "rank 4 missing there; rank 2 blamed by a finding" in plain(page.told.mesh)
    counts = re.findall(r"([a-z][a-z, ]+) \((\d)\)</span>", page.told.mesh)
    assert counts == [
        ("in the newest record, not blamed", "3"),
        ("missing there", "1"),
        ("blamed by a finding", "1"),
        ("never heard of", "1"),
    ]


def test_attempts_are_listed_the_latest_first(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(3))
    again = job.writer.catalog.attempt_of("launch-2")
    job.writer.catalog.set_attempt(again, 8, {"dp": 8}, [])
    job.attempt = again
    job.commit(range(2, 5))

    page = open_page(job.path, page="triage")

    rows = re.findall("<tr>(.*?)</tr>", page.told.attempts)[1:]
    assert plain(rows[0]).startswith("1 0 of 8 dp 8 3 2–4 2025-10-09 08:53:22")
    assert plain(rows[1]).startswith("0 4 of 4 dp 4 3 0–2")
    assert load_pipeline(page.session.run, records=page.session.run.records()).records == 6


def test_where_the_loss_was_nan_its_line_is_marked(new_job: Callable, open_page: Callable) -> None:
    job = new_job(bad_step=None, watched=True)
    lost = {(step, 1) for step in range(3, 6)} | {(7, 0)}
    job.training = lambda step, rank: {
        "loss": np.nan if (step, rank) in lost else 2.0 + (step >= 6)
    }
    job.commit(range(8))
    page = open_page(job.path)

    assert page.training.shown is not None
    assert set(page.training.shown.bad) == lost
    bad = page.training.lines.bad.data
    on_one = np.asarray(bad["y"])[np.asarray(bad["rank"]) == 1]
    assert on_one.tolist() == [2.0] * 3
    assert (
        "at step 7: 3; not finite on rank 1 from step 3, later on rank 0, too"
        in page.training.told.summary
    )
