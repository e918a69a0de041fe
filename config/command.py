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

from ..agent.settings import (
    OF_AGENTS,
    AgentSettings,
    faults_of_agent,
    faults_of_strangers,
    said_by_variables,
)
from ..settings import (
    CONFIGURED,
    TABLES,
    VARIABLE,
    VARIABLES,
    check_names,
    ours,
    read_toml,
    settings_file,
)
from ..wire.address import parse_address
from .options import check_options, parameters_of
from .variables import variable_of, wrong_values

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

    Where there is no file the variables alone are checked.

    Ends with 1 if something is wrong, with 2 if nothing is, but what checks a table, or some
    variables, is not installed.
    """
    chosen = file or settings_file()
    if chosen is None:
        _check_variables()
        return
    said = read_toml(chosen)
    faults, left_out = _look_at(said, chosen)
    for name, why in left_out.items():
        click.echo(f"{chosen}, [{name}] was not checked: {why}", err=True)
    _refuse(faults + _faults_of_variables())
    checked = [name for name in TABLES if name in said and name not in left_out]
    for name in [name for name in GUARDED if name in checked]:
        _tell_if_open(name, said[name], chosen)
    right = "is right in what was checked" if left_out else "is right"
    tables = ", ".join(f"[{name}]" for name in checked)
    click.echo(f"{chosen} {right}: {tables or 'no table'}.")
    if left_out:
        raise SystemExit(2)


@config.command()
def show() -> None:
    """Show what holds for agents and commands, and who said so: the environment, or --config.

    What is wrong is told behind it; then it ends with 1.
    """
    file = settings_file()
    whole = {} if file is None else read_toml(file)
    takes = AgentSettings.__struct_fields__
    said = {
        name: (value, str(file)) for name, value in _table(whole, "agent").items() if name in takes
    }
    for name, (variable, value) in said_by_variables().items():
        said[name] = value, variable
    for name, (value, whose) in said.items():
        click.echo(f"agent.{name} = {json.dumps(value, default=str)}  # {whose}")
    for name in CONFIGURED:
        try:
            command = _command(name)
        except click.ClickException as error:
            click.echo(f"{name} is not shown: {error}", err=True)
            continue
        for key, value, whose in _said_of(command, name, _table(whole, name), file):
            click.echo(f"{name}.{key} = {json.dumps(value, default=str)}  # {whose}")
    faults = [] if file is None else _look_at(whole, file)[0]
    _refuse(faults + _faults_of_variables(), err=True)


@config.command()
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    # Made of all commands by `make schema`, for not all are installed everywhere.
    click.echo(Path(__file__).with_name("config.schema.json").read_text("utf-8"), nl=False)


def _table(whole: dict[str, Any], name: str) -> dict[str, Any]:
    """A table of a file; empty where there is none."""
    said = whole.get(name)
    return said if isinstance(said, dict) else {}


def _said_of(
    command: click.Command, name: str, table: dict[str, Any], file: Path | None
) -> Iterator[tuple[str, Any, str]]:
    """Of the options of a command those that somebody has said: name, value, and who.

    A value that the command does not take is as it was said.
    """
    rules = {"rules": str(file)} if name == "collect" and file is not None else {}
    context = click.Context(
        command, info_name=name, default_map=rules | table, **command.context_settings
    )
    for key, parameter in parameters_of(command).items():
        found, source = parameter.consume_value(context, {})
        if source in (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP):
            is_variable = source is ParameterSource.ENVIRONMENT
            whose = variable_of(command, parameter) if is_variable else str(file)
            with suppress(click.BadParameter):
                found = parameter.type_cast_value(context, found)
            yield key, found, whose


def _tell_if_open(name: str, table: dict[str, Any], file: Path) -> None:
    """Say that a command will not start where others reach it and nothing says who may come.

    That is no fault: its command line may say so.
    """
    said = {key: value for key, value, _ in _said_of(_command(name), name, table, file)}
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


def _check_variables() -> None:
    """Say what is wrong with the variables, where there is no file."""
    known, unknown = _known_variables()
    set_now = [name for name in ours() if os.environ[name]]
    left_out = [name for name in set_now if name.startswith(tuple(unknown))]
    checked = [name for name in set_now if name in known or name in VARIABLES]
    _refuse(_faults_of_variables())
    if not (checked or left_out):
        raise click.UsageError(
            "Say which file: rankscope config check FILE, or rankscope --config FILE config check, "
            f"or set {VARIABLE}. No variable is set, either, that could be checked."
        )
    right = "are right in what was checked" if left_out else "are right"
    click.echo(f"The variables {right}: {', '.join(sorted(checked)) or 'none'}. No file was named.")
    if left_out:
        why = "Not checked, for what their commands need is not installed"
        click.echo(f"{why}: {', '.join(sorted(left_out))}.", err=True)
        raise SystemExit(2)


def _refuse(faults: list[str], *, err: bool = False) -> None:
    """Say what is wrong, and end with 1, if anything is."""
    for fault in faults:
        click.echo(fault, err=err)
    if faults:
        raise SystemExit(1)


def _look_at(said: dict[str, Any], file: Path) -> tuple[list[str], dict[str, str]]:
    """What is wrong in a file; and by the name of a table that was not checked, why not."""
    faults, left_out = list[str](), dict[str, str]()
    check_names(said, TABLES, f"{file}", faults)
    for name in [name for name in TABLES if name in said]:
        try:
            faults += _faults_of(said[name], name, file)
        except click.ClickException as error:
            left_out[name] = str(error)
    return faults, left_out


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


def _known_variables() -> tuple[list[str], list[str]]:
    """Those that say options; and how those begin whose command is not installed."""
    known, unknown = list(OF_AGENTS), list[str]()
    for name in CONFIGURED:
        try:
            command = _command(name)
        except click.ClickException:
            unknown.append(f"RANKSCOPE_{name.upper()}_")
        else:
            known += [variable_of(command, one) for one in command.params]
    return known, unknown


def _faults_of_variables() -> list[str]:
    """Variables that begin as ours and are none; and what agents and commands cannot take."""
    known, unknown = _known_variables()
    names = [name for name in ours() if not name.startswith(tuple(unknown))]
    faults = faults_of_strangers(names, known)
    for name, (variable, value) in said_by_variables().items():
        faults += faults_of_agent({name: value}, variable)
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
