"""The bench: runs with one fault each, and healthy ones, trained, collected and judged as a user's.

First that the faults are where its table says; then that the watch finds each first, and names
site, rank and step; and that it leaves healthy runs alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.rules import RuleBook, judge_again, why
from rankscope.store import Run, open_run

from .faults import FAULTS
from .healthy import HEALTHY
from .job import Fault
from .rank_job import JOBS
from .runs import make_all

pytestmark = pytest.mark.timeout(900)  # on a slow machine: the first waits for all trainings

TEMPTING = (
    "fp16_scaled",
    "warm_restarts",
    "small_batches",
    "sparse_activations",
    "harder_data",
    "fine_tuning",
    "zero_positions",
    "small_gated",
    "fast_gated",
    "ddp_small_batches",
)
"""Healthy jobs that look odd; all are judged by `python -m tests.rules.runs`."""
WITHIN = 2
"""Records between a fault and the step that is named."""
RULES = {
    "adam_epsilon": "optimizer-poisoned",
    "attention_logits": "exploding-activation",
    "dead_relu": "dead-activation",
    "flipped_bit": "replica-divergence",
    "fp16_unscaled": "underflow",
    "frozen_layer": "weights-not-updating",
    "learning_rate": "update-ratio",
    "masked_softmax": "nonfinite",
    "other_data": "rank-outlier",
    "wrong_init": "poor-initialisation",
    "young_branch": "exploding-activation",
}
"""By cause the rule that says it."""


Faulty = tuple[Run, Fault]


@pytest.fixture
def faulty(request: pytest.FixtureRequest, paths: dict[str, Path]) -> Faulty:
    """The run of the name that a test is parametrised with, and the truth about it."""
    fault = JOBS[request.param].fault
    assert fault is not None
    return open_run(paths[request.param]), fault


def jobs(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("faulty", names, indirect=True)


def series(run: Run, statistic: str, site: str) -> np.ndarray:
    """A statistic of one site in each step that was trained."""
    whole = run.scalar(statistic, sites=site).squeeze("site")
    return whole.values[~run.records()["final"].to_numpy()]


def test_every_cause_has_a_run() -> None:
    assert {job.fault.cause for job in FAULTS if job.fault} == RULES.keys()
    assert len(JOBS) == len({job.train for job in JOBS.values()})


@jobs(*(job.name for job in FAULTS))
def test_every_step_and_every_site_is_there(faulty: Faulty) -> None:
    run, fault = faulty
    assert set(fault.sites) <= set(run.sites().index)
    assert run.gaps()["cause"].tolist() == []
    assert run.records()["step"].tolist() == list(range(len(run.records())))


@jobs("learning_rate", "learning_rate_sgd")
def test_updates_and_loss_jump_when_the_rate_does(faulty: Faulty) -> None:
    run, fault = faulty
    loss = run.training().sel(name="loss").values[:, 0]
    assert np.nanmax(loss[fault.seen :]) > 2 * loss[: fault.seen].max()
    for site in fault.sites:
        change = np.abs(np.diff(series(run, "rms", site)))
        assert change[fault.step] > 20 * change[: fault.step].max(), site


@jobs("fp16_unscaled", "fp16_autocast_unscaled")
def test_gradients_of_float16_are_subnormal(faulty: Faulty) -> None:
    run, fault = faulty
    for site in fault.sites:
        assert run.sites().loc[site, "dtype"] == "float16"
        lost = series(run, "subnormal_share", site) / (1 - series(run, "zero_share", site))
        assert lost[-20:].min() > 0.9, site


@jobs("dead_relu")
def test_all_units_are_silent_from_the_step_on(faulty: Faulty) -> None:
    run, fault = faulty
    silent = series(run, "zero_share", fault.sites[0])
    assert silent[: fault.seen].max() < 0.9
    assert silent[fault.seen :].min() == 1


@jobs("frozen_layer", "lost_updates")
def test_weights_stay_what_they_were_though_gradients_flow(faulty: Faulty) -> None:
    run, fault = faulty
    for site in fault.sites:
        steps = (0, 1, len(run.records()) - 1)
        checksums = {int(run.table(step, [site])[1].checksum[0]) for step in steps}
        assert len(checksums) == 1, site
        gradients = series(run, "rms", site.replace("weight:", "weight_gradient:", 1))
        assert gradients.min() > 0


@jobs("flipped_bit")
def test_one_bit_of_one_rank_is_another(faulty: Faulty) -> None:
    run, fault = faulty
    alert = run.alerts().iloc[0]
    assert alert["rule"] == "replica-divergence"
    assert (alert["site"],) == fault.sites
    assert alert["ranks"] == fault.ranks
    assert alert["first_step"] == fault.seen


@jobs("other_data", "other_data_shifted")
def test_one_ranks_samples_are_others(faulty: Faulty) -> None:
    run, fault = faulty
    for site in fault.sites:
        ranks = run.ranks("rms" if "activation" in site else "l2", site=site)
        odd = ranks.sel(rank=list(fault.ranks)).mean("rank")
        ratio = (odd / ranks.drop_sel(rank=list(fault.ranks)).mean("rank")).values[:-1]
        assert 0.9 < np.median(ratio[: fault.seen]) < 1.1, site
        assert np.median(ratio[fault.seen :]) > 1.5, site


@jobs("attention_logits")
def test_logits_grow_a_hundredfold(faulty: Faulty) -> None:
    run, fault = faulty
    largest = series(run, "abs_max", fault.sites[0])
    assert largest[: fault.seen].max() < 5
    assert largest[-1] > 100


@jobs("masked_softmax")
def test_the_softmax_makes_the_first_nan(faulty: Faulty) -> None:
    run, fault = faulty
    found = run.first_bad()
    assert found is not None
    assert ((found.site,), found.step, found.ranks) == (fault.sites, fault.seen, fault.ranks)
    assert found.cause == "forward"


@jobs("adam_epsilon", "adam_epsilon_huge")
def test_second_moments_are_zero_where_gradients_are_not(faulty: Faulty) -> None:
    run, fault = faulty
    for site in fault.sites:
        assert run.sites().loc[site, "dtype"] == "float16"
        first = site.replace("exp_avg_sq", "exp_avg")
        assert series(run, "zero_share", site)[0] > series(run, "zero_share", first)[0] + 0.4, site


@jobs("adam_epsilon")
def test_without_an_epsilon_the_first_update_is_infinite(faulty: Faulty) -> None:
    found = faulty[0].first_bad()
    assert found is not None
    assert (found.kind, found.step, found.cause) == ("weight", 1, "update")


@jobs("wrong_init")
def test_a_layer_begins_too_large(faulty: Faulty) -> None:
    run, fault = faulty
    assert series(run, "rms", fault.sites[0])[0] > 10 * series(run, "rms", "weight:fc3.weight")[0]


@jobs("constant_init")
def test_all_weights_of_a_layer_begin_alike(faulty: Faulty) -> None:
    run, fault = faulty
    assert series(run, "std", fault.sites[0])[0] == 0


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Healthy runs, each trained once."""
    return make_all(TEMPTING, tmp_path_factory.mktemp("healthy"))


