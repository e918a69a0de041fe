"""Canonical names: what a module or parameter is called without the wrappers around it."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ...sketch.errors import SettingError
from .megatron import LOCAL_EXPERTS, is_of_expert
from .stages import NumberedStage

ROOT = "(root)"
"""The name of the observed module itself."""

Rename = str | Callable[[re.Match[str]], str]
"""What a match of a regular expression in a name is replaced by, as of `re.sub`."""

_LOCAL_EXPERT = re.compile(rf"(?<=\b{LOCAL_EXPERTS}\.)\d+")
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


class Names:
    """The names of the modules and parameters of a model, in the whole job.

    Args:
        stages: what is observed, with its wrappers; a model that is not cut is one.
        rename: by regular expression, what to replace it by: of one part of a model, as a pipeline
            stage or some of the experts, the numbers in the whole.

    Raises:
        SettingError: a pattern is no regular expression, or two things get one name.
    """

    def __init__(
        self, stages: Sequence[NumberedStage], rename: Mapping[str, Rename] | None = None
    ) -> None:
        self.roots = [module for module, _ in stages]
        """The modules whose forward is called."""
        self._numbers = [number for _, number in stages]
        self._parts, self._rename = list(map(unwrapped, self.roots)), _compiled(rename or {})
        self._prefixes = [
            f"stage{number}." if number and not rename and _counts_from_0(part) else ""
            for part, number in zip(self._parts, self._numbers, strict=True)
        ]
        """By part what its names begin with, where they would be those of another stage."""
        self._first_expert = 0
        self.number_stages(0, 1)
        for named in (
            [name for name, _ in self.modules()],
            [name for names in self._by_parameter().values() for name in set(names)],
        ):
            _check_that_they_differ(named, is_one=len(self.roots) == 1)

    @property
    def whole(self) -> torch.nn.Module:
        """All that is observed, in one module."""
        return self.roots[0] if len(self.roots) == 1 else torch.nn.ModuleList(self.roots)

    def number_stages(self, coordinate: int, size: int) -> None:
        """Say where this rank is among the `size` ranks of a pipeline, for the roots' own names.

        Stages that do not know their number are dealt out in turn, as interleaved schedules do.
        """
        self._root_names = [
            f"(stage {coordinate + place * size if number is None else number})"
            if number is not None or size > 1 or len(self.roots) > 1
            else ROOT
            for place, number in enumerate(self._numbers)
        ]

    def number_experts(self, coordinate: int) -> None:
        """Say where this rank is among those that Megatron has spread experts over.

        They have their numbers in the whole then, unless `rename` is about them.
        """
        named = [pair for part in self._parts for pair in part.named_modules()]
        lists = [(name, module) for name, module in named if name.endswith(LOCAL_EXPERTS)]
        is_renamed = any(rule.search(f"{name}.0.") for rule, _ in self._rename for name, _ in lists)
        if not is_renamed and any(is_of_expert(one) for _, m in lists for one in m.parameters()):
            here = max(len(list(module.children())) for _, module in lists)
            self._first_expert = coordinate * here

    def modules(self) -> list[tuple[str, torch.nn.Module]]:
        """(name, module) of every module that can be called, wrappers left out.

        A stage's number is in the names that several stages have: each is a part of the whole's.
        """
        seen = set[torch.nn.Module]()
        found = [
            [
                (self._name(name, prefix), module)
                for name, module in part.named_modules(seen)
                if not any(hasattr(module, wrapper) for wrapper in _WRAPPERS)
            ]
            for part, prefix in self._prefixed()
        ]
        times = Counter(name for named in found for name in dict(named))
        return [
            (name if name and times[name] == 1 else f"{name} {root}".lstrip(), module)
            for root, named in zip(self._root_names, found, strict=True)
            for name, module in named
        ]

    def second_names(self) -> dict[str, str]:
        """By a further name of a module that is in several places, that under which it is known."""
        first = {module: name for name, module in self.modules()}
        every = [
            (self._name(name, prefix), module)
            for part, prefix in self._prefixed()
            for name, module in part.named_modules(remove_duplicate=False)
        ]
        known = {*first.values(), ""}
        return {name: first[one] for name, one in every if one in first and name not in known}

    def parameters(self) -> dict[torch.nn.Parameter, tuple[str, tuple[str, ...]]]:
        """Each parameter once: its name, and its other names where weights are tied."""
        every = self._by_parameter()
        return {parameter: (names[0], tuple(names[1:])) for parameter, names in every.items()}

    def _by_parameter(self) -> dict[torch.nn.Parameter, list[str]]:
        names: dict[torch.nn.Parameter, list[str]] = defaultdict(list)
        for part, prefix in self._prefixed():
            for name, parameter in part.named_parameters(remove_duplicate=False):
                names[parameter].append(self._name(name, prefix))
        return names

    def _prefixed(self) -> Iterator[tuple[torch.nn.Module, str]]:
        return zip(self._parts, self._prefixes, strict=True)

    def _name(self, raw: str, prefix: str) -> str:
        name = ".".join(part for part in raw.split(".") if part not in _WRAPPERS)
        name = prefix + name if name else name
        for pattern, replacement in self._rename:
            try:
                name = pattern.sub(replacement, name)
            except (re.error, TypeError) as error:
                raise SettingError(
                    f"rename[{pattern.pattern!r}] cannot replace anything in {name!r}: {error}."
                ) from None
        if self._first_expert:
            return _LOCAL_EXPERT.sub(lambda at: str(int(at[0]) + self._first_expert), name)
        return name


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The user's module inside DistributedDataParallel, DataParallel, DeepSpeed, torch.compile."""
    deepspeed: Any = sys.modules.get("deepspeed.runtime.engine")
    parallel: tuple[Any, ...] = (
        *(torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel),
        *([] if deepspeed is None else [deepspeed.DeepSpeedEngine]),
    )
    while True:
        if isinstance(model, parallel):
            model = model.module  # pyright: ignore[reportAssignmentType]  # it is one
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod  # pyright: ignore[reportAssignmentType]  # a compiled module
        else:
            return model


def _counts_from_0(part: torch.nn.Module) -> bool:
    """Whether all its lists of layers begin at 0, as those of a whole model do."""
    lowest = dict[str, int]()
    for name, _ in part.named_modules():
        within, _, last = name.rpartition(".")
        if last.isdecimal():
            lowest[within] = min(int(last), lowest.get(within, int(last)))
    return bool(lowest) and not any(lowest.values())


def _check_that_they_differ(names: Sequence[str], *, is_one: bool) -> None:
    for name, times in Counter(names).most_common(1):
        if times > 1 and is_one:
            raise SettingError(f"`rename` calls {times} things {name!r}; names must differ.")
        if times > 1:
            raise SettingError(
                f"{times} things in these stages are called {name!r}; names must differ. Let "
                "each stage keep the names of the whole model, as `ModuleDict({'4': layer})`."
            )


def _compiled(rename: Mapping[str, Rename]) -> list[tuple[re.Pattern[str], Rename]]:
    try:
        return [(re.compile(pattern), replacement) for pattern, replacement in rename.items()]
    except re.error as error:
        raise SettingError(
            f"rename={error.pattern!r} is not a regular expression: {error}."
        ) from None
