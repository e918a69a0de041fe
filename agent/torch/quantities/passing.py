"""What passes through a module in one call, as quantities need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..arrivals import is_on_its_way
from ..local import local_tensor, weight_of
from ..nested import tensors_in
from .attention import logits_of
from .quantity import BY_CHANNEL
from .rows import channel_axis, channels_last


class Passing:
    """One call of a module: what it took, and what it returned."""

    def __init__(
        self,
        module: torch.nn.Module,
        positional: Sequence[Any],
        keywords: Mapping[str, Any],
        output: Any,
    ) -> None:
        self.module = module
        self._positional, self._keywords = positional, keywords
        self.input = first_tensor((*positional, keywords) if keywords else positional)
        self.output = first_tensor(output)

    def tensor(self, need: str, channels: int | None) -> Any:
        """What a quantity needs of a forward, as a plain local tensor; None: there is none.

        Args:
            channels: the axis of the channels, if it was given.

        Raises:
            ValueError: the tensor that there is cannot be read.
        """
        if need == "weight":
            return readable(weight_of(self.module))
        if need == "output_channel_axis":
            return None if self.output is None else channel_axis(self.module, self.output, channels)
        if need in ("logits", "probabilities"):
            return self._attention(need)
        found = real(self.input if need.startswith("input") else self.output)
        return laid_out(self.module, found, need, channels)

    def _attention(self, need: str) -> torch.Tensor | None:
        if not isinstance(self.module, torch.nn.MultiheadAttention):
            if need == "logits" and next(self.module.parameters(), None) is not None:
                raise ValueError(
                    f"what a {type(self.module).__name__} takes are no logits, for it has "
                    "parameters; ask for the torch.nn.Softmax in it"
                )
            return real(self.input if need == "logits" else self.output)
        logits = logits_of(self.module, self._positional, self._keywords)
        return logits if need == "logits" else logits.softmax(-1)


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor in what a module takes or returns."""
    return next((tensor for _, tensor in tensors_in(value)), None)


def readable(tensor: Any) -> torch.Tensor | None:
    """A plain local tensor; None where there is none.

    Raises:
        ValueError: there is one, of a kind that cannot be read.
    """
    if not isinstance(tensor, torch.Tensor):
        return None
    piece = local_tensor(tensor)
    if piece is None and is_on_its_way(tensor):
        raise ValueError(
            "it is still on its way from other ranks; ask for the module that takes it"
        )
    if piece is None:
        kind = type(getattr(tensor, "_local_tensor", tensor)).__name__
        raise ValueError(f"a {kind} of {tensor.dtype} on {tensor.device} cannot be read")
    return piece


def real(tensor: Any) -> torch.Tensor | None:
    """The same, of real numbers: of complex ones only the parts are at hand.

    Raises:
        ValueError: there is a tensor that cannot be read, or a complex one.
    """
    if isinstance(tensor, torch.Tensor) and tensor.is_complex():
        raise ValueError(f"it is of {str(tensor.dtype).removeprefix('torch.')}, and is not read")
    return readable(tensor)


def laid_out(
    module: torch.nn.Module, tensor: torch.Tensor | None, need: str, channels: int | None
) -> torch.Tensor | None:
    """The tensor itself, or with its channels last where that is needed."""
    if tensor is None or not need.endswith(BY_CHANNEL):
        return tensor
    return channels_last(tensor, channel_axis(module, tensor, channels))
