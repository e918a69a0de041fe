"""What the pages say to type can be typed: names, commands and options are those that there are."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from rankscope.__main__ import cli
from rankscope.agent.jax import Scope as JaxScope
from rankscope.agent.torch import Scope
from rankscope.store import Run, open_run

from .pages import BLOCKS, PAGES, ROOT, Block, code_in_lines
from .snippets import NOT_RUN, RUN_ELSEWHERE, free_names

PYTHON = [block for block in BLOCKS if block.language == "python"]
OBSERVING = {
    "README.md",
    "docs/agent.md",
    "docs/how-to/alerts.md",
    "docs/how-to/fp8.md",
    "docs/how-to/notebooks.md",
    "docs/how-to/slurm.md",
    "docs/how-to/tensor-parallel.md",
    "docs/jax.md",
    "docs/quantities.md",
    "docs/statistics.md",
}
"""Pages with code that observes what a script has."""
TRAINED = {"gpt-small": [0, 1, 2], "flax-small": [0, 1, 2], "slurm": [5, 6, 7]}
"""Of runs of theirs the steps."""


@pytest.mark.parametrize("block", [b for b in PYTHON if b.page not in RUN_ELSEWHERE], ids=str)
def test_python_compiles_and_imports_public_names(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            assert all(there_is(alias.name) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.module
            assert there_is(node.module)
            for alias in node.names:
                assert alias.name == "*" or is_public(node.module, alias.name), alias.name


def there_is(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def is_public(module: str, name: str) -> bool:
    if not module.startswith("rankscope"):
        return True
    found = importlib.import_module(module)
    rooms = importlib.util.find_spec(f"{module}.{name}") if hasattr(found, "__path__") else None
    return name in getattr(found, "__all__", dir(found)) or rooms is not None


@pytest.mark.parametrize("page", sorted({b.page for b in PYTHON} - RUN_ELSEWHERE - NOT_RUN))
def test_code_that_needs_nothing_else_runs(
    page: str, documented_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is code whose names all come from blocks before it, or from a stored run."""
    monkeypatch.chdir(documented_runs)
    names: dict[str, Any] = {}  # what the page's code makes
    for block in PYTHON:
        if block.page == page and free_names(block.text) <= names.keys():
            exec(compile(block.text, str(block), "exec"), names)


def test_code_that_observes_what_a_script_has_runs(tmp_path: Path) -> None:
    """A model, an optimizer, data and the like are those of the job; steps are stored."""
    job = [sys.executable, "-m", "tests.docs.snippets_job"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RANKSCOPE_RUN": "slurm"}
    done = subprocess.run(
        job, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr

    ran = json.loads(done.stdout)
    assert {place.partition(":")[0] for place in ran} == OBSERVING
    for run, steps in TRAINED.items():
        told = open_run(tmp_path / "rankscope-runs" / run).records()
        assert set(told["step"][~told["final"]]) == set(steps)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_methods_of_runs_and_scopes_are_there(page: Path) -> None:
    name = page.relative_to(ROOT).as_posix()
    code = "\n".join([b.text for b in PYTHON if b.page == name] + code_in_lines(page))
    scope = {*dir(Scope), *dir(JaxScope), "training_model"}

    assert set(re.findall(r"\b[rR]un\.([a-z]\w*)\(", code)) <= {*dir(Run)}
    assert set(re.findall(r"\bscope\.([a-z]\w*)\(", code)) <= scope


def commands_of(block: Block) -> list[str]:
    lines = block.text.replace("\\\n", " ").splitlines()
    return [command for line in lines for command in re.split(r" (?:&&|\||;) ", line)]


COMMANDS = sorted(
    {
        (str(block), words)
        for block in BLOCKS
        if block.language in ("", "sh", "bash", "console")
        for line in commands_of(block)
        if (words := line.removeprefix("$ ")) and re.match(r"(?:\w+=\S+ )*\S*\brankscope ", words)
    }
)


@pytest.mark.parametrize(("place", "line"), COMMANDS)
def test_commands_have_the_options_that_are_said(place: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    where = next(n for n, word in enumerate(words) if word.split("/")[-1] == "rankscope")

    check(words[where + 1 :], whole=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_in_sentences_have_the_options_that_are_said(page: Path) -> None:
    for code in code_in_lines(page):
        if re.match(r"(?:\w+=\S+ )*rankscope [a-z]", code):
            words = shlex.split(code)
            check(words[words.index("rankscope") + 1 :], whole=False)


def check(words: list[str], *, whole: bool) -> None:
    """Hold a command's words against what it takes; `whole`: nothing is left to be added."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        own, words, _ = command.make_parser(click.Context(command)).parse_args(words)
        whole = whole and not own.get("config")  # which may say what is left out
        _, found, words = command.resolve_command(click.Context(command), words)
        assert found is not None
        command = found
        if isinstance(command, click.Group) and not words:
            return
    # A sentence may name an option without its value.
    value = [] if whole or not words or command_takes_alone(command, words[-1]) else ["…"]
    options, rest, _ = command.make_parser(click.Context(command)).parse_args([*words, *value])
    assert not rest, f"{command.name} does not take {rest}"
    for parameter in command.params:
        value = options.get(parameter.name or "")
        given = isinstance(value, str)
        if isinstance(parameter.type, click.Choice) and given:
            parameter.type.convert(value, parameter, None)
        missing = whole and parameter.required and (value is None or value == ())
        assert not missing, f"{command.name} needs {parameter.name}"


def command_takes_alone(command: click.Command, word: str) -> bool:
    """Whether a word is anything but an option that wants a value."""
    options = [one for one in command.params if isinstance(one, click.Option) and word in one.opts]
    return not any(one.nargs and not one.is_flag and not one.count for one in options)
