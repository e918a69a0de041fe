"""From the trees that a user hands over inside the step to a `Telemetry`. Pure: no state is kept.

Trees are named by their key paths. What is not due, not chosen or holds no floating-point numbers
does not leave the step at all, so that XLA drops it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ...sketch.errors import SettingError
from ...wire.messages import Kind
from .collecting import Taps
from .in_program import as_they_run, is_placed, made_of, made_of_taps, packed, prints_of
from .names import Parts, dotted, holds_arrays, named_leaves
from .optimizers import Number, states_and_numbers
from .telemetry import NamedSite, Plan, Telemetry

TREES = ("weights", "gradients", "updates", "optimizer", "taps", "aux")
"""What `sketch` calls what is no number."""
NO_NUMBER = "it is not one number: pass its mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """What a step is made of, each a pytree or None."""

    weights: Any = None
    gradients: Any = None
    updates: Any = None
    optimizer: Any = None
    aux: Any = None
    taps: Taps | None = None
    """What `collect` found; it is sketched already."""
    numbers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """By name: what is one number a step."""

    def parameters(self) -> Collection[Parts]:
        """The names of what is trained, as far as trees of the same shape were given."""
        trees = (self.weights, self.gradients, self.updates)
        return {name for tree in trees if tree is not None for name, _ in named_leaves(tree)}

    def given(self) -> Mapping[str, Any]:
        """What `named_leaves` takes, by argument."""
        return {name: getattr(self, name) for name in TREES if name != "taps"}

    def strays(self) -> list[str]:
        """What gradients and updates are called that no weight is, if weights are given."""
        if self.weights is None:
            return []
        shape = jax.tree.structure(self.weights)
        given = [tree for tree in (self.gradients, self.updates) if tree is not None]
        others = [tree for tree in given if jax.tree.structure(tree) != shape]
        if not others:
            return []
        known = {name for name, _ in named_leaves(self.weights)}
        found = (name for tree in others for name, _ in named_leaves(tree))
        return [dotted(name) for name in found if name not in known]

    def sites(self) -> Iterator[tuple[NamedSite, jax.Array]]:
        """All tensors, by what they are."""
        kinds: list[tuple[Kind, Any]] = [
            ("weight", self.weights),
            ("weight_gradient", self.gradients),
            ("update", self.updates),
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
        aux = [(dotted(name), leaf) for name, leaf in named_leaves(self.aux, numbers=True)]
        told += [Number(name, f"aux.{name}", leaf) for name, leaf in aux if not leaf.ndim]
        told += [Number(name, name, value) for name, value in self.numbers.items()]
        times = Counter(one.name for one in told)
        return {one.name if times[one.name] == 1 else one.full: one.value for one in told}


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
    check_taps(trees.taps)
    check_trees(trees.given())
    check_numbers(trees.numbers)

    def wanted(site: NamedSite) -> bool:
        return site.kind in kinds and chooses(site.name)

    chosen = [(site, leaf) for site, leaf in trees.sites() if wanted(site)]
    read = [(site, leaf) for site, leaf in chosen if is_readable(leaf)]
    left = [(site, leaf) for site, leaf in read if not (in_program and is_placed(leaf))]
    made = [made_of(site, leaf) for site, leaf in read if in_program and is_placed(leaf)]
    if trees.taps is not None:
        made += made_of_taps(trees.taps, wanted, after=[site for site, _ in read])
    prints = prints_of(trees.taps) if trees.taps is not None and "tap" in kinds else []
    numbers, rows = trees.all_numbers(), packed(made)
    told = {name: value for name, value in numbers.items() if is_number(value)}
    unseen = [f"{name} ({NO_NUMBER})" for name in trees.numbers if name not in told]
    plan = Plan(
        arrays=tuple(site for site, _ in left),
        rows=tuple(rows),
        running=running_order([site for site, _ in read], as_they_run(made)),
        numbers=tuple(told),
        prints=tuple(site for site, _ in prints),
        unsupported=len(chosen) - len(read) + len(numbers) - len(told),
        unseen=(*(trees.taps.unseen if trees.taps is not None else ()), *unseen),
    )
    arrays = tuple(_own(leaf) for _, leaf in left)
    printed = tuple(rows for _, rows in prints)
    return Telemetry(arrays, tuple(rows.values()), _packed(told.values()), printed, plan)


def running_order(
    handed: Sequence[NamedSite], tapped: Sequence[NamedSite]
) -> tuple[NamedSite, ...]:
    """All sites as a step runs: what is handed over is made by the backward, but the weights.

    Of that each kind is in the order in which its modules begin, gradients from the end, as far as
    modules are tapped: names in a tree of linen's stand in the order of the alphabet.
    """
    begins = dict[str, int]()
    for number, site in enumerate(tapped):
        if site.kind == "activation":
            for module in modules_around(site.name):
                begins.setdefault(module, number)

    def begin(site: NamedSite) -> tuple[int, int]:
        around = modules_around(site.name)
        return next(((begins[one], len(one)) for one in around if one in begins), (0, 0))

    def of(kind: Kind, *, backwards: bool = False) -> list[NamedSite]:
        return sorted((site for site in handed if site.kind == kind), key=begin, reverse=backwards)

    gradients = of("weight_gradient", backwards=True)
    return (*of("weight"), *tapped, *gradients, *of("update"), *of("optimizer_state"), *of("tap"))


def modules_around(name: str) -> Iterator[str]:
    """The name itself, and of each module that it is in, outwards; the last is empty."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""


