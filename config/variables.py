"""Whether the variables that are set for commands say something."""

from __future__ import annotations

import os

import click

from ..agent.settings import faults_of_strangers
from ..settings import OF_COMMANDS, ours
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
        known = [variable_of(command, one) for one in command.params]
        return faults_of_strangers(own, known)
    return faults_of_strangers([name for name in ours() if not name.startswith(OF_COMMANDS)])
