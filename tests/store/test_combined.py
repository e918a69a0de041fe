"""Quantities that follow from sketches of several kinds, by name as all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.merge import Derived
from rankscope.sketch import SettingError
from rankscope.store import QuantityInfo, Record, Run, RunWriter, SiteInfo, open_run

Make = Callable[..., Record]
OF_UPDATES = {"update_ratio": "ratio", "trust_ratio": "trust_ratio", "unchanged_share": "unchanged"}
NAMES = "up.weight", "down.weight"
UPDATED = [SiteInfo(kind=kind, name=name) for kind in ("weight", "update") for name in NAMES]
REDUCED = [
    SiteInfo(kind=kind, name=name, placement={"dp": "partial"} if kind[0] == "l" else {})
    for kind in ("local_weight_gradient", "weight_gradient")
    for name in (*NAMES, "up.bias")
]
"""Of fewer than three the factor that all have in common cannot be told."""


def written(
    path: Path,
    sites: Sequence[SiteInfo],
    records: Sequence[Record],
    own: Sequence[QuantityInfo] = (),
) -> Run:
    with RunWriter.open(path, run="r") as writer:
        writer.catalog.attempt_of("x")
        ranks = max(len(one.ranks) for one in records)
        writer.catalog.set_attempt(0, ranks, {"dp": ranks}, [])
        writer.catalog.add_sites(sites)
        writer.catalog.add_quantities(own)
        writer.commit(records, streams={})
    return open_run(path)


@pytest.fixture
def updated(tmp_path: Path, record: Make) -> Run:
    """Two weights over three steps; in step 1 updates are left out, in 2 one changes nothing."""
    dice, records = np.random.default_rng(1), list[Record]()
    for step in range(3):
        tensors = {site: dice.normal(size=40).astype(np.float32) for site in range(4)}
        if step == 1:
            tensors = {0: tensors[0], 1: tensors[1]}
        if step == 2:
            tensors[3] = np.zeros(40, np.float32)
        records.append(record(step, tensors, training={0: {"lr": 0.5}}))
    return written(tmp_path / "r", UPDATED, records)


@pytest.fixture
def reduced(tmp_path: Path, record: Make) -> Run:
    """Four ranks of which each has gradients of its own, over six steps; the last is all noise."""
    dice, records = np.random.default_rng(2), list[Record]()
    for step in range(6):
        own = dice.normal(size=(4, 50)) + (step < 5)
        mean = own.mean(axis=0).astype(np.float32)
        tensors = {
            rank: dict.fromkeys(range(3), one.astype(np.float32)) for rank, one in enumerate(own)
        }
        tensors[0] |= {3 + site: mean for site in range(3)}
        records.append(record(step, tensors, training={}))
    return written(tmp_path / "r", REDUCED, records)


def test_those_of_updates_are_the_columns_of_updates(updated: Run) -> None:
    rows = updated.updates()
    for name, column in OF_UPDATES.items():
        found = updated.quantity(name)

        assert found["step"].tolist() == [0, 0, 2, 2]
        assert found["attempt"].tolist() == [0] * 4
        assert found["of"].tolist() == sorted(NAMES) * 2
        assert set(found["part"]) == {""}
        expected = dict(
            zip(zip(rows["step"], rows["site"], strict=True), rows[column], strict=True)
        )
        for step, of, value in zip(found["step"], found["of"], found["value"], strict=True):
            assert value == expected[step, f"update:{of}"]
    assert updated.quantity("trust_ratio", of="down", steps=2)["value"].tolist() == [np.inf]
    assert updated.quantity("unchanged_share", of="down")["value"].tolist() == [0, 1]
    assert not len(updated.quantity("update_ratio", steps=1))


def test_they_are_listed_where_the_run_has_what_they_need(updated: Run) -> None:
    listed = updated.quantities("up")

    for name in OF_UPDATES:
        own = listed["quantity"] == name
        columns = (listed.loc[own, column].tolist() for column in ("of", "part", "numbers"))
        assert [*columns] == [["up.weight"], [""], [1]]
    assert "noise_scale" not in set(updated.quantities()["quantity"])
    with pytest.raises(SettingError, match="no quantity 'trust_ration'; did you mean trust_ratio"):
        updated.quantity("trust_ration")
    there = r"no update_ratio of 'nowhere'; it is there of up\.weight, down\.weight\."
    with pytest.raises(SettingError, match=there):
        updated.quantity("update_ratio", of="nowhere")
    with pytest.raises(SettingError, match="no noise_scale: it needs gradients from before"):
        updated.quantity("noise_scale")


def test_without_a_learning_rate_there_is_no_trust_ratio(tmp_path: Path, record: Make) -> None:
    tensors = {site: np.ones(4, np.float32) for site in range(4)}
    run = written(tmp_path / "r", UPDATED, [record(0, tensors, training={})])

    assert {*run.quantities()["quantity"]} & {*OF_UPDATES} == {"update_ratio", "unchanged_share"}
    with pytest.raises(SettingError, match=r"no trust_ratio: it needs .*, and learning rates\."):
        run.quantity("trust_ratio")


def test_a_run_without_updates_has_none_of_them(writer: RunWriter, record: Make) -> None:
    writer.commit([record(0)], streams={})
    run = open_run(writer.path)

    assert not {*run.quantities()["quantity"]} & {*OF_UPDATES, "noise_scale"}
    with pytest.raises(SettingError, match=r"no update_ratio: .*schedules=\{'update': 10\}\)\."):
        run.quantity("update_ratio")


def test_the_noise_scale_is_of_the_whole_model_whichever_steps_are_asked_for(reduced: Run) -> None:
    expected = reduced.noise_scale()["noise_scale"].to_numpy()
    found = reduced.quantity("noise_scale")

    assert found["step"].tolist() == list(range(6))
    assert set(found["of"]) == {"(root)"}
    np.testing.assert_array_equal(found["value"], expected)
    assert np.isfinite(expected).all()
    assert reduced.quantity("noise_scale", steps=4)["value"].tolist() == [expected[4]]
    assert reduced.quantity("noise_scale", steps=(2, 3), of="root")["step"].tolist() == [2, 3]
    listed = reduced.quantities()
    own = listed["quantity"] == "noise_scale"
    columns = (listed.loc[own, column].tolist() for column in ("of", "part", "numbers"))
    assert [*columns] == [["(root)"], [""], [1]]
    assert "noise_scale" not in set(reduced.quantities("up")["quantity"])


def test_a_noise_scale_that_is_not_known_is_nan(tmp_path: Path, record: Make) -> None:
    one = np.random.default_rng(4).normal(size=30).astype(np.float32)
    tensors = {0: dict.fromkeys(range(3), one), 1: dict.fromkeys(range(3), -0.99 * one)}
    tensors[0] |= dict.fromkeys(range(3, 6), 0.005 * one)
    run = written(tmp_path / "r", REDUCED, [record(0, tensors, training={})])

    assert np.isnan(run.quantity("noise_scale")["value"].item())


def test_a_quantity_of_the_run_s_own_keeps_its_name(tmp_path: Path, record: Make) -> None:
    own = [QuantityInfo(name="update_ratio", of="up", width=1, start=0)]
    tensors = {site: np.ones(4, np.float32) for site in range(4)}
    one = record(0, tensors, derived=Derived.known({0: np.array([7.0])}))
    run = written(tmp_path / "r", UPDATED, [one], own)

    listed = run.quantities()
    assert listed.loc[listed["quantity"] == "update_ratio", "of"].tolist() == ["up"]
    assert run.quantity("update_ratio")["value"].tolist() == [7.0]
    said = CliRunner().invoke(cli, ["quantities", str(run.path)]).output
    assert "update_ratio: of up\n" in said
    assert "Sketches of several kinds tell: unchanged_share.\n" in said


def test_the_command_lists_and_shows_them(updated: Run) -> None:
    path = str(updated.path)
    listed = CliRunner().invoke(cli, ["quantities", path]).output
    shown = CliRunner().invoke(cli, ["quantities", path, "trust_ratio", "--of", "down"]).output

    assert "Nothing was derived" in listed
    told = "Sketches of several kinds tell: update_ratio, trust_ratio, unchanged_share.\n"
    assert listed.endswith(told)
    [_, row] = shown.splitlines()
    assert row.split()[:2] == ["down.weight", "2"]
    assert row.split()[-1] == "inf"


def test_a_run_without_records_has_no_numbers(tmp_path: Path) -> None:
    with RunWriter.open(tmp_path / "r", run="r") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.set_attempt(0, 2, {"dp": 2}, [])
        writer.catalog.add_sites([*UPDATED, *REDUCED])
        writer.commit([], streams={})
    run = open_run(tmp_path / "r")

    for name in ("update_ratio", "unchanged_share", "noise_scale"):
        assert not len(run.quantity(name)), name
    assert not len(run.noise_scale())
