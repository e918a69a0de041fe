"""What an optimizer does to weights: updates, Adam's direction, trust ratios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ...sketch.errors import SettingError
from .named import Group, Named

Tensors = TypeVar("Tensors", bound=Named[Any])
Numbers = Mapping[str, Any] | Any
"""One number, or one by name; it may be an array without axes."""


def update(before: Tensors, after: Tensors, lr: Numbers = 1.0) -> Tensors:
    """(after - before) / lr: what a step changed, by weight.

    Args:
        before: weights.
        after: the same, later.
        lr: one, or by name, as `learning_rates` gives them.

    Raises:
        SettingError: the names are not the same.
    """
    changed = (after - before) / lr
    changed.kind = "update"
    return changed


def adam_update(
    first: Tensors,
    second: Tensors,
    *,
    steps: Numbers | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> Tensors:
    """Adam's direction, m / (√v + ε): the learning rate times it is subtracted from a weight.

    Kingma and Ba 2015, "Adam", algorithm 1; with ε outside of the root, as torch has it.

    Args:
        first: m, the state `exp_avg`; optax calls it `mu`.
        second: v, the state `exp_avg_sq`; optax calls it `nu`.
        steps: how many updates went into both, one number or by name (the state `step`): with it
            both are corrected for their bias towards 0; without, as nnstat has it, they are not.
        betas: of the optimizer; they matter with `steps` alone.
        eps: of the optimizer.

    Raises:
        SettingError: the names are not the same.
    """
    if steps is not None:
        first, second = (
            moment / _bias(beta, steps, moment)
            for moment, beta in zip((first, second), betas, strict=True)
        )
    direction = first / (second.sqrt() + eps)
    direction.kind = "update"
    return direction


def trust_ratio(
    before: Tensors,
    after: Tensors,
    lr: Mapping[str, float] | float = 1.0,
    *,
    across: Group | None = None,
) -> dict[str, float]:
    """By weight: lr ‖w‖ / ‖w' - w‖, LARS's trust ratio of a real update.

    You, Gitman and Ginsburg 2017, "Large Batch Training of Convolutional Networks", eq. 6, with the
    step that was made in place of the gradient. A weight that did not change has the ratio ∞, one
    that is zero and did not change NaN.

    Args:
        before: weights.
        after: the same, after the update.
        lr: one, or by name, as `learning_rates` gives them.
        across: as of `Named.sketches`: ratios of whole weights.

    Raises:
        SettingError: the names are not the same, or `lr` lacks one.
    """
    sizes = before.norm(by="tensor", across=across)
    changes = (after - before).norm(by="tensor", across=across)
    rates = lr if isinstance(lr, Mapping) else dict.fromkeys(sizes, lr)
    without = [name for name in sizes if name not in rates]
    if without:
        raise SettingError(f"`lr` has no rate for {', '.join(without[:5])}; it must have all.")
    return {name: rates[name] * _ratio(size, changes[name]) for name, size in sizes.items()}


def _bias(beta: float, steps: Numbers, like: Named[Any]) -> dict[str, float]:
    """By name: which part of its mean the moving average has reached."""
    every: Any = steps if isinstance(steps, Mapping) else dict.fromkeys(like, steps)
    return {name: 1 - beta ** float(number) for name, number in every.items()}


def _ratio(size: float, change: float) -> float:
    if change:
        return size / change
    return float("inf") if size else float("nan")
