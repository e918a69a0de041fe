"""What `rankscope why` says beside the findings: how the job ended, of which attempt they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.rules import why
from rankscope.sketch import SketchTable
from rankscope.sketch.table import COUNT
from rankscope.store import Alert, Event, RankInfo, Record, RunWriter, SiteInfo, open_run

from .conftest import Job

SITES = [SiteInfo(kind="activation", name="patch", dtype="float32")]
Normal = Callable[..., np.ndarray]


def alert(**facts: Any) -> Alert:
    fields: dict[str, Any] = {
        "rule": "exploding-activation",
        "attempt": 0,
        "site": SITES[0].label,
        "ranks": (1,),
        "first_step": 6,
        "last_step": None,
        "value": 115.0,
        "threshold": 10.0,
        "text": "activation:patch is 115 times as large as usual.",
        "time_ns": 0,
        "record": 6,
        "severity": "warning",
    }
    return Alert(**fields | facts)


@pytest.fixture
def write(tmp_path: Path, normal: Normal) -> Callable[..., Path]:
    """A run of two ranks and nine steps, of which rank 1 is off by `factor` from step 6 on."""

    def written(
        *alerts: Alert,
        factor: float = 1.0,
        attempts: int = 1,
        events: tuple[Event, ...] = (),
        judged: tuple[str, ...] = ("replica-divergence", "exploding-activation"),
        over: bool = True,
    ) -> Path:
        job = Job(SITES, ranks=2)
        job.records(6, lambda _: [normal(), normal()])
        job.records(3, lambda _: [normal(), normal() * factor])
        with RunWriter.open(tmp_path / "run", run="run") as writer:
            writer.catalog.add_sites(SITES)
            for number in range(attempts):
                writer.catalog.attempt_of(f"launch {number}")
                ranks = [RankInfo(rank=rank, host="node-0", device="cpu") for rank in range(2)]
                writer.catalog.set_attempt(number, 2, {"dp": 2}, ranks)
            writer.commit(
                job.kept,
                streams={},
                alerts=alerts,
                events=events,
                judged=dict.fromkeys(judged, 9),
            )
            if over:
                writer.finish()
        return tmp_path / "run"

    return written


def told(path: Path) -> str:
    lines = CliRunner().invoke(cli, ["why", str(path)]).output.split()
    return " ".join(lines)


def without_sites(record: Record) -> Record:
    """The same step with nothing observed in it."""
    return replace(
        record,
        sites=record.sites[:0],
        merged=record.merged.take(record.sites[:0]),
        spread=record.spread[:0],
        by_rank={rank: numbers[:0] for rank, numbers in record.by_rank.items()},
        distribution=record.distribution[:, :0],
    )


@pytest.mark.parametrize(
    ("partial", "sites", "reason"),
    [
        (True, SITES, "no step was recorded to its end"),
        (False, [], "no tensor was observed"),
        (False, SITES, "an older collector stored them, or no site matched"),
    ],
)
def test_why_no_rule_could_judge_anything_is_told(
    tmp_path: Path, normal: Normal, partial: bool, sites: list[SiteInfo], reason: str
) -> None:
    job = Job(SITES, ranks=1)
    job.records(1, lambda _: [normal()])
    with RunWriter.open(tmp_path / "run", run="run") as writer:
        writer.catalog.attempt_of("launch")
        writer.catalog.add_sites(sites)
        [record] = job.kept
        record = replace(record, partial=partial)
        writer.commit([record if sites else without_sites(record)], streams={})

    text = told(tmp_path / "run")

    assert text.startswith("Run run: 1 record, step 0, ")
    assert f"No rule could judge any record: {reason}." in text


def test_a_rank_that_was_killed_is_told(write: Callable[..., Path]) -> None:
    lost = Event(kind="rank-lost", attempt=0, rank=1, step=8, text="Rank 1 was silent for 30 s.")
    path = write(events=(lost,))

    text = told(path)

    assert "Run run: 9 records, steps 0 to 8, ranks lost: 1 (last seen in step 8)." in text
    assert "No rule found anything in what was recorded, but the job did not end well." in text
    assert "Healthy" not in text
    found = json.loads(CliRunner().invoke(cli, ["why", str(path), "--json"]).output)
    assert found["ending"]["state"] == "ranks lost"


def test_an_error_with_lines_of_its_own_is_wrapped_between_words_and_told_once(
    write: Callable[..., Path],
) -> None:
    error = "ValueError: Missing key(s):\n\t" + "layers.0.weight, " * 20 + "\n  and more"
    events = [
        Event(kind=kind, attempt=number, rank=rank, step=5, text=text, time_ns=0)
        for number in range(3)
        for kind, rank, text in (
            ("report", 0, f"Training ended in step 5: {error}."),
            ("not-judged", -1, f"It was not judged: {error}."),
        )
    ]
    path = write(attempts=3, events=tuple(events))
    lines = CliRunner().invoke(cli, ["why", str(path)]).output.splitlines()

    assert max(map(len, lines)) <= 100
    assert all(line.endswith("layers.0.weight,") for line in lines[1:4])
    text = " ".join(" ".join(lines).split())
    assert "layers.0.weight, and more; attempts 0, 1: the same." in text
    assert text.count("and more") == 2


def test_where_one_rank_is_off_and_copies_agree_that_rank_is_to_be_looked_at(
    write: Callable[..., Path],
) -> None:
    text = told(write(alert(), factor=115.0))

    assert "Only rank 1 is off, and copies of weights agree. Look at that rank's data," in text


def test_elements_that_are_not_merged_are_not_said_to_be_none(
    tmp_path: Path, normal: Normal
) -> None:
    site = SiteInfo(kind="local_weight_gradient", name="fc.weight", dtype="float32")
    job = Job([site], ranks=2)
    job.record([normal(), normal()])
    [record] = job.kept
    addends = SketchTable.empty(1)  # of which the count alone is that of the whole
    addends.counts[:, COUNT] = record.merged.counts[:, COUNT]
    with RunWriter.open(tmp_path / "run", run="run") as writer:
        writer.catalog.attempt_of("launch")
        writer.catalog.add_sites([site])
        found = alert(site=site.label, rule="rank-outlier", first_step=0, record=0)
        writer.commit([replace(record, merged=addends)], streams={}, alerts=[found])

    text = told(tmp_path / "run")

    assert "step rms largest not finite" in text
    assert "by powers of two" not in text


@pytest.mark.parametrize("case", ["all are off", "copies differ", "nobody compared copies"])
def test_else_the_advice_is_that_of_the_rule(write: Callable[..., Path], case: str) -> None:
    diverged = alert(rule="replica-divergence", site="", record=0, first_step=0, last_step=0)
    path = write(
        alert(),
        *([diverged] if case == "copies differ" else []),
        factor=1.0 if case == "all are off" else 115.0,
        judged=("exploding-activation",)
        if case == "nobody compared copies"
        else ("replica-divergence", "exploding-activation"),
    )

    assert "Only rank 1" not in told(path)


def test_a_bound_of_a_quantity_has_its_meaning_and_advice(write: Callable[..., Path]) -> None:
    path = write(alert(rule="dead_neurons above", text="dead_neurons of patch is 0.95, above 0.9."))
    assert "Most channels of a layer are off for every sample." in told(path)


def test_json_of_numbers_that_are_not_finite_is_json(write: Callable[..., Path]) -> None:
    path = write(alert(value=np.inf, evidence={"residual": np.inf}))
    said = CliRunner().invoke(cli, ["why", str(path), "--json"]).output
    assert "Infinity" not in said
    assert '"inf"' in said
    assert json.loads(said)["run"] == "run"


def test_an_alert_that_never_ended_went_on_until_the_run_ended(write: Callable[..., Path]) -> None:
    assert "exploding-activation, step 6 until the run ended" in told(write(alert()))


def test_while_the_run_is_open_it_goes_on(write: Callable[..., Path]) -> None:
    assert "exploding-activation, step 6 and goes on" in told(write(alert(), over=False))


def test_of_several_attempts_the_latest_comes_first_and_what_came_again_once(
    write: Callable[..., Path],
) -> None:
    other = alert(rule="drift", attempt=0, ranks=(), first_step=80, last_step=81, record=80)
    again = [alert(attempt=number, site="", record=100 * number + 6) for number in range(3)]
    path = write(other, *again, attempts=3, over=False)

    text, found = told(path), why(open_run(path)).findings

    assert [(one.rule, one.attempt, one.also) for one in found] == [
        ("exploding-activation", 2, [0, 1]),
        ("drift", 0, []),
    ]
    assert "2 incidents, the latest attempt's and worst first:" in text
    assert "1. WARNING exploding-activation, attempt 2, step 6 and goes on" in text
    assert "So it was in attempts 0, 1, too." in text
    assert "2. WARNING drift, attempt 0, step 80 to 81" in text


def test_of_two_copies_that_differ_it_is_said_that_nobody_can_know_which_is_wrong(
    write: Callable[..., Path],
) -> None:
    path = write(alert(rule="replica-divergence", ranks=(0, 1), value=1.0, threshold=0.0))

    text = told(path)

    assert "On one or more of rank 0 (node-0, cpu), rank 1 (node-0, cpu); on which cannot" in text
    assert "Confidence: certain. That they differ was counted. Which is wrong cannot be" in text
    assert "rms, rank" not in text
    [found] = why(open_run(path)).findings
    assert found.undetermined
    assert open_run(path).alerts()["undetermined"].tolist() == [True]


def test_of_copies_with_a_majority_the_odd_rank_is_named(write: Callable[..., Path]) -> None:
    path = write(alert(rule="replica-divergence", ranks=(1,), value=0.25, threshold=0.0))

    assert "On rank 1 (node-0, cpu)." in told(path)
    assert open_run(path).alerts()["undetermined"].tolist() == [False]


def test_what_was_found_of_the_run_as_a_whole_is_told_with_its_incident(
    write: Callable[..., Path],
) -> None:
    lost = alert(rule="nonfinite", site="activation:fc", text="activation:fc holds 2 NaN.")
    whole = alert(rule="skipped-updates", site="", text="The gradient scaler skipped updates.")

    text = told(write(lost, whole))

    assert "Of the run as a whole: The gradient scaler skipped updates." in text


def test_a_run_without_tensors_is_not_called_healthy(tmp_path: Path) -> None:
    job = Job([], ranks=1)
    job.records(3, training={"loss": 1.0})
    with RunWriter.open(tmp_path / "run", run="run") as writer:
        writer.catalog.attempt_of("launch")
        writer.catalog.set_attempt(0, 1, {}, [RankInfo(rank=0)])
        writer.commit(job.kept, streams={}, judged={"missing-rank": 3, "loss-nonfinite": 3})

    found = why(open_run(tmp_path / "run"))

    assert found.state == "not observed"
    assert "No activation was observed." in found.not_observed


@pytest.mark.parametrize(
    ("step", "attempts", "over", "shown"),
    [(8, 1, False, True), (7, 1, False, False), (8, 1, True, False), (8, 2, False, False)],
)
def test_a_job_that_hangs_is_told_as_long_as_nothing_was_recorded_since(
    write: Callable[..., Path], step: int, attempts: int, over: bool, shown: bool
) -> None:
    text = "No rank has moved for 30 s: rank 1 in step 8, last at activation:fc, its tensor 6."
    stalled = Event(kind="stalled", attempt=0, rank=1, step=step, text=text)
    path = write(events=(stalled,), attempts=attempts, over=over)

    assert (f"Stalled, and nothing was recorded since: {text}" in told(path)) == shown
    assert ("but the job does not move." in told(path)) == shown


def test_of_a_loss_that_is_not_finite_one_element_is_said_to_be_one(tmp_path: Path) -> None:
    loss = SiteInfo(kind="activation", name="(root)", slot="loss", dtype="float32")
    job = Job([loss], ranks=1)
    job.records(3, 1.0)
    alerts = job.record(np.nan)
    with RunWriter.open(tmp_path / "run", run="run") as writer:
        writer.catalog.add_sites([loss])
        writer.catalog.attempt_of("launch")
        writer.catalog.set_attempt(0, 1, {}, [RankInfo(rank=0)])
        writer.commit(job.kept, streams={}, alerts=alerts, judged={"nonfinite": 4})

    text = told(tmp_path / "run")

    assert "activation:(root)[loss] holds 1 NaN of 1 element." in text
    assert "Its 1 element in step 3, by powers of two: none; 1 NaN." in text


@pytest.mark.parametrize(("factor", "is_said"), [(1e6, True), (1.5, False)])
def test_weights_that_leapt_before_something_is_not_finite_are_told(
    tmp_path: Path, normal: Normal, factor: float, is_said: bool
) -> None:
    sites = [replace(SITES[0], kind="weight", name=f"{one}.weight") for one in "ab"] + SITES
    job = Job(sites, ranks=1)
    job.records(3, normal(), normal(), normal())
    alerts = job.record(normal(), normal() * factor, np.full(1024, np.nan))
    with RunWriter.open(tmp_path / "run", run="run") as writer:
        writer.catalog.add_sites(sites)
        writer.catalog.attempt_of("launch")
        writer.catalog.set_attempt(0, 1, {}, [RankInfo(rank=0)])
        writer.commit(job.kept, streams={}, alerts=alerts, judged={"nonfinite": 4})

    [finding] = why(open_run(tmp_path / "run")).findings

    assert (
        "Weights had leapt before: the rms of weight:b.weight went" in finding.origin
    ) == is_said
    assert (
        finding.origin.endswith("between steps 2 and 3. Look at the learning rate first.")
        == is_said
    )


CUT_OFF = (
    "No gradient of weight:b (and 1 more) was observed: frozen, not asked for, or cut off from the "
    "loss, as by a `detach()`."
)


@pytest.mark.parametrize(("graded", "said"), [("abc", []), ("a", [CUT_OFF]), ("", [])])
def test_weights_of_which_no_gradient_was_seen_are_named_where_others_had_one(
    tmp_path: Path, normal: Normal, graded: str, said: list[str]
) -> None:
    places = [("weight", one) for one in "abc"] + [("weight_gradient", one) for one in graded]
    sites = [SiteInfo(kind=kind, name=name, dtype="float32") for kind, name in places]
    job = Job(sites, ranks=1)
    job.records(3, *[lambda _: [normal()]] * len(sites))
    with RunWriter.open(tmp_path / "run", run="run") as writer:
        writer.catalog.add_sites(sites)
        writer.catalog.attempt_of("launch")
        writer.catalog.set_attempt(0, 1, {}, [RankInfo(rank=0)])
        writer.commit(job.kept, streams={}, judged={"nonfinite": 3})

    told = why(open_run(tmp_path / "run")).not_observed

    assert [one for one in told if "No gradient of" in one] == said
