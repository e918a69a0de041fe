"""What stands for a PopTorch model in a training loop that is observed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TrainingModel:
    """A `poptorch.PoplarExecutor` whose anchored tensors are read after each call.

    All else is the executor's own: `model.getTensorNames()`, `model.save(path)`.

    Args:
        executor: the `poptorch.PoplarExecutor`.
        has_run: given what a call has returned, reads what it has made; returns what of it is the
            user's.
        has_optimizer: told of an optimizer that takes the place of the one before.
    """

    def __init__(
        self,
        executor: Any,
        has_run: Callable[[Any], Any],
        has_optimizer: Callable[[Any], object],
    ) -> None:
        self._executor = executor
        self._has_run, self._has_optimizer = has_run, has_optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_executor"], name)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """What the model returns."""
        return self._has_run(self._executor(*inputs, **named))

    def setOptimizer(self, optimizer: Any) -> None:
        """As of PoplarExecutor; its hyper-parameters are recorded from now on."""
        self._executor.setOptimizer(optimizer)
        self._has_optimizer(optimizer)
