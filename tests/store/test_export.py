"""A run as a plain Zarr store, read by Zarr and by xarray."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.sketch import MAIN, StoreError
from rankscope.store import Record, Run, RunWriter, SiteInfo, open_run
from rankscope.store.export import export_zarr
from rankscope.store.reader import open_reader

Make = Callable[..., Record]
STEPS = [*range(70), *range(80, 150)]


@pytest.fixture
def exported(writer: RunWriter, record: Make, tmp_path: Path) -> Path:
    """140 records of two ranks, exported by the command."""
    for start in range(0, len(STEPS), 20):
        here = range(start, start + 20)
        writer.commit([record(index, step=STEPS[index]) for index in here], streams={})
    folder = tmp_path / "plain"
    result = CliRunner().invoke(cli, ["export", str(writer.path), "--zarr", str(folder)])
    assert result.exit_code == 0, result.output
    assert "140 step" in result.output
    return folder


def test_xarray_reads_what_was_exported(exported: Path, writer: RunWriter) -> None:
    run = open_run(writer.path)
    with xr.open_zarr(exported, chunks=None) as read:
        assert read.sizes["step"] == 140
        assert read["step"].to_numpy().tolist() == STEPS
        for name in MAIN:
            assert np.array_equal(read[name], run.scalar(name), equal_nan=True)
            assert read[name].dtype == np.float32
            assert {"units", "description"} <= read[name].attrs.keys()
        counted = run.exponents()
        assert np.array_equal(read["exponent_count"], counted["count"])
        assert np.array_equal(read["exponent_zero"], counted["zero"])
        assert read["exponent_count"].dtype == np.int64
        assert read["exponent"].to_numpy().tolist() == list(range(-149, 128))
        assert np.array_equal(read["training"], run.training(), equal_nan=True)
        labels = ["activation:layers.0.up", "activation:layers.1.up"]
        assert read["site"].to_numpy().tolist()[:2] == labels
        assert read["kind"].sel(site=labels[0]).item() == "activation"
        assert read["rms"].sel(site=labels[1], step=80).item() == pytest.approx(
            run.scalar("rms", sites=labels[1], steps=80).item()
        )
        assert str(read["time"].to_numpy()[1]) == "2023-11-14T22:13:21.000000000"
        assert read.attrs["run"] == "gpt"
        assert read.attrs["sites"][0]["dtype"] == "float32"


def test_zarr_alone_reads_what_was_exported(exported: Path, writer: RunWriter) -> None:
    group = zarr.open(exported, mode="r")
    assert isinstance(group, zarr.Group)
    assert group.metadata.zarr_format == 3
    rms: Any = group["rms"]  # zarr types what a group holds too widely
    assert rms.metadata.dimension_names == ("step", "site")
    assert np.array_equal(np.asarray(rms[:]), open_run(writer.path).scalar("rms"))
    assert rms.attrs["units"] == "as the tensor"


def test_histograms_can_be_left_out(writer: RunWriter, record: Make, tmp_path: Path) -> None:
    writer.commit([record(0)], streams={})

    export_zarr(open_run(writer.path), tmp_path / "plain", exponents=False)

    with xr.open_zarr(tmp_path / "plain", chunks=None) as read:
        assert "exponent_count" not in read
        assert read.sizes["step"] == 1


def test_a_folder_in_use_is_left_alone(writer: RunWriter, record: Make, tmp_path: Path) -> None:
    writer.commit([record(0)], streams={})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()

    with pytest.raises(StoreError, match="mine is a folder without a run; choose a folder that is"):
        export_zarr(open_run(writer.path), tmp_path / "mine")
    with pytest.raises(StoreError, match=" is a run; choose a folder that is new or empty"):
        export_zarr(open_run(writer.path), Path(str(writer.path)))
    command = ["export", str(tmp_path / "none"), "--zarr", str(tmp_path / "plain")]
    result = CliRunner().invoke(cli, command)
    assert result.output == f"Error: {tmp_path / 'none'} does not exist; give a run.\n"


def test_a_run_without_records_is_exported_empty(writer: RunWriter, tmp_path: Path) -> None:
    writer.finish()

    sizes = export_zarr(open_run(writer.path), tmp_path / "plain")

    assert sizes["step"] == 0


def test_an_export_outlives_its_snapshot(
    writer: RunWriter, record: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that takes longer than snapshots of a run that goes on are kept."""
    monkeypatch.setattr("rankscope.store.writer.FINISH_RETENTION_S", 0.0)
    writer.commit([record(index) for index in range(130)], streams={})

    class Interrupted(Run):
        """Between the first steps and the next the run grows, and its old snapshots go."""

        asked = 0

        def training(self, **choice: Any) -> xr.DataArray:
            self.asked += 1
            if self.asked == 2:
                writer.catalog.add_sites([SiteInfo(kind="weight", name="new")])
                writer.commit([record(130), record(5, time_ns=5)], streams={})
                writer.finish()
            return super().training(**choice)

    run = Interrupted(open_reader(writer.path))
    before = run.scalar("rms", steps=0)["site"].to_numpy().tolist()

    sizes = export_zarr(run, tmp_path / "plain")

    assert sizes["step"] == 130
    assert sizes["site"] == len(before)
    with xr.open_zarr(tmp_path / "plain", chunks=None) as read:
        assert read["site"].to_numpy().tolist() == before
        whole = open_run(writer.path).scalar("rms", sites=before, steps=(0, 129))
        assert np.array_equal(read["rms"], whole, equal_nan=True)


def test_a_run_that_was_cleaned_away_before_its_export_is_exported_as_it_is_now(
    writer: RunWriter, record: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.store.writer.FINISH_RETENTION_S", 0.0)
    writer.commit([record(0)], streams={})
    run = open_run(writer.path)
    writer.commit([record(1)], streams={})
    writer.finish()

    assert export_zarr(run, tmp_path / "plain")["step"] == 2
