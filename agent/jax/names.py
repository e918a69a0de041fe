"""What the leaves of a pytree are called: dotted names, as users of torch know them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
from jax.tree_util import GetAttrKey, KeyPath, keystr, tree_leaves_with_path

Parts = tuple[str, ...]
"""A name, cut at its dots."""

COLLECTION = "params"
"""What linen calls the collection of all parameters."""

Leaf = tuple[Parts, jax.Array]


def named_leaves(tree: Any) -> list[Leaf]:
    """The leaves of a pytree that are arrays, and their names.

    Left out of names is what all have in common and says nothing: the collection of linen, and
    the attribute `value` of nnx's variables.
    """
    found = [(path, leaf) for path, leaf in tree_leaves_with_path(tree) if is_array(leaf)]
    paths = [path for path, _ in found]
    first = int(_all(path[0] for path in paths if len(path) > 1) == COLLECTION)
    is_nnx = bool(paths) and all(_ends_in_value(path) for path in paths)
    names = [_parts(path[:-1] if is_nnx else path)[first:] for path in paths]
    return [(name, leaf) for name, (_, leaf) in zip(names, found, strict=True)]


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


def is_array(leaf: object) -> bool:
    """Whether a leaf is an array of JAX's, traced or not."""
    return isinstance(leaf, jax.Array)


def _parts(path: KeyPath) -> Parts:
    return tuple(keystr((key,), simple=True) for key in path)


def _ends_in_value(path: KeyPath) -> bool:
    return len(path) > 1 and isinstance(path[-1], GetAttrKey) and path[-1].name == "value"


def _all(keys: Iterator[Any]) -> str:
    """What all these keys are called, or nothing."""
    names = {keystr((key,), simple=True) for key in keys}
    return names.pop() if len(names) == 1 else ""
