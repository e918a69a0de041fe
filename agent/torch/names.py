"""Canonical names: what a module or parameter is called without the wrappers around it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

import torch

from ...sketch.errors import SettingError

ROOT = "(root)"
"""The name of the observed module itself."""

Rename = str | Callable[[re.Match[str]], str]
"""What a match of a regular expression in a name is replaced by, as of `re.sub`."""

_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


class Names:
    """The names of the modules and parameters of a model, in the whole job.

    Args:
        model: the observed root, with its wrappers.
        rename: by regular expression, what to replace it by: of one part of a model, as a pipeline
            stage or some of the experts, the numbers in the whole.

    Raises:
        SettingError: a pattern is no regular expression, or two things get one name.
    """

    def __init__(self, model: torch.nn.Module, rename: Mapping[str, Rename] | None = None) -> None:
        self._model, self._rename = unwrapped(model), _compiled(rename or {})
        self.root = ROOT
        """What the observed module itself is called."""
        for named in (
            [name for name, _ in self.modules()],
            [name for names in self._by_parameter().values() for name in set(names)],
        ):
            name, times = Counter(named).most_common(1)[0]
            if times > 1:
                raise SettingError(f"`rename` calls {times} things {name!r}; names must differ.")

    def modules(self) -> list[tuple[str, torch.nn.Module]]:
        """(name, module) of every module that can be called, wrappers left out."""
        return [
            (self._name(name), module)
            for name, module in self._model.named_modules()
            if not any(hasattr(module, wrapper) for wrapper in _WRAPPERS)
        ]

    def parameters(self) -> dict[torch.nn.Parameter, tuple[str, tuple[str, ...]]]:
        """Each parameter once: its name, and its other names where weights are tied."""
        every = self._by_parameter()
        return {parameter: (names[0], tuple(names[1:])) for parameter, names in every.items()}

    def _by_parameter(self) -> dict[torch.nn.Parameter, list[str]]:
        names: dict[torch.nn.Parameter, list[str]] = defaultdict(list)
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            names[parameter].append(self._name(name))
        return names

    def _name(self, raw: str) -> str:
        name = ".".join(part for part in raw.split(".") if part not in _WRAPPERS)
        for pattern, replacement in self._rename:
            try:
                name = pattern.sub(replacement, name)
            except (re.error, TypeError) as error:
                raise SettingError(
                    f"rename[{pattern.pattern!r}] cannot replace anything in {name!r}: {error}."
                ) from None
        return name or self.root


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The user's module inside DistributedDataParallel, DataParallel and torch.compile."""
    parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while True:
        if isinstance(model, parallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod  # pyright: ignore[reportAssignmentType]  # a compiled module
        else:
            return model


def _compiled(rename: Mapping[str, Rename]) -> list[tuple[re.Pattern[str], Rename]]:
    try:
        return [(re.compile(pattern), replacement) for pattern, replacement in rename.items()]
    except re.error as error:
        raise SettingError(
            f"rename={error.pattern!r} is not a regular expression: {error}."
        ) from None
