"""The options of `rankscope demo`, and where its run lies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.examples.command import conclude, free_path
from rankscope.examples.demo import Demo
from rankscope.examples.fault import Fault
from rankscope.examples.screen import Screen


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


class FakeServer:
    """A viewer that is looked at for no time at all."""

    address = "http://127.0.0.1:1234/"

    def wait(self) -> None:
        raise KeyboardInterrupt

    def stop(self) -> None:
        pass


def concluded(path: Path, capsys: pytest.CaptureFixture[str], *, viewed: bool, tell: bool) -> str:
    """What is said at the end of a demo with a fault."""
    fault = Fault(block=1, rank=3, step=33, lasts=4)
    job = Demo(path=path, ranks=4, steps=80, size="small", seed=0, fault=fault)
    conclude(job, Screen(), FakeServer() if viewed else None, tell=tell)
    return capsys.readouterr().out


ANSWER = "Planted: activation:blocks.1.mlp.act overflows on rank 3 from step 33 on."


def test_with_a_viewer_the_answer_waits_for_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = concluded(tmp_path / "a run", capsys, viewed=True, tell=False)

    before, after = said.split("Ctrl-C ends this and tells the answer.")
    assert "http://127.0.0.1:1234/?run=a%20run" in before
    assert ANSWER not in before
    assert ANSWER in after


def test_tell_does_not_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = concluded(tmp_path / "demo", capsys, viewed=True, tell=True)

    assert ANSWER in said.split("Ctrl-C ends this.")[0]
    assert said.count("Planted") == 1


def test_without_a_viewer_the_answer_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = concluded(tmp_path / "demo", capsys, viewed=False, tell=False)

    assert ANSWER in said
    assert said.endswith(f"Look at it: rankscope view {tmp_path / 'demo'}\n")
