"""`rankscope config`: what settings there are, whether a file is right, and what holds now."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import click
from click.core import ParameterSource

from ..agent.settings import AgentSettings, agent_settings
from ..settings import TABLES, VARIABLE, check_names, read_toml, settings_file, settings_of
from .defaults import CONFIGURED, defaults_of
from .options import check_options, parameters_of

VARIABLES = (
    VARIABLE,
    "RANKSCOPE_DIR",
    "RANKSCOPE_HOST",
    "RANKSCOPE_KEYS",
    "RANKSCOPE_LAUNCH",
    "RANKSCOPE_OBSERVE",
    "RANKSCOPE_RELAY",
    "RANKSCOPE_RUN",
    "RANKSCOPE_SINKS",
    "RANKSCOPE_TO",
    "RANKSCOPE_VIEW_TOKEN",
    "RANKSCOPE_WEBHOOK",
)
"""Those that are no option's."""
OF_AGENTS = {
    "RANKSCOPE_RUN": "run",
    "RANKSCOPE_TO": "to",
    "RANKSCOPE_RELAY": "to",
    "RANKSCOPE_KEYS": "keys",
    "RANKSCOPE_DIR": "directory",
}
"""What some of them say to agents; the later goes before the earlier."""
KUBERNETES = re.compile(r"_(SERVICE_(HOST|PORT.*)|PORT(_.*)?)")
"""How the variables end that Kubernetes sets for a service."""


@click.group()
def config() -> None:
    """The file of settings: docs/configuration.md."""


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
def check(file: Path | None) -> None:
    """Say what is wrong in FILE, or in that of --config, and with variables; change nothing.

    Ends with 1 if something is wrong.
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
        except (click.ClickException, ModuleNotFoundError) as error:
            click.echo(f"{chosen}, [{name}] was not checked: {error}", err=True)
    faults += _strays()
    for fault in faults:
        click.echo(fault)
    if faults:
        raise SystemExit(1)
    click.echo(f"{chosen} is right: {', '.join(checked) or 'no table'}.")


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
        context = click.Context(
            command,
            info_name=name,
            default_map=None if file is None else dict(defaults_of(command, name, file)),
            **command.context_settings,
        )
        for key, parameter in parameters_of(command).items():
            found, source = parameter.consume_value(context, {})
            if source in (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP):
                value = json.dumps(parameter.type_cast_value(context, found), default=str)
                is_variable = source is ParameterSource.ENVIRONMENT
                whose = _variable(command, parameter) if is_variable else file
                click.echo(f"{name}.{key} = {value}  # {whose}")


@config.command()
def schema() -> None:
    """Print the JSON Schema of the file, for editors: docs/config.schema.json."""
    # Imported late: it needs what a collector needs, and an agent's node may check its file.
    from .schema import json_schema

    commands = {name: _command(name) for name in CONFIGURED}
    click.echo(json.dumps(json_schema(commands), indent=2))


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
        click.ClickException, ModuleNotFoundError: what knows it is not installed.
    """
    faults = list[str]()
    where = f"{file}, [{name}]"
    if name == "agent":
        settings_of(table, AgentSettings, where, faults)
    elif name in CONFIGURED:
        faults += check_options(table, _command(name), where)
    else:
        # Imported late: it needs what a collector needs.
        from ..rules.book import book_of

        book_of({name: table}, f"{file}", faults)
    return faults


def _strays() -> list[str]:
    """Variables that begin as ours and are none."""
    known = [*VARIABLES]
    unknown = list[str]()
    for name in CONFIGURED:
        try:
            command = _command(name)
        except click.ClickException:  # it is not installed
            unknown.append(f"RANKSCOPE_{name.upper()}_")
        else:
            known += [_variable(command, one) for one in command.params]
    ours = [name for name in os.environ if name.startswith("RANKSCOPE_")]
    skipped = [name for name in ours if name.startswith(tuple(unknown)) or KUBERNETES.search(name)]
    faults = list[str]()
    check_names([name for name in ours if name not in skipped], known, "environment", faults)
    return faults


def _variable(command: click.Command, parameter: click.Parameter) -> str:
    """The variable that says it, or that would."""
    own = parameter.envvar
    if isinstance(own, str) and os.environ.get(own):
        return own
    return f"{command.context_settings['auto_envvar_prefix']}_{parameter.name}".upper()


def _command(name: str) -> click.Command:
    """The command of that name of the group that this one is in."""
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    command = root.command.get_command(root, name)
    assert command is not None
    return command
