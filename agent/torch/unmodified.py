"""A training whose script says nothing of rankscope: its steps end where its optimizers say so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..selection import RankscopeWarning
from ..settings import run_name
from .observing import observe
from .scope import Scope


class Training:
    """One model under observation, from the first forward that trains it to the process's end.

    A step ends after the update. Of several optimizers it ends when each has updated, or before
    one does for the second time. Where a GradScaler leaves the update out, it ends with
    `GradScaler.update()`.

    Args:
        scope: that of the model.
        optimizers: how many update it.
    """

    def __init__(self, scope: Scope, optimizers: int) -> None:
        self._scope, self._optimizers = scope, optimizers
        self._updated = set[int]()
        """By identity the optimizers that have updated in the step that is open."""
        self._has_ended = False
        """Whether a step has ended since the scaler was updated."""
        self.steps = 0
        """Those that have ended."""

    @classmethod
    def begin(
        cls,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        suffix: str,
        scaler: GradScaler | None,
        options: Mapping[str, Any],
    ) -> Training:
        """Observe a model from the forward on that is about to begin.

        Args:
            model: with its wrappers.
            optimizers: all that update it.
            suffix: what is added to the name of the run.
            scaler: the job's, if it has one.
            options: further ones of `observe`.

        Raises:
            RankscopeError: it cannot be observed.
        """
        name = run_name(None) + suffix
        with warnings.catch_warnings():  # it is compiled, but has not run so in training
            warnings.filterwarnings("ignore", "The model is compiled already", RankscopeWarning)
            scope = observe(model, optimizers, run=name, scaler=scaler, **options)
        training = cls(scope, len(optimizers))
        scope.__enter__()
        # Of all optimizers: those come before an optimizer's own, so that the scope sees an update
        # in the step that it begins, and may put its hooks on and off meanwhile.
        register_optimizer_step_pre_hook(training._updates)
        scope.ends_with_process = True
        for one in optimizers:
            one.register_step_post_hook(training._has_updated)
        if scaler is not None:
            _call_after(scaler, "update", training._has_scaled)
        scope.begin_forward()
        return training

    def _updates(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if id(optimizer) in self._updated:
            self._end_step()

    def _has_updated(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._updated.add(id(optimizer))
        if len(self._updated) == self._optimizers:
            self._end_step()

    def _has_scaled(self) -> None:
        if self._updated or not self._has_ended:
            self._end_step()
        self._has_ended = False

    def _end_step(self) -> None:
        self._updated.clear()
        self._has_ended = True
        self._scope.step()
        self.steps += 1


def _call_after(owner: object, name: str, call: Callable[[], None]) -> None:
    """Have `call` called after each call of a method of one object."""
    method = getattr(owner, name)

    @wraps(method)
    def both(*arguments: Any, **keywords: Any) -> Any:
        result = method(*arguments, **keywords)
        call()
        return result

    setattr(owner, name, both)
