"""A model with a function of the user's own in it, whose backward leaves a gradient out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Gate(torch.autograd.Function):
    """Gives its first argument no gradient, as functions of users' own may."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.detach() * y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, gradients[0]


class Gated(nn.Module):
    """What `gate` returns gets no gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of [samples, width]."""
        out: torch.Tensor = Gate.apply(self.gate(x), self.value(x))  # pyright: ignore
        return out
