"""A callback's observation: begun, stepped and ended as the library's training loop says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import torch

from .observing import observe
from .scope import Scope


class LoopCallback:
    """What the callbacks of all libraries share.

    A loop that ran before, and was never ended, is ended when the next begins.

    Args:
        options: those of `observe`, but for what the loop knows: model, optimizer, `start` and
            `scaler`.

    Raises:
        TypeError: an option is none of these.
    """

    # `Any`: the types are those of `observe`, which has them all.
    def __init__(self, **options: Any) -> None:
        super().__init__()
        signature(observe).bind(None, None, start=0, scaler=None, **options)
        self._options = options
        self.scope: Scope | None = None
        """That of the training that runs; None before and after it."""

    # `Any`: libraries do not say what their scaler is.
    def _begin(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        start: int,
        scaler: Any,
    ) -> None:
        """Observe from now on; `start` is the number of the first step.

        Raises:
            SettingError: `observe` cannot use an option.
        """
        self._end(RuntimeError("the loop was left, and another began"))
        scope = observe(model, optimizer, start=start, scaler=scaler, **self._options)
        self.scope = scope.__enter__()

    def _step(self, numbers: Mapping[str, float | torch.Tensor]) -> None:
        """Close the step that is open, with these numbers, and begin the next."""
        if self.scope is not None:
            self.scope.step(**numbers)

    def _end(self, error: BaseException | None = None) -> None:
        """Observe no longer; `error` is what ended the loop, None if it ended well."""
        scope, self.scope = self.scope, None
        if scope is not None:
            scope.__exit__(type(error) if error else None, error, None)
