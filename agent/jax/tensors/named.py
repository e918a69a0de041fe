"""Arrays by name: every statistic of the sketch, and tables of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, Sharding
from numpy.typing import NDArray

from ....sketch.errors import SettingError
from ...toolkit.named import Named
from ...toolkit.ranks import merge_ranks
from ...toolkit.sketches import By, Sketches
from .gathering import gathered_across
from .sketching import on_host, sketch_shards

Destination = jax.Device | Sharding | None
"""None: where the array is."""


class NamedArrays(Named[jax.Array]):
    """Arrays by name, all of one kind, however they lie on devices.

    Arithmetic with numbers, and with arrays of the same names, makes new arrays, in the dtypes that
    JAX gives: `.to(dtype=jnp.float32)` first where those are too narrow. Statistics are of the
    finite elements, as everywhere in rankscope: elements that several devices have count once.

    Args:
        arrays: they are held as they are: `snapshot` copies, as is needed where a step donates
            them.
        kind: what they are, as `weight`, in the words of README.
    """

    _library, _array_type = jnp, jax.Array

    def __init__(self, arrays: Mapping[str, jax.Array], *, kind: str = "") -> None:
        super().__init__(arrays, kind)

    def to(self, device: Destination = None, dtype: Any = None) -> Self:
        """Copies of all, on that device or sharded so, in that dtype; None leaves it as it is.

        Raises:
            SettingError: JAX cannot put an array there, as on a dtype.
        """
        return self._with({name: copied(array, device, dtype) for name, array in self.items()})

    def sketches(self, by: By = "tensor", *, across: Mesh | None = None) -> Sketches:
        """The sketches of all arrays, as they are now, by the kernels of the agent.

        Args:
            by: a row for each array, for all (`whole`), or for those that a function of their
                names calls alike.
            across: a mesh whose processes all call this, each with its part of the same arrays: the
                result is that of the whole arrays. Without it there is no collective, and what is
                told is of the elements that this process has.

        Raises:
            SettingError: `across` is no mesh, or no device of it is this process's.
        """
        parts = sketch_shards(self)
        if across is not None:
            parts = gathered_across(parts, across)
        return merge_ranks(parts).in_order(tuple(self)).rows(by, self.kind or "whole")

    def _with(self, arrays: Mapping[str, jax.Array]) -> Self:
        return type(self)(arrays, kind=self.kind)

    def _copy(self, array: jax.Array) -> jax.Array:
        return copied(array, None, None)

    def _are_equal(self, mine: jax.Array, theirs: Any) -> bool:
        alike = mine.dtype == theirs.dtype and mine.sharding == theirs.sharding
        return alike and bool(jnp.array_equal(mine, theirs))

    def _elements(self, array: jax.Array) -> NDArray[Any]:
        if not array.is_fully_addressable:
            raise SettingError(
                f"An array of shape {array.shape} lies on devices of several processes, and its "
                "elements are asked for; jax.experimental.multihost_utils.process_allgather "
                "brings them here."
            )
        elements = on_host(array)
        return elements.astype(np.float64 if array.dtype.itemsize == 8 else np.float32)

    def _power_sum(self, array: jax.Array, p: float, scale: float) -> float:
        sizes = np.abs(self._elements(array).astype(np.float64)) / scale
        return float((sizes[np.isfinite(sizes)] ** p).sum())


def copied(array: jax.Array, device: Destination, dtype: Any) -> jax.Array:
    """A copy, in that dtype, on that device or sharded so.

    Raises:
        SettingError: JAX cannot put an array there.
    """
    if isinstance(device, str | type | np.dtype):
        raise SettingError(
            f"`device` must be a device or a sharding of JAX's, got {device!r}; a dtype goes as "
            "`dtype`."
        )
    made = jnp.array(array, dtype=dtype, copy=True)
    return made if device is None else jax.device_put(made, device)
