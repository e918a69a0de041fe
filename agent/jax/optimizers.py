"""The state of an optax chain, or of any other: which tensor of it belongs to which parameter.

An optimizer keeps its state in trees that are shaped like the parameters: a leaf whose path ends
with a parameter's belongs to it, whatever chain, mask or label comes before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .names import Parts, dotted, named_leaves, owner_of

HYPERPARAMETERS = "hyperparams"
"""Where `optax.inject_hyperparams` keeps what changes over time."""


@dataclass(frozen=True, slots=True)
class State:
    """A tensor of an optimizer's state."""

    name: str
    """Of the parameter, or, where it belongs to none, its own."""
    slot: str
    """As `mu`, `nu`, `trace`; with its place in the chain where a parameter has several."""
    array: jax.Array


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the step."""

    name: str
    """As short as it can be."""
    full: str
    """What it is called where another number has that name."""
    value: Any
    """A scalar."""


def states_and_numbers(
    tree: Any, parameters: Collection[Parts]
) -> tuple[list[State], list[Number]]:
    """The tensors of a state; and its numbers that are no integers, as a learning rate."""
    found = list[tuple[str, Parts, jax.Array]]()
    alone, numbers = list[State](), list[Number]()
    for parts, leaf in named_leaves(tree):
        owner = owner_of(parts, parameters)
        if owner is not None:
            found.append((dotted(owner[0]), owner[1], leaf))
        elif leaf.ndim:
            alone.append(State(dotted(parts), "", leaf))
        elif jnp.issubdtype(leaf.dtype, jnp.floating):
            numbers.append(Number(_number(parts), f"optimizer.{dotted(parts)}", leaf))
    times = Counter((name, _slot(before)) for name, before, _ in found)
    states = [
        State(name, _slot(before) if times[name, _slot(before)] == 1 else dotted(before), leaf)
        for name, before, leaf in found
    ]
    return states + alone, numbers


def _slot(before: Parts) -> str:
    """The last part that is no place in a chain."""
    return next((part for part in reversed(before) if not part.isdigit()), dotted(before))


def _number(parts: Parts) -> str:
    if HYPERPARAMETERS in parts:
        return dotted(parts[parts.index(HYPERPARAMETERS) + 1 :])
    return f"optimizer.{dotted(parts)}"
