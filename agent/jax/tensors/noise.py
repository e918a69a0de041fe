"""The gradient noise scale, from gradients that a closure computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ....sketch.errors import SettingError
from ...toolkit.arithmetic import Patterns
from ...toolkit.noise import NoiseScale, measured, norm_of
from .named import NamedArrays
from .snapshots import named_arrays


def noise_scale(
    closure: Callable[[], Any],
    *,
    batch_size: int,
    reduction: Literal["mean", "sum"] = "mean",
    sizes: Sequence[int] = (1, 32),
    rounds: int = 20,
    include: Patterns = None,
    exclude: Patterns = None,
    across: Mesh | None = None,
) -> NoiseScale:
    """Measure the gradient noise scale from gradients of fresh batches; see `NoiseScale`.

    No sample is in two batches: each is drawn anew. A large batch is made of several calls of the
    closure. With two sizes it is McCandlish's estimate from two batch sizes, with more a weighted
    fit over all. Where an element of a gradient is not finite, all that is told is NaN.

    Args:
        closure: returns the gradient of the loss of `batch_size` samples that it has not seen
            before, as a pytree: `lambda: grad(params, next(batches))`. Unscaled.
        batch_size: samples a call of the closure, of all devices.
        reduction: whether the closure's loss is the mean over its samples, or their sum.
        sizes: of batches, in calls of the closure: two or more different ones. The largest decides
            how well |G|² is known.
        rounds: how many batches there are of the largest size; of smaller ones there are more, by
            the root of how much smaller they are.
        include: as of `snapshot`, for the gradients that are looked at.
        exclude: as of `snapshot`.
        across: as of `NamedArrays.sketches`: needed where gradients lie on devices of several
            processes.

    Raises:
        SettingError: a number is not positive, there are fewer than two sizes, the closure gives no
            gradient, or gradients lie on devices of several processes and `across` is not given.
    """

    def norm(calls: int) -> float:
        total = _wide(closure(), include, exclude)
        if not total:
            raise SettingError(
                "The closure must return gradients, as jax.grad gives them; there is none of the "
                "chosen parameters in what it returned."
            )
        if across is None and not all(one.is_fully_addressable for one in total.values()):
            raise SettingError(
                "This process has parts of gradients; give the mesh of the processes that have "
                "the others as `across`."
            )
        for _ in range(calls - 1):
            total = total + _wide(closure(), include, exclude)
        return norm_of(total, across)

    return measured(norm, batch_size=batch_size, reduction=reduction, sizes=sizes, rounds=rounds)


def _wide(tree: Any, include: Patterns, exclude: Patterns) -> NamedArrays:
    """In float32 at least: sums of narrow formats would round."""
    chosen = NamedArrays(named_arrays(tree), kind="weight_gradient").filter(include, exclude)
    return chosen.apply(
        lambda array: jax.numpy.astype(array, jnp.promote_types(array.dtype, jnp.float32))
    )
