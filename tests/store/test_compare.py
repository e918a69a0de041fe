"""Where two runs part."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankscope.__main__ import cli
from rankscope.sketch import SettingError
from rankscope.store import Record, Run, RunWriter, SiteInfo, open_run

Make = Callable[..., Record]
Tensors = Mapping[int, NDArray[np.float32]]
STEPS = 12


def tensors(step: int, factors: Mapping[tuple[int, int], float]) -> Tensors:
    """Of four sites, the same each time; some are larger by a factor, by (step, site)."""
    made = {
        site: np.random.default_rng([step, site]).normal(size=40).astype(np.float32)
        for site in range(4)
    }
    return {site: array * np.float32(factors.get((step, site), 1)) for site, array in made.items()}


@pytest.fixture
def written(record: Make, sites: list[SiteInfo], tmp_path: Path) -> Callable[..., Run]:
    """Writes a run with these factors."""

    def write(
        name: str,
        factors: Mapping[tuple[int, int], float],
        *,
        mesh: Mapping[str, int] | None = None,
        every: int = 1,
        known: list[SiteInfo] | None = None,
        training: Callable[[int], Mapping[str, float]] = lambda step: {},
    ) -> Run:
        with RunWriter.open(tmp_path / name, run=name) as writer:
            writer.catalog.add_sites(known or sites)
            writer.catalog.attempt_of("launch")
            writer.catalog.set_attempt(0, 1, dict(mesh or {"dp": 1}), [])
            steps = range(0, STEPS, every)
            writer.commit(
                [
                    record(at, tensors(step, factors), step=step, training={0: training(step)})
                    for at, step in enumerate(steps)
                ],
                streams={},
            )
        return open_run(tmp_path / name)

    return write


def test_runs_that_are_alike_do_not_part(written: Callable[..., Run]) -> None:
    found = written("one", {}).compare(written("other", {}))

    assert (found.bits, found.numbers, found.bits_unknown) == (None, None, "")
    assert (found.steps, found.first_step, found.last_step) == (STEPS, 0, STEPS - 1)
    assert found.sites["largest"].tolist() == [0.0] * 4
    assert "not a bit differs" in found.text


def test_attempts_on_other_meshes_do_not_hide_the_bits_of_one(
    written: Callable[..., Run], record: Make
) -> None:
    run = written("one", {})
    with RunWriter.open(run.path, run="one") as writer:
        assert writer.catalog.attempt_of("again") == 1
        writer.catalog.set_attempt(1, 2, {"dp": 2}, [])
        writer.commit([record(STEPS, tensors(0, {}), step=0, attempt=1)], streams={})
    run.refresh()

    assert run.compare(written("other", {})).bits_unknown
    assert not run.of_attempt(0).compare(written("another", {})).bits_unknown
    assert run.of_attempt(1).compare(written("more", {})).bits_unknown


def test_a_bit_parts_before_a_number(written: Callable[..., Run], sites: list[SiteInfo]) -> None:
    """Site 1 by rounding in step 3, site 0 twice as large from step 7 on."""
    factors = {(3, 1): 1 + 2.0**-20, **{(step, 0): 2.0 for step in range(7, STEPS)}}
    found = written("one", {}).compare(written("other", factors))
    label = sites[0].label

    assert found.bits is not None
    assert found.numbers is not None
    assert (found.bits.step, found.bits.site) == (3, sites[1].label)
    assert (found.numbers.step, found.numbers.site) == (7, label)
    assert found.numbers.other == pytest.approx(2 * found.numbers.one)
    assert found.sites["numbers_step"].dropna().to_dict() == {label: 7}
    largest: dict[str, float] = found.sites["largest"].to_dict()
    assert largest[label] == pytest.approx(1.0)


def test_training_statistics_that_part_are_told_with_their_steps(
    written: Callable[..., Run],
) -> None:
    one = written("one", {}, training=lambda step: {"loss": 2.0, "lr": 0.001, "mine": 1.0})
    other = written(
        "other",
        {},
        training=lambda step: {"loss": 2.0 + (step > 3), "lr": 0.03, "theirs": 1.0},
    )

    found = one.compare(other)

    assert [(part.site, part.step, part.one, part.other) for part in found.training] == [
        ("lr", 0, 0.001, 0.03),
        ("loss", 4, 2.0, 3.0),
    ]
    assert found.text.endswith(
        "Of training differ lr from step 0 on (0.001 against 0.03), loss from step 4 on (2 against "
        "3)."
    )
    assert one.compare(one).training == []


def test_where_a_rank_trained_in_one_run_alone_nothing_parts(
    record: Make, sites: list[SiteInfo], tmp_path: Path
) -> None:
    """The other one ended with that step, or lacks the rank there."""
    both = {rank: tensors(0, {}) for rank in (0, 1)}

    def written(name: str, last: Record) -> Run:
        with RunWriter.open(tmp_path / name, run=name) as writer:
            writer.catalog.add_sites(sites)
            writer.catalog.attempt_of("launch")
            writer.catalog.set_attempt(0, 2, {"dp": 2}, [])
            writer.commit([record(0, both), last], streams={})
        return open_run(tmp_path / name)

    one = written("one", record(1, both))
    ended = written("ended", record(1, both, final=True, training={}))
    lacking = written("lacking", record(1, {0: both[0]}, complete=False))
    for other in (ended, lacking):
        assert np.isnan(other.training()).any()
        assert one.compare(other).training == []
        assert other.compare(one).training == []


def test_in_one_step_the_cause_comes_before_the_effect(
    written: Callable[..., Run], sites: list[SiteInfo]
) -> None:
    """A weight is read before the forward, an optimizer's state is written after it."""
    found = written("one", {}).compare(written("other", {(4, site): 3.0 for site in range(4)}))

    assert found.numbers is not None
    assert found.numbers.site == sites[2].label


