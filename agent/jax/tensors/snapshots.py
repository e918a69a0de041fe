"""Snapshots of pytrees: copies of parameters, gradients and optimizer state, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ....sketch.errors import SettingError
from ...toolkit.arithmetic import Patterns
from ..names import dotted, named_leaves
from ..optimizers import states_and_numbers
from .named import Destination, NamedArrays, copied


def snapshot(
    tree: Any,
    *,
    kind: str = "",
    include: Patterns = None,
    exclude: Patterns = None,
    device: Destination = None,
    dtype: Any = None,
) -> NamedArrays:
    """Copies of the arrays of a pytree, as they lie on devices, so that they outlive a donation.

    Args:
        tree: parameters of Flax, an Equinox or nnx module, intermediates that Flax captured, a
            checkpoint, or any other. Names are those of the agent: paths with dots. Leaves that are
            no arrays, and keys of random numbers, are left out.
        kind: what they are.
        include: regular expressions, of which one must be found in a name (`re.search`).
        exclude: and of which none may be.
        device: a device or a sharding to copy to.
        dtype: to convert to.

    Raises:
        SettingError: a pattern is no regular expression, or JAX cannot hold an array of NumPy's.
    """
    return _copies(named_arrays(tree).items(), kind, include, exclude, device, dtype)


def weights(
    tree: Any,
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    device: Destination = None,
    dtype: Any = None,
) -> NamedArrays:
    """Copies of parameters: `snapshot` of the kind `weight`."""
    return snapshot(
        tree, kind="weight", include=include, exclude=exclude, device=device, dtype=dtype
    )


def gradients(
    tree: Any,
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    device: Destination = None,
    dtype: Any = None,
) -> NamedArrays:
    """Copies of gradients, as `jax.grad` gives them: `snapshot` of the kind `weight_gradient`."""
    return snapshot(
        tree, kind="weight_gradient", include=include, exclude=exclude, device=device, dtype=dtype
    )


def optimizer_state(
    parameters: Any,
    state: Any,
    slot: str,
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    device: Destination = None,
    dtype: Any = None,
) -> NamedArrays:
    """Copies of one slot of an optimizer's state, under the names of the parameters.

    Args:
        parameters: the pytree that the optimizer was made for.
        state: that of any optax chain, or another whose trees are shaped like the parameters.
        slot: what the optimizer calls it, as `mu`, `nu`, `trace`.
        include: as of `snapshot`.
        exclude: as of `snapshot`.
        device: as of `snapshot`.
        dtype: as of `snapshot`.

    Raises:
        SettingError: there is no such slot; the message lists those that there are. Or as of
            `snapshot`.
    """
    found = slot_of(parameters, state, slot)
    return _copies(found.items(), "optimizer_state", include, exclude, device, dtype)


def named_arrays(tree: Any) -> dict[str, jax.Array]:
    """The arrays of a pytree by name, as they are; those of NumPy become JAX's.

    Raises:
        SettingError: JAX cannot hold one as it is.
    """
    leaves = named_leaves(jax.tree.map(_of_jax, tree))
    return {
        dotted(parts): leaf
        for parts, leaf in leaves
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    }


def slot_of(parameters: Any, state: Any, slot: str) -> dict[str, jax.Array]:
    """By name of a parameter: that slot of an optimizer's state.

    Raises:
        SettingError: there is no such slot.
    """
    owners = {parts for parts, _ in named_leaves(parameters)}
    states, _ = states_and_numbers(state, owners)
    found = {one.name: one.array for one in states if one.slot == slot}
    if not found:
        slots = dict.fromkeys(one.slot for one in states if one.slot)
        raise SettingError(f"The state has no slot {slot!r}; it has {', '.join(slots) or 'none'}.")
    return found


def _copies(
    arrays: Iterable[tuple[str, jax.Array]],
    kind: str,
    include: Patterns,
    exclude: Patterns,
    device: Destination,
    dtype: Any,
) -> NamedArrays:
    chosen = NamedArrays(dict(arrays), kind=kind).filter(include, exclude)
    return NamedArrays(
        {name: copied(array, device, dtype) for name, array in chosen.items()}, kind=kind
    )


def _of_jax(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    made = jnp.asarray(leaf)
    if made.dtype != leaf.dtype:
        raise SettingError(
            f"JAX holds no {leaf.dtype} while jax_enable_x64 is off, and would make {made.dtype} of"
            f" an array of shape {leaf.shape}; convert it first, or turn that on."
        )
    return made
