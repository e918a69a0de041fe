"""How far ranks are from their peers, against numbers compared by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankscope.sketch import SettingError
from rankscope.store import RankInfo, Record, Run, RunWriter, SiteInfo, open_run

Make = Callable[..., Record]
UP, WEIGHT, SUM = "activation:up", "weight:up.weight", "local_activation:up"
SITES = [
    SiteInfo(kind="activation", name="up", dtype="float32", placement={"dp": "shard"}),
    SiteInfo(kind="weight", name="up.weight", dtype="float32", placement={"dp": "shard"}, order=1),
    SiteInfo(kind="local_activation", name="up", dtype="float32", placement={"tp": "partial"}),
    SiteInfo(kind="activation", name="split", placement={"tp": "shard", "dp": "shard"}),
]
MESH = {"dp": 2, "tp": 2}
PLACES = [{"dp": rank // 2, "tp": rank % 2} for rank in range(4)]


def infos(places: Sequence[Mapping[str, int]]) -> list[RankInfo]:
    return [RankInfo(rank=rank, coordinates=place) for rank, place in enumerate(places)]


def written(
    path: Path,
    record: Make,
    steps: Sequence[Mapping[int, Mapping[int, NDArray[np.float32]]]],
    *,
    mesh: Mapping[str, int] = MESH,
    places: Sequence[Mapping[str, int]] = PLACES,
) -> Run:
    with RunWriter.open(path, run="r") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.set_attempt(0, len(places), mesh, infos(places))
        writer.catalog.add_sites(SITES)
        writer.commit([record(step, own) for step, own in enumerate(steps)], streams={})
    return open_run(path)


def constants(*numbers: float, sites: int = len(SITES)) -> dict[int, dict[int, Any]]:
    """A tensor of one number on each rank, the same at all sites."""
    return {
        rank: {site: np.full(3, number, np.float32) for site in range(sites)}
        for rank, number in enumerate(numbers)
    }


def row(run: Run, site: str, **asked: Any) -> list[float]:
    return np.round(run.rank_ratios("rms", site=site, **asked).values[:, 0], 3).tolist()


def test_peers_hold_the_same_part_of_the_model(tmp_path: Path, record: Make) -> None:
    run = written(tmp_path / "r", record, [constants(1, 2, 4, 32)])

    # All see other samples of one tensor: all are peers, and their median is the root of 8.
    assert row(run, UP) == [-1.5, -0.5, 0.5, 3.5]
    # Weights are cut along dp, addends and features along tp: of two each is over the other.
    assert row(run, WEIGHT) == [-1, 1, -3, 3]
    assert row(run, SUM) == row(run, "activation:split") == [-2, -4, 2, 4]
    found = run.rank_ratios(site=SUM)
    assert (found.ranks, found.group) == ([0, 1, 2, 3], [0, 1, 0, 1])


def test_ranks_lie_in_the_order_of_the_mesh(tmp_path: Path, record: Make) -> None:
    places = [PLACES[place] for place in (3, 0, 2, 1)]
    run = written(tmp_path / "r", record, [constants(8, 1, 1, 1)], places=places)

    found = run.rank_ratios(site=UP)

    assert found.names == ["dp=0,tp=0", "dp=0,tp=1", "dp=1,tp=0", "dp=1,tp=1"]
    assert found.ranks == [1, 3, 2, 0]
    assert found.values[:, 0].tolist() == [0, 0, 0, 3]


def test_ranks_without_a_place_of_their_own_are_called_by_number(
    tmp_path: Path, record: Make
) -> None:
    run = written(tmp_path / "r", record, [constants(1, 1)], mesh={"dp": 2}, places=[{}, {}])

    assert run.rank_ratios(site=UP).names == ["rank 0", "rank 1"]


def test_what_is_missing_not_finite_or_alone_is_told_apart(tmp_path: Path, record: Make) -> None:
    steps = [constants(1, 1, 4, 1) for _ in range(3)]
    steps[0][1][0][1] = np.inf
    del steps[1][3]
    for rank in (1, 2, 3):
        del steps[2][rank][0]
    run = written(tmp_path / "r", record, steps)

    found = run.rank_ratios("abs_max", site=UP)

    assert found.nonfinite.tolist() == [[False] * 3, [True, False, False]] + [[False] * 3] * 2
    assert found.observed.tolist() == [[True] * 3] + [[True, True, False]] * 2 + [
        [True, False, False]
    ]
    assert found.values[2].tolist()[:2] == [2, 2]
    assert np.isnan(found.values[0, 2])  # nobody to compare with


def test_of_several_steps_in_a_column_the_furthest_is_kept(tmp_path: Path, record: Make) -> None:
    steps = [constants(1, 1, 1, 1) for _ in range(8)]
    steps[3] = constants(1, 1, 1, 0.125)
    steps[6] = constants(2, 1, 1, 1)
    run = written(tmp_path / "r", record, steps)

    found = run.rank_ratios(site=UP, width=2)

    assert found.values.tolist() == [[0, 1], [0, 0], [0, 0], [-3, 0]]
    assert (found.column_first.tolist(), found.column_last.tolist()) == ([0, 4], [3, 7])


numbers = st.sampled_from([0.0, 1.0, 3.0, 1e-3, 77.0, -5.0])


@settings(
    max_examples=20,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=1, max_size=7),
    st.sampled_from([(UP, [[0, 1, 2, 3]]), (WEIGHT, [[0, 1], [2, 3]]), (SUM, [[0, 2], [1, 3]])]),
    st.sampled_from([None, 1, 3]),
)
def test_ratios_are_those_to_the_median_of_the_peers(
    record_maker: Make,
    steps: list[list[float]],
    grouped: tuple[str, list[list[int]]],
    width: int | None,
) -> None:
    site, groups = grouped
    with TemporaryDirectory() as folder:
        run = written(Path(folder) / "r", record_maker, [constants(*own) for own in steps])
        found = run.rank_ratios("abs_max", site=site, width=width)

    levels = np.log2(np.maximum(np.abs(np.array(steps)), 2.0**-200))
    for group in groups:
        levels[:, group] -= np.median(levels[:, group], axis=1, keepdims=True)
        levels[:, group] *= 2 if len(group) == 2 else 1
    for column, (first, last) in enumerate(zip(found.column_first, found.column_last, strict=True)):
        part = levels[first : last + 1]
        assert np.abs(found.values[:, column]) == pytest.approx(np.abs(part).max(axis=0), abs=1e-4)


def test_a_run_without_records_has_no_columns(path: Path, sites: list[SiteInfo]) -> None:
    with RunWriter.open(path, run="r") as writer:
        writer.catalog.add_sites(sites)
        writer.commit([], streams={"a": 1})
    found = open_run(path).rank_ratios(site=sites[0].label)

    assert found.values.shape == (0, 0)


def test_it_is_of_main_statistics(tmp_path: Path, record: Make) -> None:
    run = written(tmp_path / "r", record, [constants(1, 1)])

    with pytest.raises(SettingError, match="'sum' is kept merged only"):
        run.rank_ratios("sum", site=UP)
    with pytest.raises(SettingError, match="There is no site 'up'"):
        run.rank_ratios(site="up")
