"""Forwards without gradients of a model that is trained by them: they are no part of a step.

So tokens are generated, and so a model is its own reference, with its adapters off. Inside of a
forward grad mode does not tell: activation checkpointing has it off, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .nested import tensors_in


class Apart:
    """Whether such a forward runs."""

    def __init__(self) -> None:
        self._trains = False
        """Whether there was a forward with gradients; a job may train without any."""
        self._running: torch.nn.Module | None = None
        """The outermost module that was called for it."""

    def trains(self) -> None:
        """A forward with gradients begins."""
        self._trains = True
        self._running = None  # one that an error has ended

    def begins(self, module: torch.nn.Module, inputs: Any) -> None:
        """The forward of a whole model begins, or of what is wrapped in it."""
        if torch.is_grad_enabled() or not self._trains or self._running is not None:
            return
        # A whole model may be checkpointed: its input has a gradient then.
        if not any(tensor.requires_grad for _, tensor in tensors_in(inputs)):
            self._running = module

    def ends(self, module: torch.nn.Module) -> None:
        """It ends; where an error has ended it nobody says so."""
        if self._running is module:
            self._running = None

    def __bool__(self) -> bool:
        return self._running is not None and not torch.is_grad_enabled()


def wrapped_in(root: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The modules in it that have all of its parameters: what generates may call one of them."""
    own = set(map(id, root.parameters()))
    for module in root.children():
        takes_hooks = not isinstance(module, torch.jit.ScriptModule)
        if takes_hooks and own == set(map(id, module.parameters())):
            yield module
            yield from wrapped_in(module)
