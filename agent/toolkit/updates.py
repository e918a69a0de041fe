"""What an optimizer does to weights: updates, Adam's direction, trust ratios."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
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
        lr: one, or by name, as `learning_rates` gives them. Weights without one, as frozen ones,
            must not have changed; their update is 0.

    Raises:
        SettingError: the names are not the same, or a weight without a rate changed.
    """
    changed = after - before

    def moved(name: str) -> bool:
        return bool((abs(changed[name]) > 0).any())

    made = changed / (_complete(lr, changed, moved, 1.0) if isinstance(lr, Mapping) else lr)
    made.kind = "update"
    return made


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
    step that was made in place of the gradient. A weight that did not change has the ratio ∞. It is
    NaN where a weight is zero and did not change, where an element of a weight or of its change is
    not finite, and for weights without a rate, as frozen ones.

    Args:
        before: weights.
        after: the same, after the update.
        lr: one, or by name, as `learning_rates` gives them. Weights without one must not have
            changed.
        across: as of `Named.sketches`: ratios of whole weights.

    Raises:
        SettingError: the names are not the same, or a weight without a rate changed.
    """
    sizes = before.sketches(across=across).strict_norms()
    changes = (after - before).sketches(across=across).strict_norms()
    rates = lr if isinstance(lr, Mapping) else dict.fromkeys(sizes, lr)
    rates = _complete(rates, sizes, lambda name: changes[name] > 0, math.nan)
    return {name: rates[name] * _ratio(size, changes[name]) for name, size in sizes.items()}


def _complete(
    rates: Mapping[str, Any], names: Iterable[str], moved: Callable[[str], bool], rate: float
) -> Mapping[str, Any]:
    """The rates, and `rate` for weights that have none and did not change.

    Raises:
        SettingError: one has none and changed.
    """
    without = [name for name in names if name not in rates]
    changed = [name for name in without if moved(name)]
    if changed:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise SettingError(
            f"`lr` has no rate for {', '.join(changed[:5])}{more}, which changed; give one, or "
            "leave them out of both sides by `filter`."
        )
    return {**rates, **dict.fromkeys(without, rate)}


def _bias(beta: float, steps: Numbers, like: Named[Any]) -> dict[str, float]:
    """By name: which part of its mean the moving average has reached."""
    every: Any = steps if isinstance(steps, Mapping) else dict.fromkeys(like, steps)
    return {name: 1 - beta ** float(number) for name, number in every.items()}


def _ratio(size: float, change: float) -> float:
    if change:
        return size / change
    return math.inf if size > 0 else math.nan