def test_on_different_meshes_numbers_are_compared_alone(written: Callable[..., Run]) -> None:
    found = written("one", {}).compare(written("other", {(2, 0): 1.5}, mesh={"dp": 2}))

    assert found.bits is None
    assert "different meshes" in found.bits_unknown
    assert found.numbers is not None
    assert found.numbers.step == 2


def test_only_common_steps_and_sites_count(
    written: Callable[..., Run], sites: list[SiteInfo]
) -> None:
    renamed = [*sites[:3], SiteInfo(kind="activation", name="new", order=9)]
    one = written("one", {})
    other = written("other", {(3, 0): 2.0, (8, 0): 2.0}, every=4, known=renamed)
    found = one.compare(other)

    assert found.steps == 3
    assert found.numbers is not None
    assert found.numbers.step == 8, "step 3 is not in both"
    assert (found.only_one, found.only_other) == ([sites[3].label], ["activation:new"])
    with pytest.raises(SettingError, match="no step in common"):
        one.compare(other, steps=(1, 3))
    elsewhere = written(
        "elsewhere", {}, known=[replace(site, name=f"x.{site.name}") for site in sites]
    )
    with pytest.raises(SettingError, match="no site in common"):
        one.compare(elsewhere)


def test_what_is_not_finite_in_one_alone_parts_them(written: Callable[..., Run]) -> None:
    found = written("one", {}).compare(written("other", {(5, 1): np.inf}), "abs_max")

    assert found.numbers is not None
    assert found.numbers.step == 5


def test_an_infinite_statistic_differs_from_a_finite_one(
    written: Callable[..., Run], sites: list[SiteInfo]
) -> None:
    with np.errstate(over="ignore"):
        one, other = written("one", {(3, 2): 1e30}), written("other", {(3, 2): 1e38})
    found = one.compare(other, "l2", name=f"^{re.escape(sites[2].name)}$")
    assert other.scalar("l2", sites=sites[2].label, steps=3).values.tolist() == [[np.inf]]
    assert found.numbers is not None
    assert found.numbers.step == 3


@settings(max_examples=25)
@given(
    factors=st.dictionaries(
        st.tuples(st.integers(0, STEPS - 1), st.integers(0, 3)),
        st.sampled_from([0.25, 0.5, 2.0, 16.0]),
        max_size=6,
    ),
    width=st.integers(1, STEPS),
    height=st.integers(1, 4),
)
def test_no_ratio_is_lost_in_a_heatmap(
    tmp_path_factory: pytest.TempPathFactory,
    record_maker: Make,
    all_sites: list[SiteInfo],
    factors: dict[tuple[int, int], float],
    width: int,
    height: int,
) -> None:
    runs = list[Run]()
    for given_factors in ({}, factors):
        path = tmp_path_factory.mktemp("compare") / "r"
        with RunWriter.open(path, run="r") as writer:
            writer.catalog.add_sites(all_sites)
            writer.catalog.attempt_of("launch")
            made = [record_maker(step, tensors(step, given_factors)) for step in range(STEPS)]
            writer.commit(made, streams={})
        runs.append(open_run(path))
    found = runs[0].ratios(runs[1], width=width, height=height)
    labels = [site.label for site in all_sites]
    expected = {(step, labels[site]): np.log2(factor) for (step, site), factor in factors.items()}

    assert found.values.shape[0] <= height
    assert found.values.shape[1] <= width
    for row, members in enumerate(found.row_sites):
        for column, (first, last) in enumerate(
            zip(found.column_first, found.column_last, strict=True)
        ):
            inside = [
                expected.get((step, label), 0.0)
                for step in range(int(first), int(last) + 1)
                for label in members
            ]
            assert abs(found.values[row, column]) == pytest.approx(max(map(abs, inside)), abs=1e-5)


def test_a_terminal_is_told(written: Callable[..., Run], sites: list[SiteInfo]) -> None:
    one, same = written("one", {}), written("same", {})
    other = written("other", {(7, 0): 2.0})
    told = CliRunner().invoke(cli, ["compare", str(one.path), str(other.path)])
    alike = CliRunner().invoke(cli, ["compare", str(one.path), str(same.path)])
    as_json = CliRunner().invoke(cli, ["compare", str(one.path), str(other.path), "--json"])

    assert (told.exit_code, alike.exit_code, as_json.exit_code) == (1, 0, 1)
    assert f"Numbers part in step 7 at {sites[0].label}: rms " in told.output
    assert f"step        7  {sites[0].label}: 2 times as large in step 7" in told.output
    assert json.loads(as_json.output)["numbers"]["step"] == 7
    assert json.loads(as_json.output)["sites"][0]["site"]


def test_what_is_no_number_in_one_run_is_told_without_a_ratio(
    written: Callable[..., Run], sites: list[SiteInfo]
) -> None:
    one, other = (
        written("one", {}),
        written("other", dict.fromkeys(((s, 1) for s in range(STEPS)), np.nan)),
    )
    command = ["compare", str(one.path), str(other.path), "--name", f"^{re.escape(sites[1].name)}$"]
    told = CliRunner().invoke(cli, command).output
    assert f"{sites[1].label}: it is a number in one of them alone" in told
    as_json = CliRunner().invoke(cli, [*command, "--json"]).output
    assert json.loads(as_json)["numbers"]["other"] == "nan"
