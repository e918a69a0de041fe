"""Which ranks differ from the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankscope.sketch import SettingError
from rankscope.store import RankInfo, Record, Run, RunWriter, SiteInfo, open_run

SITES = [
    SiteInfo(kind="activation", name="up", order=0),
    SiteInfo(kind="activation", name="down", order=1),
    SiteInfo(kind="weight", name="up.weight", order=2),
]
Make = Callable[..., Record]
STEPS = 10


def infos(hosts: str, **coordinates: Callable[[int], int]) -> list[RankInfo]:
    return [
        RankInfo(
            rank=rank,
            host=f"node-{host}",
            device="cuda:0",
            facts={"device_uuid": f"GPU-{host}{rank % 2}"},
            coordinates={axis: place(rank) for axis, place in coordinates.items()},
        )
        for rank, host in enumerate(hosts)
    ]


def tensors(
    step: int, scale: Callable[[int, int, int], float], count: int
) -> Mapping[int, Mapping[int, NDArray[np.float32]]]:
    dice = np.random.default_rng(step)
    return {
        rank: {
            site: (dice.normal(size=400) * scale(step, rank, site)).astype(np.float32)
            for site in range(len(SITES))
        }
        for rank in range(count)
    }


def written(
    path: Path,
    record: Make,
    scale: Callable[[int, int, int], float],
    attempts: tuple[list[RankInfo], ...],
    **changes: Any,
) -> Run:
    with RunWriter.open(path / "r", run="r") as writer:
        writer.catalog.add_sites(SITES)
        for number, ranks in enumerate(attempts):
            writer.catalog.attempt_of(f"launch {number}")
            writer.catalog.set_attempt(number, len(ranks), {"dp": len(ranks)}, ranks)
            peers = {info.rank: info.coordinates.get("tp", 0) for info in ranks}
            for step in range(number * STEPS, (number + 1) * STEPS):
                own = tensors(step, scale, len(ranks))
                one = record(step, own, attempt=number, peers=peers, **changes)
                writer.commit([one], streams={})
    return open_run(path / "r")


def test_the_rank_that_differs_is_first_with_its_sites(tmp_path: Path, record: Make) -> None:
    def scale(step: int, rank: int, site: int) -> float:
        return 1.5 if (rank, site) == (2, 1) else 1.0

    run = written(tmp_path, record, scale, (infos("aabb"),))
    found = run.rank_outliers()
    first = found.iloc[0].to_dict()
    assert (first["site"], first["rank"], first["ranks"]) == ("activation:down", 2, (2,))
    assert first["score"] > 5
    assert first["ratio"] == pytest.approx(1.5, rel=0.1)
    assert np.abs(found["score"].to_numpy()[1:]).max() < 3
    assert set(found["site"]) == {"activation:up", "activation:down"}
    assert len(run.rank_outliers(most=3)) == 3
    assert run.rank_outliers("abs_max", kind="weight")["site"].unique().tolist() == [
        "weight:up.weight"
    ]


def test_one_bad_step_is_its_worst_and_not_its_score(tmp_path: Path, record: Make) -> None:
    def scale(step: int, rank: int, site: int) -> float:
        return 100.0 if (step, rank, site) == (6, 3, 0) else 1.0

    run = written(tmp_path, record, scale, (infos("aabb"),))
    found = run.rank_outliers().query("rank == 3 and site == 'activation:up'").iloc[0].to_dict()
    assert abs(found["score"]) < 3
    assert found["worst_step"] == 6
    assert found["worst_score"] > 50
    first = run.rank_outliers(worst=True).iloc[0].to_dict()
    assert (first["site"], first["rank"], first["worst_step"]) == ("activation:up", 3, 6)


def test_a_device_is_known_again_when_its_rank_is_another(tmp_path: Path, record: Make) -> None:
    def scale(step: int, rank: int, site: int) -> float:
        return 2.0 if rank == (1 if step < STEPS else 3) else 1.0

    attempts = infos("aabb"), infos("bbaa")
    run = written(tmp_path, record, scale, attempts)
    first = run.rank_outliers(by="device").iloc[0].to_dict()
    assert (first["device"], first["ranks"]) == ("GPU-a1", (1, 3))
    assert first["ratio"] == pytest.approx(2, rel=0.1)
    assert run.rank_outliers(by="host").iloc[0].to_dict()["host"] == "node-a"
    assert run.rank_outliers(attempt=0).iloc[0].to_dict()["rank"] == 1


def test_ranks_that_hold_other_parts_of_the_model_are_not_compared(
    tmp_path: Path, record: Make
) -> None:
    def scale(step: int, rank: int, site: int) -> float:
        return 10.0 if rank >= 2 else 1.0

    ranks = infos("aaaa", tp=lambda rank: rank // 2, dp=lambda rank: rank % 2)
    found = written(tmp_path, record, scale, (ranks,)).rank_outliers()
    assert np.abs(np.log2(found["ratio"].to_numpy(np.float64))).max() < 0.5
    assert found["peers"].unique().tolist() == [2]


def test_two_ranks_have_no_score_and_come_by_how_far_they_are_apart(
    tmp_path: Path, record: Make
) -> None:
    def scale(step: int, rank: int, site: int) -> float:
        return 100.0 if (rank, site) == (1, 1) else 1.0

    found = written(tmp_path, record, scale, (infos("aa"),)).rank_outliers()
    assert np.isnan(found[["score", "worst_score"]].to_numpy(float)).all()
    first = found.iloc[:2]
    assert first["own_ratio"].isna().all()  # it was so from the start
    assert first["site"].tolist() == ["activation:down"] * 2
    ratios = dict(zip(first["rank"].tolist(), first["ratio"].tolist(), strict=True))
    assert ratios == {0: pytest.approx(0.01, rel=0.2), 1: pytest.approx(100, rel=0.2)}


def test_of_two_ranks_the_one_that_left_its_own_past_comes_first(
    tmp_path: Path, record: Make
) -> None:
    def scale(step: int, rank: int, site: int) -> float:
        odd = (rank, site) == (1, 0) and step >= 7
        return (1.1**step) * (0.01 if odd else 1.0)  # both grow

    run = written(tmp_path, record, scale, (infos("aa"),))
    first, second = run.rank_outliers(worst=True, most=2).to_dict("records")
    assert (first["site"], first["rank"], second["rank"]) == ("activation:up", 1, 0)
    assert first["worst_step"] >= 7
    assert first["worst_ratio"] == pytest.approx(0.01, rel=0.2)
    assert second["worst_ratio"] == pytest.approx(100, rel=0.2)
    assert first["own_ratio"] < 0.1 < second["own_ratio"] < 3


def test_of_three_ranks_the_one_far_from_the_others_is_first(tmp_path: Path, record: Make) -> None:
    def scale(step: int, rank: int, site: int) -> float:
        return 30.0 if (rank, site) == (2, 1) else 1.0

    first = written(tmp_path, record, scale, (infos("aab"),)).rank_outliers().iloc[0].to_dict()
    assert (first["site"], first["rank"], first["peers"]) == ("activation:down", 2, 3)
    assert first["ratio"] == pytest.approx(30, rel=0.2)
    assert np.isnan(first["score"])


def test_one_of_a_hundred_ranks_is_found_without_the_numbers_of_single_ranks(
    tmp_path: Path, record: Make
) -> None:
    def scale(step: int, rank: int, site: int) -> float:
        return 1.5 if (rank, site) == (57, 1) and step % 3 else 0.2 if rank == 9 else 1.0

    run = written(tmp_path, record, scale, (infos("a" * 50 + "b" * 50),), by_rank={})
    found = run.rank_outliers(most=4)
    assert found["rank"].tolist()[:3] == [9, 9, 57]
    odd = found.iloc[2].to_dict()
    assert (odd["site"], odd["ranks"]) == ("activation:down", (57,))
    assert odd["score"] > 5
    assert odd["ratio"] == pytest.approx(1.5, rel=0.1)
    assert abs(found["score"].to_numpy()[3]) < 3
    assert run.rank_outliers(by="host").iloc[0].to_dict()["host"] == "node-a"


def test_of_a_host_that_is_odd_the_most_extreme_rank_speaks(tmp_path: Path, record: Make) -> None:
    def scale(step: int, rank: int, site: int) -> float:
        return 1.5 if rank in range(8, 24) and site == 0 else 1.0

    hosts = "".join(letter * 8 for letter in "abcdefgh")
    run = written(tmp_path, record, scale, (infos(hosts),), by_rank={})
    found = run.rank_outliers(by="host", most=3)
    assert set(found["host"][:2]) == {"node-b", "node-c"}
    assert found["site"][:2].tolist() == ["activation:up", "activation:up"]
    assert found["score"].to_numpy()[1] > 5 > abs(found["score"].to_numpy()[2])


def test_a_rank_that_is_extreme_in_few_steps_is_usual(tmp_path: Path, record: Make) -> None:
    def scale(step: int, rank: int, site: int) -> float:
        return 5.0 if (rank, site) == (20, 0) and step < 4 else 1.0

    run = written(tmp_path, record, scale, (infos("a" * 40),), by_rank={})
    odd = run.rank_outliers(most=1000).query("rank == 20 and site == 'activation:up'").iloc[0]
    assert odd.to_dict()["score"] == pytest.approx(0, abs=1)
    assert odd.to_dict()["worst_score"] > 20
    assert odd.to_dict()["worst_step"] < 4


def test_a_rank_whose_numbers_are_zero_is_one(tmp_path: Path, record: Make) -> None:
    def scale(step: int, rank: int, site: int) -> float:
        return 0.0 if (rank, site) == (0, 0) else 1.0

    first = written(tmp_path, record, scale, (infos("aabb"),)).rank_outliers().iloc[0].to_dict()
    assert (first["site"], first["rank"]) == ("activation:up", 0)
    assert first["score"] < -5


def test_what_cannot_be_compared_is_said(tmp_path: Path, record: Make) -> None:
    run = written(tmp_path, record, lambda *_: 1.0, (infos("aabb"),))
    with pytest.raises(SettingError, match="`by` must be"):
        run.rank_outliers(by="rack")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SettingError, match="distributions of rms and abs_max are kept"):
        run.rank_outliers("var")
    with pytest.raises(SettingError, match="no record of these steps"):
        run.rank_outliers(steps=(100, 200))
    with RunWriter.open(tmp_path / "one", run="one") as writer:
        writer.catalog.attempt_of("launch")
        writer.catalog.add_sites(SITES)
        writer.commit([record(0, {0: np.ones(3, np.float32)})], streams={})
    with pytest.raises(SettingError, match="several ranks"):
        open_run(tmp_path / "one").rank_outliers()
