"""flax.linen: the output of each module, and its gradient, without a change to the model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from flax import linen as nn

from .modules import tap_output


def outputs() -> AbstractContextManager[object]:
    """A context in which what modules return is tapped under their paths, as "block.attention".

    collect(jax.value_and_grad(loss_of), within=linen.outputs)(params, batch)
    """
    return nn.intercept_methods(_intercept)


def _intercept(
    call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
) -> Any:
    out = call(*args, **kwargs)
    if context.method_name != "__call__":
        return out
    return tap_output(out, ".".join(context.module.path), context.module)
