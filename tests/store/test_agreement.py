"""What the ranks' own gradients have in common, against the norms of the gradients themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rankscope.sketch import SettingError, SketchTable, sketch_array
from rankscope.store import Record, Run, RunWriter, SiteInfo, open_run

Make = Callable[..., Record]
OWN = "local_weight_gradient:up.weight"
NAMES = ("up.weight", "up.bias", "down.weight")
"""Of fewer the factor that all have in common cannot be told."""


def by_micro_batch(own: NDArray[np.float32]) -> SketchTable:
    """The sketch of gradients, one a row, which comes of each alone."""
    rows = [sketch_array(row) for row in np.atleast_2d(own)]
    return reduce(SketchTable.merge, rows)


def written(
    path: Path,
    record: Make,
    steps: Sequence[Sequence[NDArray[np.float64]]],
    clip: float = 1.0,
    loss_scale: float = 1.0,
) -> Run:
    """A run in which each rank has these gradients in each step, of three parameters alike.

    Where a rank's has two axes, it is of so many micro-batches.
    """
    sites = [
        SiteInfo(kind=kind, name=name, placement={"dp": "partial"} if kind[0] == "l" else {})
        for kind in ("local_weight_gradient", "weight_gradient")
        for name in NAMES
    ]
    count, ranks, records = len(NAMES), len(steps[0]), list[Record]()
    for step, own in enumerate(steps):
        sums = [np.atleast_2d(one).sum(axis=0) for one in own]
        reduced = (clip * np.mean(sums, axis=0)).astype(np.float32)
        tensors = {
            rank: dict.fromkeys(range(count), (loss_scale * one).astype(np.float32))
            for rank, one in enumerate(own)
        }
        tensors[0] |= {count + site: reduced for site in range(count)}  # one of its copies
        training = {0: {"loss_scale": loss_scale}} if loss_scale != 1 else {}
        records.append(record(step, tensors, look=by_micro_batch, training=training))
    with RunWriter.open(path, run="r") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.set_attempt(0, ranks, {"dp": ranks}, [])
        writer.catalog.add_sites(sites)
        writer.commit(records, streams={})
    return open_run(path)


@pytest.mark.parametrize("clip", [1.0, 0.125])
def test_it_is_the_norm_of_the_mean_over_their_own(
    tmp_path: Path, record: Make, clip: float
) -> None:
    dice = np.random.default_rng(3)
    common = dice.normal(size=200)
    own = [common + 2 * dice.normal(size=200) for _ in range(4)]

    found = written(tmp_path / "r", record, [own, own], clip).gradient_agreement(steps=1)

    one, *others = found.to_dict("records")
    norms = np.array([np.linalg.norm(x) for x in own])
    local = np.sqrt((norms**2).mean())
    assert (one["step"], one["site"], one["ranks"]) == (1, OWN, 4)
    assert one["local"] == pytest.approx(local, rel=1e-5)
    assert one["reduced"] == pytest.approx(clip * np.linalg.norm(np.mean(own, axis=0)), rel=1e-5)
    assert one["agreement"] == pytest.approx(np.linalg.norm(np.mean(own, axis=0)) / local, rel=1e-3)
    assert one["largest"] == pytest.approx(norms.max() / local, rel=1e-5)
    assert one["largest_rank"] == norms.argmax()
    assert [other["site"].partition(":")[2] for other in others] == ["up.bias", "down.weight"]


def test_ranks_that_say_the_same_agree_wholly(tmp_path: Path, record: Make) -> None:
    one = np.random.default_rng(1).normal(size=50)

    found = written(tmp_path / "r", record, [[one] * 3] * 2).gradient_agreement()

    assert found["step"].tolist() == [0, 0, 0, 1, 1, 1]
    assert found["agreement"].to_numpy() == pytest.approx([1] * 6, rel=1e-4)


def test_each_micro_batch_has_a_gradient_of_its_own(tmp_path: Path, record: Make) -> None:
    dice = np.random.default_rng(2)
    own = [dice.normal(size=(3, 100)) for _ in range(2)]

    found = written(tmp_path / "r", record, [own]).gradient_agreement().iloc[0]

    every = np.concatenate(own)
    norms = np.linalg.norm(every, axis=1)
    local = np.sqrt((norms**2).mean())
    assert (found["ranks"], found["micro_batches"]) == (2, 3)
    assert found["local"] == pytest.approx(local, rel=1e-5)
    assert found["agreement"] == pytest.approx(np.linalg.norm(every.mean(axis=0)) / local, rel=1e-3)
    by_rank = [np.sqrt((np.linalg.norm(one, axis=1) ** 2).mean()) for one in own]
    assert found["largest"] == pytest.approx(max(by_rank) / local, rel=1e-5)


def test_the_noise_scale_is_that_of_the_problem_within_its_error(
    tmp_path: Path, record: Make
) -> None:
    """As in the golden case: |G|^2 = 1, tr(S) = 100 for a sample, 8 samples a rank."""
    dice, true = np.random.default_rng(5), np.full(50, 50**-0.5)
    samples, ranks = 8, 4
    steps = [
        [true + dice.normal(size=50) * (100 / 50 / samples) ** 0.5 for _ in range(ranks)]
        for _ in range(300)
    ]

    run = written(tmp_path / "r", record, steps, loss_scale=1024.0)
    found = run.noise_scale(batch=samples, half_life=float("inf"))
    scale, error = found[["noise_scale", "error"]].to_numpy()[-1]

    assert abs(scale - 100) < 2 * error
    assert 2 < error < 20
    # Three parameters alike have three times the square and the trace.
    square, trace = found[["gradient_square", "trace"]].to_numpy().mean(axis=0)
    assert square == pytest.approx(3, rel=0.2)
    assert trace == pytest.approx(300, rel=0.05)


def test_the_noise_scale_of_one_step_is_that_of_two_batch_sizes(
    tmp_path: Path, record: Make
) -> None:
    dice = np.random.default_rng(8)
    own = [np.ones(60) + dice.normal(size=(2, 60)) for _ in range(3)]

    found = written(tmp_path / "r", record, [own, own]).noise_scale(batch=5, name="up.weight")

    every = np.concatenate(own)
    small, large = (every**2).sum(axis=1).mean(), (every.mean(axis=0) ** 2).sum()
    square, trace = (30 * large - 5 * small) / 25, (small - large) / (1 / 5 - 1 / 30)
    assert found["gradient_square"].tolist() == pytest.approx([square] * 2, rel=1e-3)
    assert found["trace"].tolist() == pytest.approx([trace] * 2, rel=1e-3)
    assert found["noise_scale"].tolist() == pytest.approx([trace / square] * 2, rel=1e-3)
    assert np.isnan(found["error"].iloc[0])


def test_a_gradient_that_is_all_noise_has_no_noise_scale(tmp_path: Path, record: Make) -> None:
    one = np.random.default_rng(4).normal(size=30)

    found = written(tmp_path / "r", record, [[one, -0.99 * one]]).noise_scale()

    assert found["gradient_square"].item() < 0
    assert np.isnan(found["noise_scale"].item())


def test_what_is_no_positive_number_is_refused(tmp_path: Path, record: Make) -> None:
    run = written(tmp_path / "r", record, [[np.ones(4)] * 2])

    with pytest.raises(SettingError, match="`batch` must be a positive number, got 0"):
        run.noise_scale(batch=0)
    with pytest.raises(SettingError, match="`half_life` must be a positive number, got nan"):
        run.noise_scale(half_life=float("nan"))


def test_a_run_without_them_says_so(writer: RunWriter, record: Make) -> None:
    writer.commit([record(0)], streams={})

    with pytest.raises(SettingError, match="no `local_weight_gradient` beside a `weight_gradient`"):
        open_run(writer.path).gradient_agreement()
