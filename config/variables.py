"""Whether the variables that are set for commands say something."""

from __future__ import annotations

import os
from collections.abc import Collection

import click

from ..settings import OF_COMMANDS, VARIABLES, check_names, meant_by, ours, strangers
from .options import parameters_of


def variable_of(command: click.Command, parameter: click.Parameter) -> str:
    """The variable that says it, or that would."""
    own = parameter.envvar
    if isinstance(own, str) and os.environ.get(own):
        return own
    return f"{prefix_of(command)}{parameter.name}".upper()


def prefix_of(command: click.Command) -> str:
    """How the variables of a command's options begin."""
    return f"{command.context_settings['auto_envvar_prefix']}_"


def wrong_values(command: click.Command) -> list[str]:
    """The faults of what variables say for a command."""
    faults = list[str]()
    context = click.Context(command, **command.context_settings)
    for one in parameters_of(command).values():
        try:
            one.type_cast_value(context, one.value_from_envvar(context))
        except click.BadParameter as error:
            faults.append(f"{variable_of(command, one)}: {error.message}")
    return faults


def strays_of(command: click.Command) -> list[str]:
    """Faults of variables that begin as those of a command, and are none.

    Those of a command without variables of its own are all that are no other command's.
    """
    if "auto_envvar_prefix" in command.context_settings:
        own = [name for name in os.environ if name.startswith(prefix_of(command))]
        return strays(own, [variable_of(command, one) for one in command.params])
    return strays([name for name in ours() if not name.startswith(OF_COMMANDS)], (), command)


def strays(
    names: Collection[str], known: Collection[str], run: click.Command | None = None
) -> list[str]:
    """Faults of variables that are not among these and `VARIABLES`.

    Args:
        run: the command whose options somebody may take for variables, which they are not.
    """
    faults, others = list[str](), list[str]()
    for name in strangers(names, known):
        option = "" if run is None else _option_meant(name, run)
        if option:
            faults.append(
                f"environment: there is no {name!r}; say it with `{option}` of `rankscope run`, or "
                "in the table [agent] of a file of settings."
            )
        else:
            others.append(name)
    check_names(others, [*VARIABLES, *known], "environment", faults)
    return faults


def _option_meant(name: str, command: click.Command) -> str:
    """The option of a command that a variable may mean; empty: none is near."""
    options = {
        str(one.name): one.opts[0]
        for one in command.params
        if isinstance(one, click.Option) and not (one.envvar or one.is_flag)
    }
    return options.get(meant_by(name, options), "")