@pytest.mark.parametrize("name", [job.name for job in FAULTS])
def test_the_fault_comes_first_with_its_site_rank_and_step(
    name: str, paths: dict[str, Path]
) -> None:
    run, job = open_run(paths[name]), JOBS[name]
    fault = job.fault
    assert fault is not None

    found = why(run)
    first = found.findings[0]

    assert found.state == "incidents"
    assert first.rule == RULES[fault.cause]
    assert first.site in fault.sites
    assert abs(first.first_step - fault.step) <= WITHIN
    if job.ranks > 1:
        assert tuple(at.rank for at in first.ranks) == fault.ranks
        assert all(at.host for at in first.ranks)
    assert first.meaning
    assert first.advice


@pytest.mark.parametrize("name", TEMPTING)
def test_a_healthy_run_is_left_alone(name: str, healthy: dict[str, Path]) -> None:
    found = why(open_run(healthy[name]))

    # On a machine that is busy agents do drop steps, and that is told.
    assert {one.rule for one in found.findings} <= {"agent-losses"}, found.findings
    assert found.state in ("healthy", "incidents")
    assert found.checked["nonfinite"] >= found.records - 1


@pytest.mark.parametrize("name", ["masked_softmax", "learning_rate_sgd", "flipped_bit"])
def test_a_run_is_judged_again_as_it_was_live(name: str, paths: dict[str, Path]) -> None:
    run = open_run(paths[name])

    again, judged = judge_again(run, RuleBook())

    assert again == run.incidents()
    stored = run.judged()
    assert {rule: stored[rule] for rule in judged} == judged


