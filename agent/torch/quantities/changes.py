"""What changes from one step to the next: signs of weights, directions of gradients and updates."""

from __future__ import annotations

import torch

from .registry import add_alias, quantity
from .rows import CHUNK


@quantity("weight_sign_changes", needs=["weight", "previous:weight"], merge="sum")
def weight_sign_changes(weight: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The number of weights whose sign is another than in the step before; Taiyi's WeightParamJump.

    From or to 0 is no change. A copy of the weight is held from the step before one in which it is
    due. Pieces of a weight add up. Many, and in every step: the learning rate makes weights jump
    over 0 and back.
    """
    return (torch.sign(weight) * torch.sign(before) < 0).sum()


add_alias("WeightParamJump", "weight_sign_changes")


def products(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """float64 [3]: a.b, a.a and b.b, of which a cosine is made once ranks are merged."""
    sums = torch.zeros(3, dtype=torch.float64, device=one.device)
    parts = (tensor.reshape(-1).split(CHUNK) for tensor in (one, other))
    for narrow in zip(*parts, strict=True):
        a, b = (part.to(torch.float64) for part in narrow)
        sums += torch.stack([torch.dot(a, b), torch.dot(a, a), torch.dot(b, b)])
    return sums


@quantity(
    "weight_gradient_cosine",
    needs=["weight_gradient", "previous:weight_gradient"],
    merge="sum",
    statistic="cosine",
)
def weight_gradient_cosine(gradient: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The cosine between a weight's gradient and that of the step before, from -1 to 1.

    Gradients as the optimizer sees them. A copy is held from the step before one in which it is
    due. Exact over pieces of a weight. About 0 where noise rules; near 1 the steps could be larger;
    well below 0, step after step, the weight swings to and fro, and the learning rate is too large.
    """
    return products(gradient, before)


@quantity("update_cosine", needs=["update", "previous:update"], merge="sum", statistic="cosine")
def update_cosine(update: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The cosine between what a step adds to a weight and what the step before added, from -1 to 1.

    With momentum near 1 by itself. Copies of the weight and of the last update are held, in steps
    in which it is due and those before them. Well below 0, step after step: the learning rate is
    too large.
    """
    return products(update, before)
