"""The variables of the environment that say something, and whether those that are set can."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

import click

from ..settings import VARIABLE, check_names
from .options import parameters_of

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
KUBERNETES = re.compile(
    r"_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$"
)
"""How the variables end that Kubernetes sets for a service; `…_PORT` alone is an address."""


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
    """Faults of variables that begin as those of a command, and are none."""
    own = [name for name in os.environ if name.startswith(prefix_of(command))]
    return strays(own, [variable_of(command, one) for one in command.params])


def _is_of_kubernetes(name: str) -> bool:
    end = KUBERNETES.search(name)
    return end is not None and (end[0] != "_PORT" or "://" in os.environ.get(name, ""))


def strays(names: Collection[str], known: Collection[str]) -> list[str]:
    """Faults of variables that are not among these and `VARIABLES`."""
    faults = list[str]()
    ours = [name for name in names if name in known or not _is_of_kubernetes(name)]
    check_names(ours, [*VARIABLES, *known], "environment", faults)
    return faults
