"""Which sinks can be asked for, and how it is told what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.collector import collect
from rankscope.sinks import open_sinks
from rankscope.sketch import SettingError


def test_several_of_a_kind_have_names_of_their_own(tmp_path: Path) -> None:
    asked = [f"jsonl:{tmp_path / 'a'}", f"jsonl:{tmp_path / 'b:c'}", f"tensorboard:{tmp_path}"]
    sinks, metrics = open_sinks(asked)
    names = list(sinks.counts())
    sinks.close()

    assert names == ["jsonl", "jsonl-2", "tensorboard"]
    assert metrics is None
    assert (tmp_path / "b:c").exists()


def test_prometheus_answers_metrics() -> None:
    sinks, metrics = open_sinks(["prometheus"])
    sinks.close()

    assert metrics is not None
    assert metrics.render("", {"frames": 1.0}, {})[1].startswith(b"# HELP rankscope_")


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("carrier-pigeon:x", "There is no sink 'carrier-pigeon'; say jsonl:PATH, tensorboard:DIR,"),
        ("jsonl", "`--sink jsonl` is said as jsonl:PATH, got 'jsonl'."),
        ("tensorboard:", "`--sink tensorboard` is said as tensorboard:DIR, got 'tensorboard:'."),
        ("prometheus:9090", "`--sink prometheus` is said as prometheus, got 'prometheus:9090'."),
        ("webhook", "`--sink webhook` needs an address: set RANKSCOPE_WEBHOOK."),
    ],
)
def test_what_cannot_be_understood_is_told_with_what_can(asked: str, text: str) -> None:
    with pytest.raises(SettingError) as error:
        open_sinks([asked])

    assert str(error.value).startswith(text)


def test_an_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKSCOPE_WEBHOOK", "ftp://nowhere/secret")
    with pytest.raises(SettingError, match="begins with 'ftp:'"):
        open_sinks(["webhook"])


@pytest.mark.parametrize(
    ("asked", "package"),
    [
        ("prometheus", "prometheus_client"),
        ("tensorboard:runs", "tensorboard"),
        ("wandb:numerics", "wandb"),
    ],
)
def test_a_missing_package_is_told_with_the_command_that_installs_it(
    asked: str, package: str, tmp_path: Path
) -> None:
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from rankscope.__main__ import cli; cli(['collect', '--sink', {asked!r}])"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    extra = asked.partition(":")[0]
    assert ended.returncode == 1
    assert f"`--sink {extra}` needs {package}" in ended.stderr
    assert f"pip install 'rankscope[{extra}]'" in ended.stderr


def test_the_environment_may_name_them(tmp_path: Path) -> None:
    # That is how the collector that a job starts by itself gets some.
    asked = {"RANKSCOPE_SINKS": f"jsonl:{tmp_path / 'news'} carrier-pigeon:x"}
    ended = CliRunner().invoke(cli, ["collect"], env=asked)
    assert "There is no sink 'carrier-pigeon'" in ended.output
    asked = {"RANKSCOPE_SINKS": f"jsonl:{tmp_path / 'news'} jsonl:{tmp_path / 'none' / 'news'}"}
    ended = CliRunner().invoke(cli, ["collect"], env=asked)

    assert f"jsonl:{tmp_path}/none/news` cannot be written: No such file" in ended.output
    assert (tmp_path / "news").exists()
    assert not (tmp_path / "none").exists()


def test_prometheus_needs_a_place_to_answer() -> None:
    ended = CliRunner().invoke(collect, ["--sink", "prometheus"])

    assert ended.exit_code == 2
    assert "say `--health 127.0.0.1:7610`" in ended.output
