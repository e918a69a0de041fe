"""Runs of Weights & Biases, by the real library in offline mode."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import wandb

from rankscope.sinks import Ended
from rankscope.sinks.wandb import WeightsAndBiases

from .reading_wandb import history, only
from .telling import ALERT, found, numbers


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WeightsAndBiases:
    """A sink that is offline and writes here."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    return WeightsAndBiases("team/numerics")


def files(folder: Path) -> list[Path]:
    return sorted((folder / "wandb").glob("offline-run-*/*.wandb"))


def test_each_record_is_logged_with_its_step(sink: WeightsAndBiases, tmp_path: Path) -> None:
    for step in (0, 10, 5):  # the last is a record that was patched
        sink.take(numbers(step))
    sink.close()
    [file] = files(tmp_path)
    logged = history(file)

    assert [line["step"] for line in logged] == [0, 10, 5]
    assert [line["training/loss"] for line in logged] == [10.0, 0.0, 5.0]
    assert logged[2]["activation/rms"] == numbers(5).values["activation/rms"]
    [run] = only(file, "run")[:1]
    assert (run.entity, run.project, run.display_name, run.run_group) == (
        *("team", "numerics", "demo", "demo"),
    )
    metrics = {one.glob_name or one.name: one.step_metric for one in only(file, "metric")}
    assert metrics["*"] == "step"


def test_exponents_are_a_histogram_of_the_logarithm(sink: WeightsAndBiases, tmp_path: Path) -> None:
    counts = np.zeros_like(numbers().exponents["weight"])
    counts[[149 - 3, 149, 149 + 1]] = 5, 2, 1  # 2^-3, 2^0, 2^1
    sink.take(numbers(exponents={"weight": counts, "activation": np.zeros_like(counts)}))
    sink.close()
    [line] = history(files(tmp_path)[0])

    assert line["weight/exponents"]["values"] == [5, 0, 0, 2, 1]
    assert line["weight/exponents"]["bins"] == [-3, -2, -1, 0, 1, 2]
    assert "activation/exponents" not in line


def test_tables_and_alerts_are_there(sink: WeightsAndBiases, tmp_path: Path) -> None:
    sink.take(numbers(table=True))
    sink.take(found())
    sink.take(found(alert=replace(ALERT, last_step=9)))
    sink.close()
    [file] = files(tmp_path)

    table = history(file)[0]["sites"]
    assert (table["_type"], table["nrows"]) == ("table-file", 4)
    begins, ends = only(file, "alert")
    assert (begins.title, begins.text) == ("replica-divergence, step 3", ALERT.text)
    assert (begins.level, ends.level) == ("ERROR", "INFO")
    assert ends.text.endswith(" Over since step 9.")


def test_each_start_of_a_job_is_a_run_of_its_own(sink: WeightsAndBiases, tmp_path: Path) -> None:
    sink.take(numbers(0))
    sink.take(numbers(0, attempt=1, launch="two"))
    sink.take(numbers(1))  # a record of the first that was patched
    sink.take(numbers(0, run="other"))
    sink.take(numbers(1, attempt=1, launch="two"))
    sink.take(Ended(run="demo"))
    sink.close()

    found = {only(file, "run")[0].display_name: len(history(file)) for file in files(tmp_path)}
    assert found == {"demo": 2, "demo (attempt 1)": 2, "other": 1}


def test_a_collector_that_is_started_again_goes_on_with_the_same_run(
    sink: WeightsAndBiases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.take(numbers(0))
    sink.close()
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "again"))
    again = WeightsAndBiases("team/numerics")
    again.take(numbers(1))
    again.close()

    folders = (tmp_path, tmp_path / "again")
    first, second = (only(files(folder)[0], "run")[0].run_id for folder in folders)
    assert first == second


def test_without_a_key_it_is_told_at_once_what_to_do(tmp_path: Path) -> None:
    script = (
        "from rankscope.sinks import open_sinks\n"
        "try: open_sinks(['wandb:numerics'])\nexcept ValueError as error: print(error)"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("WANDB_")
    }
    said = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, "HOME": str(tmp_path), "WANDB_MODE": "online"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    assert said.startswith("`--sink wandb:numerics` cannot log in: ")
    assert said.endswith("Or say WANDB_MODE=offline.\n")


def test_the_library_is_the_real_one() -> None:
    assert wandb.__file__ is not None
    assert "site-packages" in wandb.__file__