def is_readable(leaf: jax.Array) -> bool:
    """Whether an array holds floating-point numbers."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def is_number(value: Any) -> bool:
    """Whether a value is one real number: no key of JAX's random numbers, and no vector."""
    array, kinds = jnp.asarray(value), (jnp.floating, jnp.integer, jnp.bool_)
    return array.size == 1 and any(jnp.issubdtype(array.dtype, kind) for kind in kinds)


def check_taps(taps: object) -> None:
    """Refuse what `collect` has not made, as the result of its function in place of the taps.

    Raises:
        SettingError: it is such a thing.
    """
    if not isinstance(taps, Taps | None):
        raise SettingError(
            "`taps` must be the second of what scope.collect(fn)(…) returns, as in "
            f"`result, taps = scope.collect(fn)(…)`, got {type(taps).__name__}."
        )


def check_trees(trees: Mapping[str, Any]) -> None:
    """Refuse a tree without an array, as the optimizer in place of its state.

    Raises:
        SettingError: it is such a thing.
    """
    for name, tree in trees.items():
        if not holds_arrays(tree):
            state = ": give its state, as new.opt_state" if name == "optimizer" else ""
            raise SettingError(f"`{name}` holds no array, got {type(tree).__name__}{state}.")


def check_numbers(numbers: Mapping[str, Any]) -> None:
    """Refuse what was named as a number of the step and cannot be meant as one.

    Raises:
        SettingError: a value is a tree, or an array under what is nearly the name of a tree.
    """
    for name, value in numbers.items():
        near = get_close_matches(name, TREES, n=1)
        is_scalar = isinstance(value, int | float | np.generic) or getattr(value, "ndim", 1) == 0
        if is_scalar or (isinstance(value, jax.Array | np.ndarray) and not near):
            continue
        known = f"did you mean `{near[0]}`?" if near else f"trees are given as {', '.join(TREES)}."
        raise SettingError(
            f"`{name}` must be one number of the step, got {type(value).__name__}; {known}"
        )


def _own(leaf: jax.Array) -> jax.Array:
    """The array in a buffer of our own: what a jitted step returns always is."""
    return leaf if isinstance(leaf, Tracer) else jnp.copy(leaf)


def _packed(numbers: Collection[Any]) -> tuple[jax.Array, ...]:
    """All numbers in one array, in float32, or float64 where that is on: one copy to the host."""
    values = [jnp.asarray(value).astype(float).reshape(()) for value in numbers]
    return (jnp.stack(values),) if values else ()
