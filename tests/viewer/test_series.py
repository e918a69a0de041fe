"""Lines over steps as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
from bokeh.models import DataRange1d

from rankscope.sketch import SketchTable, sketch_array
from rankscope.store import open_run
from rankscope.viewer import series
from rankscope.viewer.curves import load_curves
from rankscope.viewer.figures import look


def test_steps_without_a_finite_number_are_told(new_job: Callable[..., Any]) -> None:
    job = new_job(bad_step=None)
    job.training = lambda step, rank: {
        "loss": 2.0,
        "gradient_norm": nan if 4 <= step < 7 else 1.0,
        "never_again": nan if step >= 6 else 1.0,
    }
    job.commit(range(12))
    run = open_run(job.path)

    lost, gone = (series.load_training(run, name) for name in ("gradient_norm", "never_again"))

    assert lost.lost.tolist() == [4, 5, 6]
    assert "no finite number in 3 steps from step 4 to 6: NaN, or not given" in (
        series.describe(lost)
    )
    assert "no finite number in 6 steps from step 6: NaN, or not given" in series.describe(gone)


def test_what_is_given_now_and_then_lacks_nothing(new_job: Callable[..., Any]) -> None:
    job = new_job(bad_step=None)
    job.training = lambda step, rank: {"loss": 2.0, "validation": nan if step % 4 else 1.0}
    job.commit(range(12))
    run = open_run(job.path)

    for name in ("loss", "validation"):
        assert not series.load_training(run, name).lost.size


def test_where_another_attempt_begins_is_known_of_all_lines(new_job: Callable[..., Any]) -> None:
    job = new_job(bad_step=None)
    job.training = lambda step, rank: {"loss": 2.0}
    job.commit(range(10))
    catalog = job.writer.catalog
    job.attempt = catalog.attempt_of("launch-2")
    catalog.set_attempt(job.attempt, job.ranks, {"dp": job.ranks}, catalog.meta.attempts[0].ranks)
    job.commit(range(6, 8))
    run = open_run(job.path)
    site = run.sites().index[0]

    loss = series.load_training(run, "loss")
    ranks = series.load_ranks(run, "rms", site=site)
    curves = load_curves(run, "rms", sites=[site])

    assert loss.turns == ranks.turns == curves.turns == [(6, 1), (8, 0)]
    assert "attempt 1 from step 6; attempt 0 from step 8" in series.describe(loss)


def test_a_lost_loss_is_of_its_attempt_and_not_of_the_weights_after_it(
    new_job: Callable[..., Any],
) -> None:
    job = new_job(bad_step=None, watched=True)
    catalog = job.writer.catalog
    job.training = lambda step, rank: {"loss": nan if rank == 1 and step >= 5 else 2.0}
    job.commit(range(6))
    job.commit(range(6, 7), without=(1,))
    job.commit(range(7, 10))
    healthy = catalog.attempt_of("launch-2")
    catalog.set_attempt(healthy, job.ranks, {"dp": job.ranks}, catalog.meta.attempts[0].ranks)
    for attempt, step in ((0, 10), (healthy, 9)):
        weights = job.record(job.writer.next_record, step, without=(), spike={})
        told = {rank: dict[str, float]() for rank in range(job.ranks)}
        last = replace(weights, attempt=attempt, final=True, training=told)
        job.writer.commit([last], streams={})
    job.attempt, job.watch = healthy, None
    job.training = lambda step, rank: {"loss": 2.0} if step != 8 else {}
    job.commit(range(7, 9))
    run = open_run(job.path)

    found = series.load_training(run, "loss")

    assert run.alerts()["rule"].tolist() == ["loss-nonfinite"]
    assert bool(run.alerts()["last_step"].isna().all())
    assert found.steps.tolist() == list(range(11))
    assert found.bad == [(5, 1), (9, 1)]


def test_a_stretch_without_a_number_is_at_one_level() -> None:
    steps, line = np.arange(5), np.array([nan, 3.0, nan, nan, 1.0])

    levels = [series.level(steps, line, at, otherwise=0.0) for at in range(5)]

    assert levels == [3.0, 3.0, 3.0, 3.0, 1.0]
    assert series.level(steps, np.full(5, nan), 2, otherwise=7.0) == 7.0


def test_where_all_ranks_have_one_number_none_stands_out(new_job: Callable[..., Any]) -> None:
    alone, equal = new_job("alone", ranks=1, bad_step=None), new_job("equal", bad_step=None)
    numbers = equal.table(0, 0, {})
    equal.table = lambda step, rank, spike: numbers
    for job in (alone, equal):
        job.commit(range(3))
        run, site = open_run(job.path), job.sites[0].label

        lines = series.load_ranks(run, "abs_max", site=site)
        shown = series.at_step(run, lines, site=site, step=2)

        assert (shown.worst, shown.why) == (None, "")


def test_a_rank_that_gives_zeros_alone_is_the_one_to_look_at(new_job: Callable[..., Any]) -> None:
    job = with_zeros(new_job(bad_step=None), rank=2)
    run, site = open_run(job.path), job.sites[0].label

    lines = series.load_ranks(run, "rms", site=site)
    shown = series.at_step(run, lines, site=site, step=1)

    assert (shown.worst, shown.why) == (2, "rank 2 zero at step 1")


def with_zeros(job: Any, *, rank: int) -> Any:
    """A job of three steps in which all tensors of one rank are zero."""
    zeros = SketchTable.concatenate([sketch_array(np.zeros(64, np.float32))] * len(job.sites))
    sound = job.table
    job.table = lambda step, one, spike: zeros if one == rank else sound(step, one, spike)
    job.commit(range(3))
    return job


def test_a_constant_has_an_axis_of_its_own_size() -> None:
    fig = look.plot("constant", y_range=DataRange1d())
    rates = np.array([0.01, nan, 0.01])

    look.fit_axis(fig, rates, logarithmic=False)
    assert fig.y_range.default_span == 0.01
    look.fit_axis(fig, rates, logarithmic=True)
    assert fig.y_range.default_span == 2.0


def test_where_nothing_is_finite_the_axis_has_no_numbers() -> None:
    fig = look.plot("lost", y_range=DataRange1d())

    for losses, numbers in (([nan, nan], False), ([nan, 2.5], True)):
        look.fit_axis(fig, np.array(losses), logarithmic=False)
        assert (fig.yaxis[0].major_label_text_alpha, fig.ygrid.visible) == (numbers, numbers)
