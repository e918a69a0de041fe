"""What is asked for, in Taiyi's shape: by module, quantities and their schedules.

    {"Linear": ["input_cov_max_eig", ["rank_me", "linear(10, 0)"]], nn.BatchNorm2d: "mean_tid"}

Keys are names of modules or parameters, names of classes, or classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from ....settings import read_toml
from ....sketch.errors import SettingError
from ...schedule import Schedule, Scheduled, schedule_of
from ...selection import RankscopeWarning
from ..names import Names
from .quantity import Quantity
from .registry import named, near_names
from .sketched import kinds_of

OF_PARAMETERS = frozenset({"weight", "weight_gradient", "local_weight_gradient", "update"})
"""Kinds of tensors that parameters have."""

Asked = str | Quantity
"""A quantity: its name, with options where there are some."""
Entry = Asked | Sequence[Asked | Scheduled]
"""A quantity, or one with its schedule."""
Configuration = Mapping[Any, Entry | Sequence[Entry]] | str | Path
"""By module what is computed of it; or the path of a TOML file with a table `quantities`."""


@dataclass(frozen=True, slots=True)
class Order:
    """One quantity of one module or parameter."""

    name: str
    module: torch.nn.Module | None
    """None where it is of a parameter that was named."""
    parameter: torch.nn.Parameter | None
    """What is named, or the module's `weight`."""
    quantity: Quantity
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class Orders:
    """All that is asked for."""

    orders: list[Order]
    kinds: dict[str, Schedule]
    """Kinds of tensors whose sketches say what is asked for, at no further pass."""


@dataclass(frozen=True, slots=True)
class _Things:
    """What a model has that a key may name; looked up once, for a model may be large."""

    modules: dict[str, torch.nn.Module]
    second_names: dict[str, str]
    """By a further name of a module that under which it is known."""
    parameters: dict[str, torch.nn.Parameter]

    @classmethod
    def of(cls, names: Names) -> _Things:
        """Those of a model."""
        parameters = {
            name: one
            for one, (first, more) in names.parameters().items()
            for name in (first, *more)
        }
        return cls(dict(names.modules()), names.second_names(), parameters)

    @property
    def names(self) -> list[str]:
        """All that is a name, and no class."""
        return [*self.modules, *self.second_names, *self.parameters]


def orders_of(configuration: Configuration, names: Names, *, is_part: bool) -> Orders:
    """What a configuration asks for of a model.

    Of one quantity of one module the entry under the module's own name counts, else the last.

    Args:
        is_part: whether other ranks hold other modules, so that a name may be theirs.

    Raises:
        SettingError: a module, class, quantity, option or schedule does not exist.
    """
    found: dict[tuple[str, str], Order] = {}
    kinds: dict[str, list[Schedule]] = {}
    entries = list(_table_of(configuration).items())
    things = _Things.of(names)
    own = set(things.names)
    for by_name in (False, True):
        for key, asked in entries:
            if (isinstance(key, str) and key in own) is not by_name:
                continue
            modules, parameter = _meant(key, things, is_part=is_part)
            for text, schedule in _entries(key, asked):
                needed = kinds_of(text)
                if needed and parameter is not None and not OF_PARAMETERS.issuperset(needed):
                    raise _is_of_modules(str(text), key)
                for kind in needed:
                    kinds.setdefault(kind, []).append(schedule)
                if needed:
                    continue
                quantity = named(text) if isinstance(text, str) else text
                for order in _orders(key, modules, parameter, quantity, schedule):
                    found[order.name, quantity.label] = order
    return Orders(
        list(found.values()), {kind: _any_of(schedules) for kind, schedules in kinds.items()}
    )


def _table_of(configuration: Configuration) -> Mapping[Any, Any]:
    given: Any = configuration
    if isinstance(given, str | Path):
        given = read_toml(Path(given))
        if not isinstance(given.get("quantities"), Mapping):
            raise SettingError("The TOML file of `quantities` must have a table [quantities].")
    if not isinstance(given, Mapping):
        raise SettingError(
            "`quantities` must be lists of quantities by module, as {'Linear': ['rank_me']}, or "
            f"the path of a TOML file; got {str(given)[:80]}."
        )
    inner: Any = given.get("quantities")
    return inner if len(given) == 1 and isinstance(inner, Mapping) else given


