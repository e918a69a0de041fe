"""What is read off under the mouse, and clicks in the training curve, without a browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bokeh.events import MouseMove, Tap

from rankscope.store import open_run
from rankscope.viewer.pages import Visited
from rankscope.viewer.reading import MOST_STEPS, Reading, Readings, of_training
from rankscope.viewer.series import load_training
from rankscope.viewer.views import CONTENTS

SITE = "activation:blocks.2.mlp.act"


# `Any`: the columns of bokeh's sources are untyped here.
def read(pages: Visited) -> dict[str, Any]:
    crosshair = pages.session.crosshair
    numbers: Any = crosshair.numbers.data
    names: Any = crosshair.names.data
    return {"step": numbers["step"]} | {
        label: numbers[str(place)] for place, label in enumerate(names["label"])
    }


def test_training_and_the_selected_site_are_read_at_recorded_steps(
    broken_job: Path, open_pages: Callable[..., Visited]
) -> None:
    pages = open_pages(broken_job, page="map", site=SITE, step=20, statistic="abs_max")
    run, found = open_run(broken_job), read(pages)

    loss = run.training().sel(name="loss")
    assert list(found) == [
        "step", "loss rank 0", "rank 1", "rank 2", "rank 3",
        "abs_max of blocks.2.mlp.act (activation)", "elements not finite",
    ]  # fmt: skip
    assert found["step"].tolist() == run.records()["step"].tolist()
    np.testing.assert_array_equal(found["rank 2"], loss.sel(rank=2))
    kept = run.scalar("abs_max", sites=[SITE])[:, 0]
    np.testing.assert_array_equal(found["abs_max of blocks.2.mlp.act (activation)"], kept)
    assert np.isnan(found["elements not finite"][:40]).all()
    assert found["elements not finite"][45] == 8

    pages.session.choice.param.update(statistic="rms", view="argmax", zoom=(30.0, 40.0))
    found = read(pages)
    assert found["step"].tolist() == list(range(30, 41))
    assert found["rms of blocks.2.mlp.act (activation), which rank is largest"][5] == 2


def test_a_loss_that_is_not_finite_is_read_as_that(
    broken_job: Path,
) -> None:
    lines = load_training(open_run(broken_job), "loss")

    lost = replace(lines, bad=[(12, 2), (30, 0)])
    found = {one.label: one.values for one in of_training(lost, lines.steps)}

    assert np.flatnonzero(np.isinf(found["rank 2"])).tolist() == [12]
    assert np.flatnonzero(np.isinf(found["loss rank 0"])).tolist() == [30]
    assert np.isfinite(found["rank 1"]).all()
    by_rank = dict.fromkeys(range(9), lines.values[0])
    [_, greatest] = of_training(replace(lost, values=by_rank), lines.steps)
    assert np.flatnonzero(np.isinf(greatest.values)).tolist() == [12, 30]


def test_new_steps_can_be_read_as_they_come(
    new_job: Callable, open_pages: Callable[..., Visited]
) -> None:
    job = new_job(bad_step=None, ranks=6)
    job.commit(range(5))
    pages = open_pages(job.path, page="tensor", site=SITE, step=3)

    job.commit(range(5, 6))
    pages.session.follower.look()
    pages.tick()

    assert list(read(pages))[:3] == ["step", "loss least", "greatest"]
    assert read(pages)["step"].tolist() == list(range(6))


def test_what_cannot_be_read_is_left_out(
    broken_job: Path, open_pages: Callable[..., Visited]
) -> None:
    pages = open_pages(broken_job, page="triage", kind="activation")
    assert list(read(pages)) == ["step", "loss rank 0", "rank 1", "rank 2", "rank 3"]

    pages.session.choice.param.update(page="map", site="weight:<b>nowhere")
    assert len(read(pages)) == 5
    pages.session.choice.param.update(site=SITE, view="dp=9")
    assert len(read(pages)) == 5


def test_of_very_many_steps_the_extremes_are_kept() -> None:
    values = np.zeros(100_000)
    values[77_777] = 5.0

    kept = Readings(steps=np.arange(100_000), of=[Reading(label="x", values=values)]).thinned()

    assert len(kept.steps) <= 1.1 * MOST_STEPS
    assert kept.of[0].values[kept.steps == 77_777].tolist() == [5.0]


@pytest.mark.parametrize("name", [entry.name for entry in CONTENTS])
def test_on_every_page_a_click_in_the_training_curve_selects_the_step(
    broken_job: Path, judged_job: Path, open_pages: Callable[..., Visited], name: str
) -> None:
    pages = open_pages(broken_job, beside=judged_job, page=name, site=SITE, step=20)
    page: Any = pages.page
    shown = page.training if name == "compare" else page.training.lines
    figure = shown.figure

    figure._trigger_event(Tap(figure, sx=0, sy=0, x=33.4, y=2.0))

    assert pages.session.choice.step == 33
    assert pages.session.crosshair.line in figure.center
    assert MouseMove.event_name in figure.js_event_callbacks
