"""What a step changes of each weight: new less old, computed where the step ends.

Weights are copied just before the first update of the step, in steps in which updates are due, and
in no others: the copies become the differences, and nothing is held from step to step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from .local import local_tensor

KIND = "update"


class Updates:
    """Copies of the weights that the open step may change."""

    def __init__(self) -> None:
        self._before: dict[torch.nn.Parameter, torch.Tensor] = {}

    def keep(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Copy weights that are about to change; those that are kept already stay as they were.

        Of 16 bits or fewer they are kept in float32, where the difference of two that are not equal
        is never zero. What holds no floating-point numbers, or wraps them, is left out.
        """
        for parameter in parameters:
            if parameter not in self._before and local_tensor(parameter) is not None:
                self._before[parameter] = _copy_of(parameter)

    def forget(self) -> None:
        """Give up the copies."""
        self._before.clear()

    def take(self) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """By parameter what the step has added to it; its copy is used up."""
        kept, self._before = self._before, {}
        for parameter, before in kept.items():
            yield parameter, before.neg_().add_(parameter.detach())


def _copy_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    is_narrow = parameter.dtype.itemsize < torch.float32.itemsize
    return parameter.detach().to(torch.float32 if is_narrow else parameter.dtype, copy=True)