def _entries(key: Any, asked: Any) -> Iterator[tuple[Asked, Schedule]]:
    """(quantity, schedule) of each entry under a key."""
    entries: Any = [asked] if isinstance(asked, str | Quantity) else asked
    if not isinstance(entries, Sequence) or isinstance(entries, bytes):
        raise SettingError(f"quantities[{key!r}] must be a list of quantities, got {asked!r}.")
    for before, entry in zip(("rank_me", *entries), entries, strict=False):
        schedule: Any = 1
        match entry:
            case str() if _is_schedule(entry):
                raise SettingError(
                    f"quantities[{key!r}] has {entry!r}, which is a schedule and no quantity; a "
                    f"quantity and its schedule are a list of their own: [[{before!r}, {entry!r}]]."
                )
            case str() | Quantity() as first:
                pass
            case [str() | Quantity() as first]:
                pass
            case [str() | Quantity() as first, schedule]:
                pass
            case _:
                raise SettingError(
                    f"quantities[{key!r}] has {entry!r}; write a quantity as 'rank_me', or "
                    "['rank_me', 'linear(10, 0)'] for one with its schedule."
                )
        whose = f"{first if isinstance(first, str) else first.label} of {key}"
        yield first, schedule_of(schedule, Schedule(), whose)


def _is_schedule(text: str) -> bool:
    """Whether a text is a schedule, and not also a quantity that somebody called so."""
    try:
        Schedule.parse(text)
    except SettingError:
        return False
    return text.partition("(")[0].strip() not in near_names()


def _meant(
    key: Any, things: _Things, *, is_part: bool
) -> tuple[dict[str, torch.nn.Module], torch.nn.Parameter | None]:
    """The modules that a key chooses, by name, or the parameter.

    Raises:
        SettingError: there is nothing of that name or class.
    """
    modules = things.modules
    if isinstance(key, str):
        if key in modules:
            return {key: modules[key]}, None
        if key in things.parameters:
            return {}, things.parameters[key]
        if key in things.second_names:
            first = things.second_names[key]
            return {first: modules[first]}, None
    is_of = _tells(key)
    chosen = {name: module for name, module in modules.items() if is_of(module)}
    if not chosen:
        _not_found(key, things, is_part=is_part)
    return chosen, None


def _orders(
    key: Any,
    modules: Mapping[str, torch.nn.Module],
    parameter: torch.nn.Parameter | None,
    quantity: Quantity,
    schedule: Schedule,
) -> Iterator[Order]:
    if parameter is not None and not quantity.is_of_parameters:
        raise _is_of_modules(quantity.label, key)
    if parameter is not None:
        yield Order(key, None, parameter, quantity, schedule)
    for name, module in modules.items():
        weight = dict(module.named_parameters(recurse=False)).get("weight")
        yield Order(name, module, weight, quantity, schedule)


def _is_of_modules(label: str, key: Any) -> SettingError:
    return SettingError(f"{label} is of modules, and {key!r} is a parameter; name its module.")


def _tells(key: Any) -> Callable[[torch.nn.Module], bool]:
    """Whether a module is of the class that is meant."""
    if isinstance(key, type):
        return lambda module: isinstance(module, key)
    return lambda module: type(module).__name__ == key


def _not_found(key: Any, things: _Things, *, is_part: bool) -> None:
    text = key.__name__ if isinstance(key, type) else str(key)
    classes = sorted({type(module).__name__ for module in things.modules.values()})
    near = get_close_matches(text, [*things.names, *classes], n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(classes)}."
    sentence = f"No module, parameter or class of the model is {text!r} in `quantities`; {hint}"
    if not is_part:
        raise SettingError(sentence)
    warnings.warn(sentence, RankscopeWarning, stacklevel=2)


def _any_of(schedules: Sequence[Schedule]) -> Schedule:
    """The steps of any of them."""
    first, *others = schedules
    if all(other == first for other in others):
        return first
    return Schedule(when=lambda step: any(schedule.due(step) for schedule in schedules))
