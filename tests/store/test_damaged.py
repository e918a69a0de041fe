"""A run of which files are damaged or missing: it is told in a sentence, and nothing is made up."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.sketch import StoreError
from rankscope.store import Record, RunWriter, SiteInfo, list_runs, open_run

Make = Callable[..., Record]
Damage = Callable[[Path], object]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def garble(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.fixture
def run(writer: RunWriter, record: Make) -> Path:
    """A finished run, which nobody writes."""
    writer.commit([record(index) for index in range(40)], streams={})
    writer.finish()
    writer.close()
    assert isinstance(writer.path, Path)
    return writer.path


@pytest.mark.parametrize("damage", [Path.unlink, cut, garble])
def test_chunks_that_are_damaged_are_told(run: Path, damage: Damage) -> None:
    before = open_run(run)
    for file in (run / "chunks").iterdir():
        damage(file)
    for command in ("why", "formats"):
        result = CliRunner().invoke(cli, [command, str(run)])
        assert result.exit_code == 1
        assert result.output.startswith(f"Error: Cannot read {run}: "), result.output
        assert result.output.count("\n") == 1
    with pytest.raises(StoreError, match=r"Cannot read .*: "):
        before.scalar("rms")  # it is the newest snapshot: to refresh would not help


@pytest.mark.parametrize("damage", [Path.unlink, cut, garble])
def test_snapshots_that_are_damaged_are_told(
    run: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    for file in (run / "snapshots").iterdir():
        damage(file)
    with pytest.raises(StoreError, match=r"Cannot read .*/gpt: "):
        open_run(run)
    with pytest.raises(StoreError, match=r"Cannot read .*/gpt: "):
        RunWriter.open(run, run="gpt")
    assert list_runs(run.parent) == []
    assert "A run is left out of the list. Cannot read" in caplog.text


def test_a_reader_of_a_run_that_was_deleted_reads_the_next_of_its_name(
    run: Path, record: Make
) -> None:
    reader = open_run(run)
    assert len(reader.records()) == 40
    shutil.rmtree(run)
    with pytest.raises(StoreError, match="Cannot read"):
        reader.refresh()
    with RunWriter.open(run, run="gpt") as writer:
        writer.catalog.set_attempt(writer.catalog.attempt_of("another launch"), 2, {"dp": 2}, [])
        sites = [SiteInfo(kind="weight", name=f"another.{place}") for place in range(4)]
        writer.catalog.add_sites(sites)
        writer.commit([record(index, step=100 + index) for index in range(10)], streams={})

    assert reader.refresh()
    assert reader.records()["step"].tolist() == list(range(100, 110))
    assert reader.attempts["launch"].tolist() == ["another launch"]
    assert reader.sites().index.tolist() == [site.label for site in sites]
    assert reader.scalar("rms").equals(open_run(run).scalar("rms"))
