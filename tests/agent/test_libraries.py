"""What Hugging Face, Lightning and Accelerate train is observed as a loop of one's own is."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from rankscope.sketch import COUNTS
from rankscope.store import Run, open_run

ROOT = Path(__file__).parents[2]
MODULES = ["net", "net.0", "net.1", "net.2"]
PARAMETERS = ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]
ROWS = 6
"""Samples of a step: two micro-batches of three."""
BOTH = pytest.mark.parametrize("library", ["hugging-face", "lightning"])


@dataclass(frozen=True)
class Runs:
    """What was stored of the job, which has ended well."""

    store: Path
    printed: str

    def __getitem__(self, name: str) -> Run:
        return open_run(self.store / name)


@pytest.fixture(scope="module")
def runs(collector: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """One job for all: the libraries take long to import."""
    address, store = collector
    job = subprocess.run(
        [sys.executable, "-m", "tests.agent.libraries_job"],
        cwd=tmp_path_factory.mktemp("libraries"),
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RANKSCOPE_TO": address},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert job.returncode == 0, job.stderr[-4000:]
    return Runs(store, job.stdout)


def steps(run: Run) -> list[int]:
    """Of the records that are complete, but for the last weights'."""
    records = run.records()
    return records["step"][~records["final"]].tolist()


def numbers(run: Run, name: str) -> list[float]:
    """What rank 0 told under this name, by step, but for the record of the last weights."""
    return run.training().sel(name=name).isel(rank=0).values[:-1].tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama", [0, 1, 2, 3]),
        ("regression", [0, 2]),  # every=2
        ("accelerated", list(range(8))),
        ("titan", [11, 12, 13, 14]),  # begun at 11
    ],
)
def test_the_code_of_the_page_records_the_steps_of_its_library(
    runs: Runs, name: str, expected: list[int]
) -> None:
    assert steps(runs[name]) == expected
    assert len(runs[name].events()) == 0


def test_the_page_of_hugging_face_keeps_what_is_logged_of_each_step(runs: Runs) -> None:
    run = runs["llama"]
    returned = run.scalar("mean", sites=["activation:(root)[loss]"]).squeeze("site").values
    # Not the first: the Trainer scales that tensor in place.
    np.testing.assert_allclose(numbers(run, "loss")[1:], returned[1:-1], rtol=1e-3)
    assert all(norm > 0 for norm in numbers(run, "grad_norm"))


@BOTH
def test_a_training_is_recorded_with_the_sites_of_a_loop_without_a_library(
    runs: Runs, library: str
) -> None:
    prefix = "net." if library == "lightning" else ""  # its module has the model in it
    labels = set(runs[library].sites().index)
    assert {f"activation:{prefix}{name}" for name in MODULES} <= labels
    assert {f"activation_gradient:{prefix}{name}" for name in MODULES} <= labels
    for name in PARAMETERS:
        assert {f"{kind}:{prefix}{name}" for kind in ("weight", "weight_gradient")} <= labels
        assert f"optimizer_state:{prefix}{name}[exp_avg]" in labels
    assert not [label for label in labels if "#" in label]  # micro-batches are merged


@BOTH
def test_micro_batches_are_one_step_and_evaluations_none(runs: Runs, library: str) -> None:
    run, prefix = runs[library], "net." if library == "lightning" else ""
    for step in steps(run):
        labels, table = run.table(step)
        rows = table.counts[labels.index(f"activation:{prefix}net.2"), COUNTS.index("count")]
        assert rows == ROWS


def test_what_hugging_face_generates_is_no_part_of_a_step_not_even_of_the_first(runs: Runs) -> None:
    rows = runs["hugging-face-generates"].scalar("count", sites=["activation:net.2"])
    assert rows.squeeze("site").values[:-1].tolist() == [ROWS, ROWS]


@BOTH
def test_a_training_that_is_resumed_goes_on_with_its_step_as_another_attempt(
    runs: Runs, library: str
) -> None:
    records = runs[library].records()
    resumed_at = {"hugging-face": 2, "lightning": 4}[library]
    attempts = records["attempt"][~records["final"]].tolist()
    assert steps(runs[library]) == list(range(len(attempts)))
    assert attempts == [int(step >= resumed_at) for step in range(len(attempts))]


