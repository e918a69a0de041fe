"""What a table of settings for a command may hold: its options, and what they are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import click
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from ..settings import check_names, fault_of


def settings_struct(command: click.Command) -> type[Struct]:
    """A Struct with a field for each option and argument of a command, which may be left out."""
    fields = [
        (name, Annotated[_type_of(one), Meta(description=_told(one))] | UnsetType, UNSET)
        for name, one in parameters_of(command).items()
    ]
    return defstruct(str(command.name), fields, kw_only=True, forbid_unknown_fields=True)


def parameters_of(command: click.Command) -> dict[str, click.Parameter]:
    """By the name that it has in a file, each option and argument of a command."""
    return {str(one.name): one for one in command.params}


def check_options(said: Any, command: click.Command, where: str) -> list[str]:
    """The faults of a table of settings for a command."""
    if not isinstance(said, dict):
        return [f"{where} is a table of settings, got {said!r}."]
    faults = list[str]()
    known = parameters_of(command)
    check_names(said, known, where, faults)
    context = click.Context(command)
    for name in [name for name in said if name in known]:
        fault = fault_of(said[name], _type_of(known[name]))
        if fault:
            faults.append(f"{where}: {name} {fault}")
            continue
        try:
            known[name].type_cast_value(context, said[name])
        except click.BadParameter as error:
            faults.append(f"{where}: {name} cannot be {said[name]!r}: {error.message}")
    return faults


def _told(parameter: click.Parameter) -> str:
    said = getattr(parameter, "help", None)
    return said or f"The argument {parameter.human_readable_name} of the command."


def _type_of(parameter: click.Parameter) -> Any:
    """As TOML has it."""
    one = _type_of_one(parameter.type)
    return list[one] if parameter.multiple else one


def _type_of_one(kind: click.ParamType) -> Any:
    match kind:
        case click.Choice():
            return Literal[tuple(kind.choices)]
        case click.IntRange():
            return Annotated[int, Meta(ge=kind.min, le=kind.max)]
        case click.FloatRange():
            limits = Meta(gt=kind.min) if kind.min_open else Meta(ge=kind.min)
            return Annotated[float, limits, Meta(le=kind.max)]
        case _:
            plain = {"boolean": bool, "integer": int, "float": float, "size": int | str}
            return plain.get(kind.name, str)