def test_why_is_told_in_a_terminal(paths: dict[str, Path]) -> None:
    result = CliRunner().invoke(cli, ["why", str(paths["masked_softmax"])])

    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == "Run masked_softmax: 161 records, steps 0 to 160, finished."
    assert lines[1] == "1 incident, what goes on and is worst first:"
    assert "1. ERROR nonfinite, step 80 until the run ended" in lines
    assert "activation:blocks.0.attention.softmax holds 4,096 NaN of 65,536" in result.output
    assert re.search(r"^ +79 +0\.\d+ +0\.\d+ +0$", result.output, re.MULTILINE)
    assert re.search(r"^ +80 +0\.\d+ +0\.\d+ +4,096$", result.output, re.MULTILINE)
    # The largest weight of attention there is near a half, above it or below by torch's build.
    assert re.search(
        r"65,536 elements in step 80, by powers of two: 2\^-\d+ \S+ 2\^-[12];", result.output
    )
    assert "Checked, with the number of records: " in result.output


def test_why_is_told_to_programs(paths: dict[str, Path]) -> None:
    result = CliRunner().invoke(cli, ["why", str(paths["other_data"]), "--json"])
    found = json.loads(result.output)

    assert (result.exit_code, found["state"]) == (0, "incidents")  # a warning alone
    assert found["findings"][0]["ranks"][0]["rank"] == 1
    assert found["findings"][0]["evidence"]["factor"] == pytest.approx(4, rel=0.2)
    stored = found["findings"][0]["stored"]
    before, since = stored["moments"][0], stored["moments"][-1]
    assert before["blamed_rms"] == pytest.approx(before["rms"], rel=0.2)
    assert since["blamed_rms"] > 1.5 * since["rms"]
    assert since["blamed_rms"] > 1.5 * since["peers_rms"]
    assert before["peers_rms"] == pytest.approx(before["blamed_rms"], rel=0.2)
    exponents = stored["exponents"]
    assert sum(exponents["counts"].values()) + exponents["zero"] == exponents["total"]


def test_rules_are_tried_on_a_stored_run(paths: dict[str, Path], tmp_path: Path) -> None:
    settings = tmp_path / "rules.toml"
    settings.write_text("[rules.rank-outlier]\noff = true\n")
    command = ["rules", "test", str(paths["other_data"])]

    as_they_are = CliRunner().invoke(cli, command)
    without = CliRunner().invoke(cli, [*command, "--rules", str(settings)])

    assert as_they_are.output.startswith("steps 81 to …: warning rank-outlier (")
    assert without.output.startswith("0 incidents of 0 alerts; ")


def test_rules_are_listed() -> None:
    result = CliRunner().invoke(cli, ["rules", "list"])

    assert result.exit_code == 0
    assert "replica-divergence (error)" in result.output
    assert "loss-spike (warning)" in result.output


def test_every_healthy_job_that_is_named_is_there() -> None:
    assert {*TEMPTING} <= {job.name for job in HEALTHY}
