"""What the leaves of a pytree are called: dotted names, as users of torch know them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey, KeyPath, keystr, tree_leaves_with_path

Parts = tuple[str, ...]
"""A name, cut at its dots."""

COLLECTION = "params"
"""What linen calls the collection of all parameters."""

Leaf = tuple[Parts, jax.Array]


def named_leaves(tree: Any, *, numbers: bool = False) -> list[Leaf]:
    """The leaves of a pytree that are arrays, as JAX would take them, and their names.

    Left out of names is what says nothing: the collection of linen, unless another leaf is called
    so without it; and the attribute `value` of nnx's variables.

    Args:
        numbers: take Python's own numbers, too; in a module they are options, as a rate of dropout.
    """
    leaves = [(path, _as_array(leaf, numbers)) for path, leaf in tree_leaves_with_path(tree)]
    found = [(path, leaf) for path, leaf in leaves if leaf is not None]
    is_nnx = all(_ends_in_value(path) for path, _ in found)
    names = [_parts(path[:-1] if is_nnx else path) for path, _ in found]
    short = [name[1:] if name[0:1] == (COLLECTION,) and name[1:] else name for name in names]
    times = Counter(short)
    pairs = zip(names, short, strict=True)
    chosen = [less if times[less] == 1 else name for name, less in pairs]
    return [(name, leaf) for name, (_, leaf) in zip(chosen, found, strict=True)]


def holds_arrays(tree: Any) -> bool:
    """Whether a pytree has leaves that are arrays or numbers, or has none at all."""
    leaves = jax.tree.leaves(tree)
    return not leaves or any(_as_array(leaf, True) is not None for leaf in leaves)


def dotted(parts: Sequence[str]) -> str:
    """The name, with its dots; that of a tree that is one leaf is `(root)`."""
    return ".".join(parts) or "(root)"


def owner_of(parts: Parts, owners: Collection[Parts]) -> tuple[Parts, Parts] | None:
    """The longest of the names in `owners` that a name ends with, and what comes before it."""
    for start in range(len(parts)):
        if parts[start:] in owners:
            before = parts[:start]
            return parts[start:], before[:-1] if before[-1:] == (COLLECTION,) else before
    return None


def _as_array(leaf: object, numbers: bool) -> jax.Array | None:
    if isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, np.ndarray | np.generic):  # of a checkpoint that was read, say
        return jnp.asarray(leaf) if jnp.issubdtype(leaf.dtype, np.number) else None
    return jnp.asarray(leaf) if numbers and isinstance(leaf, int | float) else None


def _parts(path: KeyPath) -> Parts:
    return tuple(keystr((key,), simple=True) for key in path)


def _ends_in_value(path: KeyPath) -> bool:
    return len(path) > 1 and isinstance(path[-1], GetAttrKey) and path[-1].name == "value"
