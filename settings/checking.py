"""Whether a table holds what it may, by the fields of a msgspec Struct."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec.structs import fields

from ..sketch.errors import RankscopeError

Settings = TypeVar("Settings", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Read:
    """Beside a field's type, in its annotation: what else reads the value, and may refuse it."""

    by: Callable[[Any], object]
    """Raises a RankscopeError that tells what is wrong."""


def settings_of(said: Any, kind: type[Settings], where: str, faults: list[str]) -> Settings | None:
    """A table as a Struct; None if it has faults, which are added to the list.

    Args:
        kind: its fields are the names that the table may have, with their types, see `Read`.
        where: what the table is called in a fault.
    """
    if not isinstance(said, Mapping):
        faults.append(f"{where} is a table of settings, got {said!r}.")
        return None
    before = len(faults)
    known = {field.encode_name: field for field in fields(kind)}
    check_names(said, known, where, faults)
    for name, field in known.items():
        if name in said:
            fault = fault_of(said[name], field.type)
            told = f"{name} {fault}" if fault else _refusal(said[name], field.type)
            faults += [f"{where}: {told}"] if told else []
        elif field.required:
            faults.append(f"{where}: {name} is missing.")
    if len(faults) > before:
        return None
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:  # what its fields say is wrong together
        faults.append(f"{where}: {error}")
        return None


def given(settings: msgspec.Struct) -> dict[str, Any]:
    """What was said of a Struct whose fields may be left out, by name."""
    said = msgspec.structs.asdict(settings)
    return {name: value for name, value in said.items() if value is not msgspec.UNSET}


def check_names(
    said: Collection[str], known: Collection[str], where: str, faults: list[str]
) -> None:
    """Add a fault for each name that is not known, with near ones, or all if none is near."""
    for name in said:
        if name not in known:
            near = get_close_matches(name, known, n=3, cutoff=0.4)
            could = f"did you mean {' or '.join(near)}?" if near else _all_of(known)
            faults.append(f"{where}: there is no {name!r}; {could}")


def _all_of(known: Collection[str]) -> str:
    return f"there are {', '.join(sorted(known))}."


def fault_of(value: Any, kind: Any) -> str:
    """Why a value is not of a type, to be read after its name; empty if it is."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        expected, _, _ = str(error).partition(" - at `")
        choices = _choices(kind)
        if expected.startswith("Invalid enum value") and choices:
            wrong = [one for one in _said_in(value) if one not in choices]
            near = [get_close_matches(str(one), choices, n=1) for one in wrong]
            could = f" Did you mean {' and '.join(one for (one,) in near)}?" if all(near) else ""
            return f"is one of {', '.join(choices)}, got {', '.join(map(repr, wrong))}.{could}"
        return f"cannot be {value!r}: {expected[:1].lower()}{expected[1:]}."
    return ""


def _refusal(value: Any, kind: Any) -> str:
    """Why what reads a value of this type does not take it; empty if it does."""
    try:
        for one in _reading(kind):
            one.by(value)
    except RankscopeError as error:
        return str(error)
    return ""


def _reading(kind: Any) -> Iterator[Read]:
    for one in (kind, *get_args(kind)):
        yield from (beside for beside in getattr(one, "__metadata__", ()) if type(beside) is Read)


def _said_in(value: Any) -> list[Any]:
    """What a value says, if it says several things: the elements of a list, the keys of a table."""
    return list(value) if isinstance(value, list | dict) else [value]


def _choices(kind: Any) -> tuple[str, ...]:
    """What a type may be, if there is a Literal in it."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    found = (_choices(inner) for inner in get_args(kind))
    return next(filter(None, found), ())
