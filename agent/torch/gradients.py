"""The hook that has a tensor's gradient read when backward reaches it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.weak import TensorWeakRef

from .eager import eager


class GradientHook:
    """Calls a function with each gradient of the tensor that it is on, unless there is none.

    A function of the user's may give None in its backward. Zero-bubble pipelines send the same
    gradient through once more, for the weights: it counts once.
    """

    __slots__ = ("_arrives", "_seen")
    __torch_unserializable__ = True  # else torch warns when the tensor is saved

    def __init__(self, arrives: Callable[[torch.Tensor], None]) -> None:
        self._arrives = arrives
        self._seen: TensorWeakRef | None = None

    @eager
    def __call__(self, gradient: torch.Tensor | None) -> None:
        """What torch calls."""
        if gradient is None or (self._seen is not None and self._seen() is gradient):
            return
        self._seen = TensorWeakRef(gradient)
        self._arrives(gradient)
