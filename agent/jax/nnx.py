"""flax.nnx: the output of each module, and its gradient, without a change to the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from flax import nnx

from .modules import tapped_outputs


def outputs(model: nnx.Module) -> AbstractContextManager[None]:
    """A context in which what modules return is tapped under their paths, as "blocks.0.linear".

        graph, params = nnx.split(model)

        def loss_of(params, batch):
            return loss(nnx.merge(graph, params)(batch))

        collect(jax.value_and_grad(loss_of), within=lambda: nnx_taps.outputs(model))(params, batch)

    Args:
        model: with the classes of all modules that are called, and their places.
    """
    return tapped_outputs(model, _named)


def _named(module: Any) -> Iterator[tuple[str, Any]]:
    for path, part in nnx.iter_modules(module):
        yield ".".join(map(str, path)), part
