"""`rankscope config`: what settings there are, whether a file is right, and what holds now."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..agent.settings import agent_settings, faults_of_agent
from ..settings import TABLES, VARIABLE, check_names, read_toml, settings_file
from ..wire.address import parse_address
from .defaults import CONFIGURED, defaults_of
from .options import check_options, parameters_of
from .variables import strays, variable_of, wrong_values

OF_AGENTS = {
    "RANKSCOPE_RUN": "run",
    "RANKSCOPE_TO": "to",
    "RANKSCOPE_RELAY": "to",
    "RANKSCOPE_KEYS": "keys",
    "RANKSCOPE_DIR": "directory",
}
"""What some of them say to agents; the later goes before the earlier."""
GUARDED = {
    "collect": ("bind", "keys"),
    "relay": ("bind", "keys"),
    "view": ("address", "token_file"),
}
"""Of commands the option where they listen, and the one without which they do so for this machine
alone."""


@click.group()
def config() -> None:
    """The file of settings: docs/configuration.md."""


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
def check(file: Path | None) -> None:
    """Say what is wrong in FILE, or in that of --config, and with variables; change nothing.

    Ends with 1 if something is wrong, with 2 if nothing is, but what checks a table is not
    installed.
    """
    chosen = _chosen(file)
    said = read_toml(chosen)
    faults = list[str]()
    check_names(said, TABLES, f"{chosen}", faults)
    checked = list[str]()
    for name in [name for name in TABLES if name in said]:
        try:
            faults += _faults_of(said[name], name, chosen)
            checked.append(f"[{name}]")
        except click.ClickException as error:
            click.echo(f"{chosen}, [{name}] was not checked: {error}", err=True)
    faults += _strays()
    faults += _said_wrong()
    for fault in faults:
        click.echo(fault)
    if faults:
        raise SystemExit(1)
    for name in [name for name in GUARDED if f"[{name}]" in checked]:
        _tell_if_open(name, chosen)
    is_whole = len(checked) == len(said)
    right = "is right" if is_whole else "is right in what was checked"
    click.echo(f"{chosen} {right}: {', '.join(checked) or 'no table'}.")
    if not is_whole:
        raise SystemExit(2)


@config.command()
def show() -> None:
    """Show what holds for agents and commands, and who said so: the environment, or --config."""
    file = settings_file()
    said = {name: (value, str(file)) for name, value in agent_settings(file).items()}
    for variable, name in OF_AGENTS.items():
        if os.environ.get(variable):
            said[name] = os.environ[variable], variable
    for name, (value, whose) in said.items():
        click.echo(f"agent.{name} = {json.dumps(value)}  # {whose}")
    for name in CONFIGURED:
        try:
            command = _command(name)
        except click.ClickException as error:
            click.echo(f"{name} is not shown: {error}", err=True)
            continue
        for key, value, whose in _said_of(command, name, file):
            click.echo(f"{name}.{key} = {json.dumps(value, default=str)}  # {whose}")


@config.command()
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    # Made of all commands by `make schema`, for not all are installed everywhere.
    click.echo(Path(__file__).with_name("config.schema.json").read_text("utf-8"), nl=False)


def _said_of(
    command: click.Command, name: str, file: Path | None
) -> Iterator[tuple[str, Any, str]]:
    """Of the options of a command those that somebody has said: name, value, and who."""
    context = click.Context(
        command,
        info_name=name,
        default_map=None if file is None else dict(defaults_of(command, name, file)),
        **command.context_settings,
    )
    for key, parameter in parameters_of(command).items():
        found, source = parameter.consume_value(context, {})
        if source in (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP):
            is_variable = source is ParameterSource.ENVIRONMENT
            whose = variable_of(command, parameter) if is_variable else str(file)
            yield key, parameter.type_cast_value(context, found), whose


def _tell_if_open(name: str, file: Path) -> None:
    """Say that a command will not start where others reach it and nothing says who may come.

    That is no fault: its command line may say so.
    """
    said = {key: value for key, value, _ in _said_of(_command(name), name, file)}
    place, guard = GUARDED[name]
    if place not in said:
        return
    address = str(said[place])
    where = parse_address(address if "://" in address else f"tcp://{address or '*'}:0")
    has_token = name == "view" and os.environ.get("RANKSCOPE_VIEW_TOKEN")
    if not (where.is_local or said.get(guard) or said.get("insecure") or has_token):
        option = guard.replace("_", "-")
        click.echo(
            f"{file}, [{name}]: others reach {address}, so `rankscope {name}` will not start "
            f"without `--{option}`, or `--insecure`; neither is said here."
        )


def _chosen(file: Path | None) -> Path:
    chosen = file or settings_file()
    if chosen is None:
        raise click.UsageError(
            "Say which file: rankscope config check FILE, or rankscope --config FILE config check, "
            f"or set {VARIABLE}."
        )
    return chosen


def _faults_of(table: object, name: str, file: Path) -> list[str]:
    """What is wrong in a table of a file.

    Raises:
        click.ClickException: what knows it is not installed.
    """
    faults = list[str]()
    where = f"{file}, [{name}]"
    if name == "agent":
        faults += faults_of_agent(table, where)
    elif name in CONFIGURED:
        faults += check_options(table, _command(name), where)
    else:
        _command("rules")  # or it says what is not installed
        from ..rules.book import book_of

        book_of({name: table}, f"{file}", faults)
    return faults


def _strays() -> list[str]:
    """Variables that begin as ours and are none."""
    known, unknown = list[str](), list[str]()
    for name in CONFIGURED:
        try:
            command = _command(name)
        except click.ClickException:  # it is not installed
            unknown.append(f"RANKSCOPE_{name.upper()}_")
        else:
            known += [variable_of(command, one) for one in command.params]
    ours = [name for name in os.environ if name.startswith("RANKSCOPE_")]
    return strays([name for name in ours if not name.startswith(tuple(unknown))], known)


def _said_wrong() -> list[str]:
    """Variables that say what agents and commands cannot take."""
    faults = list[str]()
    for variable, name in OF_AGENTS.items():
        if os.environ.get(variable):
            faults += faults_of_agent({name: os.environ[variable]}, variable)
    for name in CONFIGURED:
        with suppress(click.ClickException):  # it is not installed
            faults += wrong_values(_command(name))
    return faults


def _command(name: str) -> click.Command:
    """The command of that name of the group that this one is in."""
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    command = root.command.get_command(root, name)
    assert command is not None
    return command
