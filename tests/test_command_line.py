"""The command line lists its commands without loading them, and says errors in one sentence."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rankscope.__main__ import COMMANDS, LazyCommand, LazyGroup, cli
from rankscope.sketch.errors import SettingError


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def group_of(command: click.Command, monkeypatch: pytest.MonkeyPatch) -> LazyGroup:
    """A group with the one command `go`, as if a room had it."""

    def load(target: str) -> click.Command:
        return command

    monkeypatch.setattr("rankscope.__main__.load", load)
    return LazyGroup(table={"go": LazyCommand(target="a:b", extra="viewer", summary="Go.")})


def test_help_lists_every_command(runner: CliRunner) -> None:
    result = runner.invoke(cli, ["--help"])

    assert result.exit_code == 0
    for name, command in COMMANDS.items():
        assert f"{name} " in result.output
        assert command.summary in result.output


def test_help_loads_no_room_and_no_numpy(tmp_path: Path) -> None:
    script = (
        "import sys; from click.testing import CliRunner; from rankscope.__main__ import cli\n"
        "CliRunner().invoke(cli, ['--help'], catch_exceptions=False); print(*sys.modules)"
    )
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True, cwd=tmp_path)

    ours = {name for name in loaded.split() if name.startswith("rankscope.")}
    assert ours == {"rankscope.__main__"}
    assert "numpy" not in loaded.split()


def test_the_version_is_told(runner: CliRunner) -> None:
    result = runner.invoke(cli, ["--version"])

    assert result.output.startswith("rankscope, version ")


def test_an_unknown_command_is_a_usage_error(runner: CliRunner) -> None:
    result = runner.invoke(cli, ["nonsense"])

    assert result.exit_code == 2
    assert "No such command 'nonsense'" in result.output


def test_a_missing_extra_names_the_pip_line(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(target: str) -> click.Command:
        raise ModuleNotFoundError("No module named 'panel.io'", name="panel.io")

    monkeypatch.setattr("rankscope.__main__.load", missing)
    result = runner.invoke(cli, ["view"])

    assert result.exit_code == 1
    assert result.output == (
        "Error: `rankscope view` needs panel.io, which is not installed. "
        "Install it with: pip install 'rankscope[viewer]'\n"
    )


def test_an_extra_that_is_missed_only_when_running_names_the_pip_line(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command
    def go() -> None:
        raise ModuleNotFoundError("No module named 'zarr'", name="zarr")

    result = runner.invoke(group_of(go, monkeypatch), ["go"])

    assert result.exit_code == 1
    assert "pip install 'rankscope[viewer]'" in result.output


def test_a_module_of_ours_that_is_missing_is_a_bug_and_not_explained_away(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command
    def go() -> None:
        raise ModuleNotFoundError("No module named 'rankscope.gone'", name="rankscope.gone")

    result = runner.invoke(group_of(go, monkeypatch), ["go"])

    assert isinstance(result.exception, ModuleNotFoundError)


def test_an_error_of_the_library_is_one_sentence(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command
    def go() -> None:
        raise SettingError("`every` must be a positive number of steps, got 0.")

    result = runner.invoke(group_of(go, monkeypatch), ["go"])

    assert result.exit_code == 1
    assert result.output == "Error: `every` must be a positive number of steps, got 0.\n"


def test_any_other_error_keeps_its_traceback(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command
    def go() -> None:
        raise ZeroDivisionError

    result = runner.invoke(group_of(go, monkeypatch), ["go"])

    assert isinstance(result.exception, ZeroDivisionError)


def test_a_port_that_there_is_not_is_told(runner: CliRunner) -> None:
    result = runner.invoke(cli, ["view", "runs", "--port", "99999"])

    assert result.exit_code == 2
    assert "99999 is not in the range 0<=x<=65535" in result.output


def test_a_near_command_is_named() -> None:
    result = CliRunner().invoke(cli, ["colect"])

    assert result.exit_code == 2
    assert "No such command 'colect'. Did you mean collect?" in result.output
