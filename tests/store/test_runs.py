"""The list of runs, as data and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.sketch import NotARunError
from rankscope.store import Record, RunWriter, list_runs

Make = Callable[..., Record]


def test_runs_are_listed_the_latest_first(writer: RunWriter, record: Make, tmp_path: Path) -> None:
    writer.commit([record(0, step=3), record(1, step=4)], streams={})
    with RunWriter.open(tmp_path / "old", run="old") as other:
        other.catalog.attempt_of("x")
        other.commit([record(0, {}, time_ns=5)], streams={})
        other.finish()
    (tmp_path / "empty").mkdir()

    latest, oldest = list_runs(tmp_path)

    assert (latest.name, latest.first_step, latest.last_step, latest.records) == ("gpt", 3, 4, 2)
    assert (latest.attempts, latest.world_size, latest.finished) == (1, 2, False)
    assert (oldest.name, oldest.finished) == ("old", True)
    assert latest.started is not None
    assert latest.started.isoformat() == "2023-11-14T22:13:20+00:00"


def test_a_run_that_cannot_be_read_hides_no_other(
    writer: RunWriter, record: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer.commit([record(0)], streams={})
    with RunWriter.open(tmp_path / "broken", run="broken") as other:
        other.catalog.attempt_of("x")
        other.commit([record(0, {})], streams={})
    (tmp_path / "broken" / "refs" / "branch.main" / "ref.json").write_bytes(b"a disk has failed")

    assert [one.name for one in list_runs(tmp_path)] == ["gpt"]
    assert "A run is left out of the list. Cannot read" in caplog.text


def test_the_command_prints_a_table(writer: RunWriter, record: Make, tmp_path: Path) -> None:
    writer.commit([record(0)], streams={})

    result = CliRunner().invoke(cli, ["runs", str(tmp_path)])

    assert result.exit_code == 0
    assert "gpt" in result.output
    assert "0 to 0" in result.output
    assert "open" in result.output


def test_the_command_prints_json(writer: RunWriter, record: Make, tmp_path: Path) -> None:
    writer.commit([record(0)], streams={})

    result = CliRunner().invoke(cli, ["runs", str(tmp_path), "--json"])

    [run] = json.loads(result.output)
    assert (run["name"], run["records"], run["path"]) == ("gpt", 1, str(writer.path))


def test_the_variable_says_which_folder(writer: RunWriter, record: Make, tmp_path: Path) -> None:
    writer.commit([record(0)], streams={})
    says = {"RANKSCOPE_DIR": str(tmp_path)}

    assert "gpt" in CliRunner().invoke(cli, ["runs"], env=says).output
    out = str(tmp_path / "log.parquet")
    CliRunner().invoke(cli, ["export", str(writer.path), "--logframe", out])
    CliRunner().invoke(cli, ["import", out], env=says)
    assert [run.name for run in list_runs(tmp_path)] == ["log", "gpt"]


def test_a_folder_without_runs_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["runs", str(tmp_path)])

    assert (result.exit_code, result.output) == (0, f"{tmp_path} holds no runs yet.\n")
    with pytest.raises(NotARunError, match="does not exist; give a folder of runs"):
        list_runs(tmp_path / "nowhere")
