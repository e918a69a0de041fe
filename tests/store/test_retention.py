"""Deleting old detail: only what was asked for, told for ever, and never as zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.sketch import SettingError, StoreError
from rankscope.store import Record, RunWriter, open_run

Make = Callable[..., Record]
FIRST, MANY = 1000, 1100
"""Records 0, 1, … are of steps 1000, 1001, …"""


def fill(writer: RunWriter, record: Make, start: int, stop: int, keep: int | None = None) -> None:
    tensors = {site: np.full(8, 2.0, np.float32) for site in range(4)}
    one = record(0, tensors)
    for index in range(start, stop, 50):
        here = range(index, min(index + 50, stop))
        batch = [replace(one, index=at, step=FIRST + at, training={0: {"loss": at}}) for at in here]
        writer.commit(batch, streams={})
        for _ in range(3):
            writer.compact_if_due(keep=keep)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def prune(path: object, keep: int, *options: str) -> str:
    result = CliRunner().invoke(cli, ["prune", str(path), "--keep-steps", str(keep), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_is_pruned_as_the_dry_run_said(
    writer: RunWriter, record: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "exported.zarr"
    monkeypatch.setattr("rankscope.store.writer.FINISH_RETENTION_S", 0.0)
    fill(writer, record, 0, MANY)
    writer.finish()
    writer.close()
    assert isinstance(writer.path, Path)
    before, whole = size_of(writer.path), open_run(writer.path)
    full = whole.scalar("rms", steps=(FIRST + 512, None))

    said = prune(writer.path, 500, "--dry-run")
    assert size_of(writer.path) == before
    assert not any(open_run(writer.path).records()["deleted"].tolist())
    done = prune(writer.path, 500)

    steps = f"the detail of 512 records, of steps {FIRST} to {FIRST + 511}: "
    assert said.startswith(f"Would delete {steps}")
    assert done == said.replace("Would delete", "Deleted")
    bytes_said = int(done.rpartition(": ")[2].split()[0])
    assert before - size_of(writer.path) >= 0.9 * bytes_said > 0
    run = open_run(writer.path)
    assert run.scalar("rms").equals(full)
    assert run.records()["deleted"].tolist() == [True] * 512 + [False] * (MANY - 512)
    assert len(run.training()) == MANY
    [event] = run.events().to_dict("records")
    assert event["kind"] == "retention"
    assert "512 records of steps 1000 to 1511 were deleted by retention" in event["text"]
    with pytest.raises(SettingError, match=r"Step 1200 was deleted by retention; the nearest"):
        run.table(1200)
    with pytest.raises(SettingError, match=r"Step 999 was not recorded; the nearest"):
        run.table(999)
    assert run.scalar("rms", steps=(FIRST, FIRST + 511)).shape == (0, 4)
    assert run.exponents(steps=(FIRST, FIRST + 511))["count"].shape[0] == 0
    heatmap = run.heatmap("rms", width=10)
    assert (heatmap.values > 0).all()
    assert "Nothing of" in prune(writer.path, 500)
    exported = CliRunner().invoke(cli, ["export", str(writer.path), "--zarr", str(folder)])
    assert f"{folder} holds {MANY - 512} step" in exported.output
    assert exported.output.endswith("The detail of 512 steps was pruned: they are left out.\n")
    with pytest.raises(StoreError, match="can no longer be read; call `refresh"):
        whole.scalar("rms", steps=(FIRST, FIRST + 511))


def test_an_export_leaves_out_what_was_deleted_between_steps_that_are_there(
    writer: RunWriter, record: Make, tmp_path: Path
) -> None:
    fill(writer, record, 0, MANY)
    assert writer.catalog.attempt_of("from a checkpoint") == 1
    again = [record(MANY + at, step=FIRST + 300 + at, attempt=1) for at in range(30)]
    writer.commit(again, streams={})
    writer.finish()
    writer.prune(500)
    run = open_run(writer.path)
    folder = tmp_path / "exported.zarr"
    result = CliRunner().invoke(cli, ["export", str(writer.path), "--zarr", str(folder)])
    assert result.exit_code == 0, result.output

    with xr.open_zarr(folder, chunks=None) as read:
        steps = [*range(FIRST + 300, FIRST + 330), *range(FIRST + 512, FIRST + MANY)]
        assert read["step"].to_numpy().tolist() == steps
        assert read["attempt"].to_numpy().tolist() == [1] * 30 + [0] * (MANY - 512)
        assert np.array_equal(read["rms"], run.scalar("rms"), equal_nan=True)
        assert np.array_equal(read["exponent_count"], run.exponents()["count"])
        told = run.training().sel(step=steps)
        assert np.array_equal(read["training"], told, equal_nan=True)


def test_a_collector_may_prune_as_it_goes(writer: RunWriter, record: Make) -> None:
    fill(writer, record, 0, 2200, keep=300)

    run = open_run(writer.path)
    deleted = run.records()["deleted"].to_numpy()
    assert deleted[:1024].all()
    assert not deleted[-300:].any()
    assert len(run.scalar("rms")) == (~deleted).sum()
    assert not run.scalar("rms").isnull().any()
    assert run.first_bad() is None
    fill(writer, record, 2200, 2300)
    assert run.refresh()
    assert len(run.records()) == 2300
    assert run.records()["deleted"].sum() == deleted.sum()


def test_nothing_is_deleted_unless_asked(writer: RunWriter, record: Make) -> None:
    fill(writer, record, 0, 700)
    writer.finish()

    assert not any(open_run(writer.path).records()["deleted"].tolist())
    assert open_run(writer.path).events().empty
    writer.close()
    assert (
        prune(writer.path, 700)
        == f"Nothing of {writer.path} can be deleted: it keeps 700 records.\n"
    )
