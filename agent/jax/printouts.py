"""`scope.print`: what is printed of an array leaves the step with its taps.

A row of it is the elements that are printed, and a 1: a row of zeros is of a call that did not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from ..printing import PrintOptions, Printout


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedSite:
    """What an array of rows is of, a row a call."""

    title: str
    shape: tuple[int, ...]
    """Of what one device holds."""
    dtype: str
    how: PrintOptions
    axes: tuple[str, ...]
    """The axes of the mesh that its rows lie along."""
    varies: frozenset[str]
    """Those along which devices hold different parts; along the others they hold copies."""


def row_to_print(x: jax.Array, how: PrintOptions) -> jax.Array:
    """float32, or float64 of float64, [elements + 1]: of a large array the ends of its axes."""
    if how.is_summary(x.size):
        for axis in how.cuts(x.shape):
            first = lax.slice_in_dim(x, 0, how.edgeitems + 1, axis=axis)
            last = lax.slice_in_dim(x, x.shape[axis] - how.edgeitems, None, axis=axis)
            x = jnp.concatenate([first, last], axis)
    x = lax.stop_gradient(x).astype(jnp.promote_types(x.dtype, jnp.float32))
    return jnp.append(x.reshape(-1), jnp.ones((), x.dtype))


def rows_to_print(x: jax.Array, sharding: NamedSharding, how: PrintOptions) -> jax.Array:
    """The same of each device's shard: [*sizes of the mesh's axes, elements + 1]."""
    names = sharding.mesh.axis_names

    def of_shard(shard: jax.Array) -> jax.Array:
        row = row_to_print(shard, how)
        return row.reshape(*[1] * len(names), -1)

    return jax.shard_map(
        of_shard,
        mesh=sharding.mesh,
        in_specs=sharding.spec,
        out_specs=PartitionSpec(*names),
        axis_names=set(names),
        check_vma=False,
    )(x)


def printouts(
    step: int, site: PrintedSite, rows: jax.Array, ranks: dict[Any, int]
) -> Iterator[Printout]:
    """A printout a call, and of each part that a device of this process holds.

    Args:
        rows: [..., *sizes of the mesh's axes, elements + 1]; is waited for.
        ranks: by device of this process.
    """
    held = Counter[str]()
    for shard in rows.addressable_shards:
        where = str(shard.index)
        held[where] += 1
        if held[where] > 1 or _is_copy(site, shard.index) or shard.device not in ranks:
            continue
        calls: NDArray[Any] = np.asarray(shard.data)
        for row in calls.reshape(-1, calls.shape[-1]):
            if row[-1]:
                yield _printout(step, site, row[:-1], ranks[shard.device])


def _is_copy(site: PrintedSite, index: tuple[slice, ...]) -> bool:
    """Whether the device stands elsewhere on an axis along which all hold the same."""
    along = index[-1 - len(site.axes) : -1]
    pairs = zip(site.axes, along, strict=True)
    return any(name not in site.varies and (at.start or 0) > 0 for name, at in pairs)


def _printout(step: int, site: PrintedSite, elements: NDArray[Any], rank: int) -> Printout:
    sizes, is_summary = list(site.shape), site.how.is_summary(int(np.prod(site.shape)))
    for axis in site.how.cuts(sizes) if is_summary else ():
        sizes[axis] = 2 * site.how.edgeitems + 1
    chosen = elements.reshape(sizes)
    return Printout(
        title=f"{site.title} (step {step}, rank {rank})",
        shape=site.shape,
        dtype=site.dtype,
        how=site.how,
        nbytes=chosen.nbytes,
        elements=lambda: chosen,
        is_there=lambda: True,
    )