def test_a_resumed_fit_with_several_updates_a_batch_goes_on_with_its_step(runs: Runs) -> None:
    run = runs["lightning-by-hand"]
    records = run.records()
    assert steps(run) == [0, 1, 2, 3]
    assert records["attempt"][~records["final"]].tolist() == [0, 0, 1, 1]


def test_each_step_has_the_learning_rate_of_its_update(runs: Runs) -> None:
    rates = [0.1 / (1 + step) for step in range(6)]
    np.testing.assert_allclose(numbers(runs["lightning"], "lr"), rates)
    hugging_face = runs["hugging-face"]
    logged = np.array(numbers(hugging_face, "learning_rate"))
    known = ~np.isnan(logged)
    assert known.tolist() == [False, True, False, True]  # logging_steps=2
    np.testing.assert_allclose(np.array(numbers(hugging_face, "lr"))[known], logged[known])


def test_what_is_logged_at_the_end_of_an_epoch_is_kept_with_its_last_step(runs: Runs) -> None:
    run = runs["hugging-face-epochs"]
    assert steps(run) == list(range(8))
    known = ~np.isnan(numbers(run, "loss"))
    assert known.tolist() == [False, False, False, True] * 2
    assert not [str(name) for name in run.training()["name"].values if "eval" in str(name)]


@pytest.mark.parametrize("name", ["lightning", "lightning-compiled", "lightning-short"])
def test_the_loss_of_a_step_in_lightning_is_the_mean_of_its_batches(runs: Runs, name: str) -> None:
    run = runs[name]
    outputs = run.scalar("mean", sites=["activation:net[loss]"]).squeeze("site").values
    np.testing.assert_allclose(numbers(run, "loss"), outputs[:-1], rtol=1e-5)


def test_a_model_that_lightning_compiles_has_the_sites_of_one_that_is_not(runs: Runs) -> None:
    compiled, eager = (
        set(runs[name].sites().index) for name in ("lightning-compiled", "lightning")
    )
    assert compiled == eager


def test_gradients_that_lightning_makes_inside_of_the_update_are_those_it_took(runs: Runs) -> None:
    # AdamW's first moment is then a tenth of the gradient.
    run = runs["lightning"]
    moment, gradient = (
        run.scalar("rms", sites=[site], steps=(0, 0)).item()
        for site in (
            "optimizer_state:net.net.0.weight[exp_avg]",
            "weight_gradient:net.net.0.weight",
        )
    )
    assert moment == pytest.approx(0.1 * gradient)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lightning-fails", "Training ended in step 1: UserError: of the user's own."),
        ("hugging-face-fails", "Training ended in step 1: RuntimeError: the loop was left, and"),
    ],
)
def test_an_error_that_ends_a_training_is_told(runs: Runs, name: str, said: str) -> None:
    assert said in runs[name].events()["text"].item()


def test_a_trainer_that_is_started_again_after_an_error_is_another_attempt(runs: Runs) -> None:
    records = runs["hugging-face-fails"].records()
    assert records[["step", "attempt"]].values.tolist() == [[0, 1], [1, 1], [2, 1]]


@pytest.mark.parametrize("name", ["hugging-face-ranks", "lightning-ranks"])
def test_both_ranks_of_a_wrapped_model_are_recorded(runs: Runs, name: str) -> None:
    run, prefix = runs[name], "net." if name == "lightning-ranks" else ""
    records = run.records()
    assert records["ranks"].tolist() == [2, 2, 2]
    assert records["complete"].tolist() == [True] * 3
    labels, table = run.table(1)
    count = dict(zip(labels, table.counts[:, COUNTS.index("count")].tolist(), strict=True))
    assert count[f"weight:{prefix}net.0.weight"] == 32  # one of two copies
    assert count[f"activation:{prefix}net.2"] == 2 * ROWS


def test_an_option_that_observe_has_not_is_refused_before_training(runs: Runs) -> None:
    assert runs.printed.count("got an unexpected keyword argument 'evry'") == 2
