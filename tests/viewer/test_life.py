"""The exponents of a site over steps, as data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankscope.store import open_run
from rankscope.viewer.columns import EMPTY, MISSING, NONFINITE, NUMBER
from rankscope.viewer.grid import recorded_steps
from rankscope.viewer.life import Life, describe, load_life
from rankscope.viewer.spectrum import load_spectrum

ORIGIN = "activation:blocks.2.mlp.act"


def life_of(
    path: Path, site: str, *, width: int = 500, steps: tuple[float, float] | None = None
) -> Life:
    run = open_run(path)
    recorded = recorded_steps(run.records(), "rms")
    found = load_life(run, site=site, recorded=recorded, steps=steps, width=width)
    assert found is not None
    return found


def test_each_column_holds_the_shares_of_its_step(broken_job: Path) -> None:
    life = life_of(broken_job, ORIGIN)
    run = open_run(broken_job)

    assert life.grid.first.tolist() == list(range(60))
    for step in (0, 17, 39, 41, 59):
        spectrum = load_spectrum(run, site=ORIGIN, step=step)
        assert spectrum is not None
        column = life.grid.shade[:, step]
        for exponent, share in zip(spectrum.exponents, spectrum.shares, strict=True):
            row = life.first_bin + life.high - int(exponent)
            assert life.grid.names[row].startswith("2")
            if share:
                assert 2.0 ** column[row] == pytest.approx(share, rel=1e-5)
            else:
                assert life.grid.state[row, step] == EMPTY
        assert (life.grid.state[0, step] == NONFINITE) == (step >= 40)
        zero = 2.0 ** column[-1] if life.grid.state[-1, step] == NUMBER else 0
        assert zero == pytest.approx(spectrum.aside["zero"] / spectrum.total, rel=1e-5)


def test_a_single_element_is_seen_however_narrow_the_frame(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(300), spike={(123, ORIGIN): 2.0**9})

    life = life_of(job.path, ORIGIN, width=10)

    assert life.grid.shade.shape[1] <= 10
    column = life.grid.column(123)
    assert column is not None
    above = life.grid.state[life.first_bin : life.first_bin + 2]
    assert (above[:, column] == NUMBER).any()
    assert (np.delete(above, column, axis=1) == EMPTY).all()


def test_steps_that_were_not_recorded_are_left_open(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(10))
    job.commit(range(50, 100, 10))

    life = life_of(job.path, ORIGIN)

    assert (life.grid.state[:, life.grid.first < 0] == MISSING).all()
    assert (life.grid.first < 0).any()
    assert life.grid.column(70) is not None


def test_a_zoom_shows_its_steps_alone(broken_job: Path) -> None:
    life = life_of(broken_job, ORIGIN, steps=(10.0, 20.0))

    assert life.grid.first.tolist() == list(range(10, 21))


def test_it_is_told_in_a_sentence(broken_job: Path) -> None:
    told = describe(life_of(broken_job, ORIGIN))

    assert told.startswith("steps 0–59: elements between 2")
    assert told.endswith("not finite from step 40.")
    assert describe(None) == "No histogram of it has been recorded here."
