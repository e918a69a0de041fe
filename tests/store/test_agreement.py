"""What the ranks' own gradients have in common, against the norms of the gradients themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rankscope.sketch import SettingError
from rankscope.store import Record, Run, RunWriter, SiteInfo, open_run

Make = Callable[..., Record]
OWN = "local_weight_gradient:up.weight"
NAMES = ("up.weight", "up.bias", "down.weight")
"""Of fewer the factor that all have in common cannot be told."""


def written(path: Path, record: Make, own: Sequence[NDArray[np.float64]], clip: float = 1.0) -> Run:
    """A run in which each rank has these gradients, of three parameters alike."""
    sites = [
        SiteInfo(kind=kind, name=name, placement={"dp": "partial"} if kind[0] == "l" else {})
        for kind in ("local_weight_gradient", "weight_gradient")
        for name in NAMES
    ]
    count, reduced = len(NAMES), (clip * np.mean(own, axis=0)).astype(np.float32)
    tensors = {
        rank: dict.fromkeys(range(count), one.astype(np.float32)) for rank, one in enumerate(own)
    }
    tensors[0] |= {count + site: reduced for site in range(count)}  # one of its copies
    with RunWriter.open(path, run="r") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.set_attempt(0, len(own), {"dp": len(own)}, [])
        writer.catalog.add_sites(sites)
        writer.commit([record(0, tensors), record(1, tensors)], streams={})
    return open_run(path)


@pytest.mark.parametrize("clip", [1.0, 0.125])
def test_it_is_the_norm_of_the_mean_over_their_own(
    tmp_path: Path, record: Make, clip: float
) -> None:
    dice = np.random.default_rng(3)
    common = dice.normal(size=200)
    own = [common + 2 * dice.normal(size=200) for _ in range(4)]

    found = written(tmp_path / "r", record, own, clip).gradient_agreement(steps=1)

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

    found = written(tmp_path / "r", record, [one] * 3).gradient_agreement()

    assert found["step"].tolist() == [0, 0, 0, 1, 1, 1]
    assert found["agreement"].to_numpy() == pytest.approx([1] * 6, rel=1e-4)


def test_a_run_without_them_says_so(writer: RunWriter, record: Make) -> None:
    writer.commit([record(0)], streams={})

    with pytest.raises(SettingError, match="no `local_weight_gradient` beside a `weight_gradient`"):
        open_run(writer.path).gradient_agreement()
