"""Finds what a process trains: the models and their optimizers, when a forward first needs it.

Only torch is imported here: most processes that import it train nothing.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer

from .environment import OPTIONS

if TYPE_CHECKING:
    from ..agent.torch.unmodified import Training

MOST = 8
"""Models that one process observes at most."""
STEPS = 2
"""After so many steps of all that were found no more models are looked for."""
GLOBAL_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"
"""How a warning of torch's begins; our hook is gone before anything is compiled."""


def install() -> None:
    """Have models observed from their first forward that trains them on; once in a process."""
    Finder(json.loads(os.environ[OPTIONS])).install()


class Finder:
    """Asks of each module that is called whether an optimizer updates it, until all are known.

    Args:
        options: of `observe`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._optimizers = WeakSet[Optimizer]()
        self._made = 0
        """How many optimizers there have ever been."""
        self._untrained = WeakKeyDictionary[nn.Module, int]()
        """By module that no optimizer updated: how many there had been then."""
        self._known = WeakSet[nn.Module]()
        """Modules of models that are observed, or cannot be."""
        self._trainings: list[Training] = []

    def install(self) -> None:
        """Watch optimizers as they are made, and modules as they are called."""
        init = Optimizer.__init__

        @wraps(init)
        def made(optimizer: Optimizer, *arguments: Any, **keywords: Any) -> None:
            init(optimizer, *arguments, **keywords)
            self._optimizers.add(optimizer)
            self._made += 1

        setattr(Optimizer, "__init__", made)  # noqa: B010  # its parameters have other names
        warnings.filterwarnings("ignore", GLOBAL_HOOKS, UserWarning)
        self._handle = register_module_forward_pre_hook(self._called)

    def _called(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        if self._trainings and all(one.steps >= STEPS for one in self._trainings):
            self._handle.remove()  # all that is trained has been called by now
        if module in self._known or self._untrained.get(module) == self._made:
            return
        try:
            self._consider(module)
        except Exception as error:  # never into the training loop
            self._known.update(module.modules())
            tell(f"{type(module).__name__} is not observed: {_words(error)}")

    def _consider(self, module: nn.Module) -> None:
        root, optimizers = self._trained(module)
        if not optimizers:
            self._untrained[module] = self._made
            return
        self._known.update(root.modules())
        number = len(self._trainings) + 1
        # It is compiled next, and would be once more were the hook gone later.
        if _is_compiled(root) or number == MOST:
            self._handle.remove()
        agent = sys.modules.get("rankscope.agent.torch.scope")
        if agent is not None and (run := agent.observed_as(root)):
            tell(
                f"{type(root).__name__} is not observed twice: the script itself does, as run "
                f"{run!r}."
            )
            return
        from ..agent.torch.unmodified import Training

        training = Training.begin(
            root,
            optimizers,
            suffix="" if number == 1 else f"-{number}-{type(root).__name__}",
            scaler=_scaler(),
            options=self._options,
        )
        self._trainings.append(training)

    def _trained(self, module: nn.Module) -> tuple[nn.Module, list[Optimizer]]:
        """The model that a module belongs to, and what updates it."""
        if not self._updating(module):
            return module, []
        # A loop may call parts of a model, never the model itself.
        root = max(_around(module), key=_size, default=module)
        root = root if _size(root) > _size(module) else module
        return root, self._updating(root)

    def _updating(self, module: nn.Module) -> list[Optimizer]:
        own = {id(parameter) for parameter in module.parameters()}
        return [
            one
            for one in list(self._optimizers)
            if any(id(held) in own for group in one.param_groups for held in group["params"])
        ]


def tell(sentence: str) -> None:
    """Say something to who has started the process."""
    sys.stderr.write(f"rankscope: {sentence}\n")


def _words(error: Exception) -> str:
    """Our own errors are whole sentences; of others their class tells, too."""
    from ..sketch.errors import RankscopeError  # loads NumPy

    return str(error) if isinstance(error, RankscopeError) else f"{type(error).__name__}: {error}"


def _is_compiled(root: nn.Module) -> bool:
    """Whether torch.compile compiles it, or a part of it."""
    compiled = "OptimizedModule"  # importing its class would import the compiler
    return any(
        type(one).__name__ == compiled or one._compiled_call_impl is not None  # pyright: ignore[reportPrivateUsage]
        for one in root.modules()
    )


def _scaler() -> GradScaler | None:
    """The job's, if it has one that is switched on."""
    scalers = (one for one in gc.get_objects() if issubclass(type(one), GradScaler))
    return next((one for one in scalers if one.is_enabled()), None)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _around(module: nn.Module) -> Iterator[nn.Module]:
    """All modules that hold it, directly or not, as far as they train."""
    parents: dict[int, list[nn.Module]] = {}
    for one in gc.get_objects():
        if issubclass(type(one), nn.Module):
            for child in one.children():
                parents.setdefault(id(child), []).append(one)
    waiting, seen = [module], {id(module)}
    while waiting:
        for parent in parents.get(id(waiting.pop()), []):
            if id(parent) not in seen and parent.training:
                seen.add(id(parent))
                waiting.append(parent)
                yield parent
