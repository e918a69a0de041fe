"""Equinox: the output of each module, and its gradient, without a change to the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import equinox as eqx
import jax

from .modules import tapped_outputs


def outputs(model: eqx.Module) -> AbstractContextManager[None]:
    """A context in which what modules return is tapped under their paths, as "layers.0".

        collect(eqx.filter_value_and_grad(loss_of), within=lambda: outputs(model))(model, batch)

    Args:
        model: with the classes of all modules that are called, and their places.
    """
    return tapped_outputs(model, _named)


def _named(module: Any) -> Iterator[tuple[str, Any]]:
    yield "", module

    def is_within(part: Any) -> bool:
        return part is not module and isinstance(part, eqx.Module)

    for path, part in jax.tree_util.tree_leaves_with_path(module, is_leaf=is_within):
        if is_within(part):
            here = jax.tree_util.keystr(path, simple=True, separator=".")
            for name, inner in _named(part):
                yield f"{here}.{name}".removesuffix("."), inner
