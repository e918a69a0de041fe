"""Objects of nnx among a function's arguments: what a call changes in them is kept.

They are no pytrees to us: of those a function is traced with copies, whose counts, averages and
shared weights are not the caller's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax


class Objects:
    """The modules, optimizers and random streams of nnx in some arguments.

    Args:
        arguments: a pytree of anything.
    """

    def __init__(self, arguments: Any) -> None:
        self._nnx: Any = sys.modules.get("flax.nnx")  # who has not imported it has none
        self._leaves, self._tree = jax.tree.flatten(arguments, is_leaf=self._is_object)
        self._own = [leaf for leaf in self._leaves if self._is_object(leaf)]
        self._graph: Any = None
        self._traced: Any = None

    def split(self) -> tuple[Sequence[Any], Any]:
        """All that is no such object; and the arrays in these, as a pytree."""
        state = None
        if self._own:
            self._graph, state = self._nnx.split(self._own)
        return [leaf for leaf in self._leaves if not self._is_object(leaf)], state

    def merged(self, others: Sequence[Any], state: Any) -> Any:
        """The arguments with objects of their own, from what `split` made."""
        if self._own:
            self._traced = self._nnx.merge(self._graph, state, copy=True)
        objects, rest = iter(self._traced or ()), iter(others)
        leaves = [next(objects if self._is_object(leaf) else rest) for leaf in self._leaves]
        return jax.tree.unflatten(self._tree, leaves)

    def state(self) -> Any:
        """The arrays that those objects hold by now."""
        return self._nnx.split(self._traced)[1] if self._own else None

    def update(self, state: Any) -> None:
        """Have the objects that were given hold these arrays."""
        if self._own:
            self._nnx.update(self._own, state)

    def _is_object(self, leaf: Any) -> bool:
        return self._nnx is not None and isinstance(leaf, self._nnx.Pytree)
