"""From the trees that a user hands over inside the step to a `Telemetry`. Pure: no state is kept.

Trees are named by their key paths. What is not due, not chosen or holds no floating-point numbers
does not leave the step at all, so that XLA drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ...wire.messages import Kind
from .collecting import Taps
from .in_program import is_placed, made_of, made_of_taps, packed
from .names import Parts, dotted, named_leaves
from .optimizers import states_and_numbers
from .telemetry import NamedSite, Plan, Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """What a step is made of, each a pytree or None."""

    weights: Any = None
    gradients: Any = None
    optimizer: Any = None
    aux: Any = None
    taps: Taps | None = None
    """What `collect` found; it is sketched already."""
    numbers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """By name: what is one number a step."""

    def parameters(self) -> Collection[Parts]:
        """The names of what is trained, as far as trees of the same shape were given."""
        trees = (self.weights, self.gradients)
        return {name for tree in trees if tree is not None for name, _ in named_leaves(tree)}

    def sites(self) -> Iterator[tuple[NamedSite, jax.Array]]:
        """All tensors, by what they are."""
        kinds: list[tuple[Kind, Any]] = [
            ("weight", self.weights),
            ("weight_gradient", self.gradients),
        ]
        for kind, tree in kinds:
            for name, leaf in named_leaves(tree):
                yield NamedSite(kind=kind, name=dotted(name)), leaf
        for state in states_and_numbers(self.optimizer, self.parameters())[0]:
            site = NamedSite(kind="optimizer_state", name=state.name, slot=state.slot)
            yield site, state.array
        for name, leaf in named_leaves(self.aux):
            if leaf.ndim:
                yield NamedSite(kind="tap", name=dotted(name)), leaf

    def all_numbers(self) -> dict[str, Any]:
        """All that is one number, by name: of the optimizer, of `aux`, and what was named."""
        _, told = states_and_numbers(self.optimizer, self.parameters())
        told |= {dotted(name): leaf for name, leaf in named_leaves(self.aux) if not leaf.ndim}
        return told | dict(self.numbers)


def gather(
    trees: Trees, kinds: Collection[str], chooses: Callable[[str], bool], *, in_program: bool
) -> Telemetry:
    """What is due of a step.

    Args:
        kinds: those that are due; none: nothing is.
        chooses: whether what has that name is observed.
        in_program: whether the program that is being made shall sketch what it can.
    """
    if not kinds:
        return Telemetry()

    def wanted(site: NamedSite) -> bool:
        return site.kind in kinds and chooses(site.name)

    chosen = [(site, leaf) for site, leaf in trees.sites() if wanted(site)]
    read = [(site, leaf) for site, leaf in chosen if is_readable(leaf)]
    left = [(site, leaf) for site, leaf in read if not (in_program and is_placed(leaf))]
    made = [made_of(site, leaf) for site, leaf in read if in_program and is_placed(leaf)]
    made += made_of_taps(trees.taps, wanted) if trees.taps is not None else []
    names, numbers = _packed(trees.all_numbers())
    rows = packed(made)
    plan = Plan(
        arrays=tuple(site for site, _ in left),
        rows=tuple(rows),
        numbers=names,
        unsupported=len(chosen) - len(read),
        unseen=trees.taps.unseen if trees.taps is not None else (),
    )
    return Telemetry(tuple(_own(leaf) for _, leaf in left), tuple(rows.values()), numbers, plan)


def is_readable(leaf: jax.Array) -> bool:
    """Whether an array holds floating-point numbers."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _own(leaf: jax.Array) -> jax.Array:
    """The array in a buffer of our own: what a jitted step returns always is."""
    return leaf if isinstance(leaf, Tracer) else jnp.copy(leaf)


def _packed(numbers: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[jax.Array, ...]]:
    """All numbers in one array, in float32, or float64 where that is on: one copy to the host."""
    if not numbers:
        return (), ()
    values = [jnp.asarray(value).astype(float).reshape(()) for value in numbers.values()]
    return tuple(numbers), (jnp.stack(values),)
