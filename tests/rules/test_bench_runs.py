"""The faults of the bench are in its runs, where and when its table says, and not before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankscope.store import Run, open_run

from .faults import FAULTS
from .job import Fault
from .runs import JOBS, make_all

CAUSES = {
    "adam_epsilon",
    "attention_logits",
    "dead_relu",
    "flipped_bit",
    "fp16_unscaled",
    "frozen_layer",
    "learning_rate",
    "masked_softmax",
    "other_data",
    "wrong_init",
}

Faulty = tuple[Run, Fault]


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All faulty runs, each trained once."""
    return make_all([job.name for job in FAULTS], tmp_path_factory.mktemp("bench"))


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
    assert {job.fault.cause for job in FAULTS if job.fault} == CAUSES
    assert len(JOBS) == len({job.train for job in JOBS.values()})


@jobs(*(job.name for job in FAULTS))
def test_every_step_and_every_site_is_there(faulty: Faulty) -> None:
    run, fault = faulty
    assert set(fault.sites) <= set(run.sites().index)
    assert len(run.gaps()) == 0
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
