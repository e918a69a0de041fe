"""No alert about loops that are right."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from rankscope.rules import why
from rankscope.store import Run, open_run

from .launching import run_of

JOB = Path(__file__).with_name("loops_job.py")
JUDGED = ("channels_last", "clipped_by_group")
LOOPS = (*JUDGED, "thrown_away", "many_updates", "over_steps")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A run of each loop."""
    directory = tmp_path_factory.mktemp("runs")
    last = run_of(JOB, 2, LOOPS[-1], directory)
    deadline = time.monotonic() + 20
    while not all(open_run(directory / name).finished for name in LOOPS):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return {name: open_run(directory / name) for name in LOOPS[:-1]} | {LOOPS[-1]: last}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_is_right_is_no_alert(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert run.alerts()["text"].tolist() == []
    assert run.events()["kind"].tolist() == ["not-judged"] * (name not in JUDGED)
    assert len(run.sites(kind="local_weight_gradient")) == 7


@pytest.mark.parametrize("name", LOOPS)
def test_what_is_not_judged_is_told_once_with_its_reason(runs: dict[str, Run], name: str) -> None:
    told = runs[name].events()[["kind", "rank", "text"]].to_numpy().tolist()
    found = [text for text in why(runs[name]).not_observed if "judged" in text]
    if name in JUDGED:
        assert told == found == []
        assert runs[name].judged()["conservation"] > 0
        return
    [[kind, rank, text]] = told
    assert (kind, rank, found) == ("not-judged", -1, [text])
    assert text.startswith("Whether gradients were reduced rightly is not judged in steps")
    assert "several steps or thrown away, or where one step holds several updates." in text
    assert "conservation" not in runs[name].judged()


def test_what_became_of_gradients_is_told_only_where_it_is_known(runs: dict[str, Run]) -> None:
    clip = {name: run.reductions()["clip"].to_numpy()[:4] for name, run in runs.items()}
    np.testing.assert_allclose(clip["channels_last"], 1, rtol=1e-5)
    for name in ("thrown_away", "many_updates", "over_steps"):
        assert np.isnan(clip[name]).all(), name
