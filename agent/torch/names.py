"""Canonical names: what a module or parameter is called without the wrappers around it."""

from __future__ import annotations

from collections import defaultdict

import torch

ROOT = "(root)"
"""The name of the observed module itself."""

_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


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


def canonical(name: str) -> str:
    """A dotted name without the parts that wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS) or ROOT


def named_modules(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """(canonical name, module) of every module that can be called, wrappers left out."""
    return [
        (canonical(name), module)
        for name, module in unwrapped(model).named_modules()
        if not any(hasattr(module, wrapper) for wrapper in _WRAPPERS)
    ]


def named_parameters(
    model: torch.nn.Module,
) -> dict[torch.nn.Parameter, tuple[str, tuple[str, ...]]]:
    """Each parameter once: its canonical name, and its other names where weights are tied."""
    names: dict[torch.nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in unwrapped(model).named_parameters(remove_duplicate=False):
        names[parameter].append(canonical(name))
    return {parameter: (all_[0], tuple(all_[1:])) for parameter, all_ in names.items()}
