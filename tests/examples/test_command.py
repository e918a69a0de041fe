"""The options of `rankscope demo`, and where its run lies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.examples.command import free_path


def test_help_explains_the_choices() -> None:
    result = CliRunner().invoke(cli, ["demo", "--help"])

    assert result.exit_code == 0
    for option in (
        "fault",
        "ranks",
        "steps",
        "size",
        "seed",
        "name",
        "directory",
        "no-view",
        "tell",
    ):
        assert f"--{option}" in result.output
    assert "one rank breaks on purpose" in " ".join(result.output.split())


def test_help_loads_neither_torch_nor_panel_nor_zarr(tmp_path: Path) -> None:
    script = "import sys, rankscope.examples.command; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True, cwd=tmp_path)

    assert {"torch", "panel", "zarr", "numba"}.isdisjoint(loaded.split())


def test_a_run_that_exists_is_left_alone(tmp_path: Path) -> None:
    first = free_path(tmp_path, "demo")
    first.mkdir()
    second = free_path(tmp_path, "demo")
    second.mkdir()

    assert first == tmp_path / "demo"
    assert second == tmp_path / "demo-2"
    assert free_path(tmp_path, "demo") == tmp_path / "demo-3"


@pytest.mark.parametrize("name", ["a/b", "..", "", ".hidden", "a?b", "end."])
def test_a_name_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(click.BadParameter, match="a name is letters, digits and"):
        free_path(tmp_path, name)


def test_too_few_steps_for_a_fault_are_refused_before_anything_starts(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli, ["demo", "--steps", "3", "--directory", str(tmp_path / "runs")]
    )

    assert result.exit_code == 1
    assert "at least 12 steps, got 3" in result.output
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_made_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "runs"

    result = CliRunner().invoke(cli, ["demo", "--no-view", "--directory", str(folder)])

    assert result.exit_code == 1
    assert f"The folder {folder} cannot be made: Not a directory;" in result.output
