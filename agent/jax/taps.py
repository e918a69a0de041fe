"""`tap("name", x)`: a mark on a value of a traced function, and on its gradient.

It is the identity, and leaves nothing in a compiled program. `collect` finds the marks: those on
values where they stand, those on gradients where transposition put them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from ...sketch.errors import SettingError
from ...wire.messages import Kind
from ..modes import Mode

Tree = TypeVar("Tree")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a value is observed as."""

    kind: Kind
    gradient_kind: Kind
    name: str
    slot: str
    """Which leaf of the tapped tree it is, as "0" or "cache.key"."""
    module: str
    """Class of the module that gave it."""
    sharding: NamedSharding | None
    mode: Mode
    """What is taken of its calls in a step."""


def tap(
    name: str,
    x: Tree,
    *,
    mode: str = "all",
    sharding: NamedSharding | None = None,
    kind: Kind = "tap",
    gradient_kind: Kind = "tap",
    module: str = "",
) -> Tree:
    """Mark the arrays of `x`, and their gradients, for `collect`; use what it returns for `x`.

    Args:
        name: what they are called in the run; several calls of one name are numbered.
        x: an array or a pytree; leaves that are no floats are left as they are.
        mode: what is taken where it is called several times in a step, as in `lax.scan`: `all`
            calls; the `final` one; `every(4)`: the fourth, the eighth and so on; or `sum`: their
            sum element by element, in float32 if they have fewer bits. Of its gradients alike.
        sharding: how `x` is sharded, where the axes of the mesh are automatic: without it the
            sketch is of the whole, which XLA may have to gather. In `shard_map` it is not needed.
        kind: what they are.
        gradient_kind: what their gradients are; those of taps have the slot `gradient`.
        module: class of the module that gave them.

    Raises:
        SettingError: there is no such mode, or the sharding is of more axes than an array has.
    """
    taken = Mode.parse(mode)

    def marked(path: tuple[Any, ...], leaf: Any) -> Any:
        if not (hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)):
            return leaf
        if sharding is not None and len(sharding.spec) > jnp.ndim(leaf):
            raise SettingError(
                f"tap {name!r} is given the sharding {sharding.spec}, of more axes than its shape "
                f"{jnp.shape(leaf)} has."
            )
        mark = Mark(
            kind=kind,
            gradient_kind=gradient_kind,
            name=name,
            slot=jax.tree_util.keystr(path, simple=True, separator="."),
            module=module,
            sharding=sharding,
            mode=taken,
        )
        return value_p.bind(jnp.asarray(leaf), mark=mark)

    return jax.tree_util.tree_map_with_path(marked, x)


value_p = Primitive("rankscope_tap")
"""The identity of a value."""
slope_p = Primitive("rankscope_tap_slope")
"""The linear identity of its tangent, and `backward` of its gradient."""


def _give_back(x: Any, **_: Any) -> Any:
    return x


def _differentiate(primals: Any, tangents: Any, *, mark: Mark) -> tuple[Any, Any]:
    (x,), (slope,) = primals, tangents
    if not isinstance(slope, ad.Zero):
        slope = slope_p.bind(slope, mark=mark, backward=False)
    return value_p.bind(x, mark=mark), slope


def _transpose(gradient: Any, _: Any, *, mark: Mark, backward: bool) -> list[Any]:
    if isinstance(gradient, ad.Zero):
        return [gradient]
    return [slope_p.bind(gradient, mark=mark, backward=not backward)]


def _batched(primitive: Primitive) -> Any:
    def rule(values: Any, axes: Any, *, mark: Mark, **how: Any) -> tuple[Any, Any]:
        (x,), (axis,) = values, axes
        return primitive.bind(x, mark=_with_axis(mark, axis), **how), axis

    return rule


def _with_axis(mark: Mark, axis: int) -> Mark:
    """The mark of a batch of examples: of all of them together."""
    if mark.sharding is None:
        return mark
    entries = [*mark.sharding.spec, *[None] * (axis - len(mark.sharding.spec))]
    spec = PartitionSpec(*entries[:axis], None, *entries[axis:])
    return replace(mark, sharding=NamedSharding(mark.sharding.mesh, spec))


for primitive in (value_p, slope_p):
    primitive.def_impl(_give_back)
    primitive.def_abstract_eval(_give_back)
    batching.primitive_batchers[primitive] = _batched(primitive)
    mlir.register_lowering(primitive, lambda _, x, **__: [x])
ad.primitive_jvps[value_p] = _differentiate
ad.deflinear2(slope_p, _transpose)
