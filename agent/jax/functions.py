"""What becomes of functions within a traced function: of `scan`, `cond`, `checkpoint` and others.

They are made anew by the same public functions of JAX, with their sketches as further results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives as known
from jax.sharding import NamedSharding, PartitionSpec

from .rows import empty_rows, merge, typed_as
from .walking import IN_A_CONDITION, Rule, Values, Walk, marks_in, varying


def _jit(walk: Walk, params: Mapping[str, Any], given: Values) -> Values:
    """`jax.jit` within: evaluated in place, where it says that its arrays are."""
    given = _constrained(given, params["in_shardings"])
    made = walk.run(params["jaxpr"].jaxpr, params["jaxpr"].consts, given)
    return _constrained(made, params["out_shardings"])


def _constrained(values: Values, shardings: Sequence[Any]) -> Values:
    return [
        lax.with_sharding_constraint(value, sharding)
        if isinstance(sharding, NamedSharding)
        else value
        for value, sharding in zip(values, shardings, strict=True)
    ]


def _closed_call(walk: Walk, params: Mapping[str, Any], given: Values) -> Values:
    """A call that JAX made itself."""
    return walk.run(params["call_jaxpr"].jaxpr, params["call_jaxpr"].consts, given)


def _custom(primitive: Any, walk: Walk, params: Mapping[str, Any], given: Values) -> Values:
    """`custom_vjp` and `custom_jvp`, not differentiated yet: called as they are, for their rules.

    The same once more, for its marks; the compiler sees that it is the same.
    """
    inner, function = walk.within(), params["call_jaxpr"]
    inner.run(function.jaxpr, function.consts, [lax.stop_gradient(x) for x in given])
    walk.keep(inner, inner.give())
    return primitive.bind(*given, **primitive.get_bind_params(params))


def _checkpoint(walk: Walk, params: Mapping[str, Any], given: Values) -> Values:
    """`jax.checkpoint`; in the backward it computes again what the forward did."""
    inner, jaxpr = walk.within(again=params["differentiated"]), params["jaxpr"]
    if params["differentiated"]:
        if params["prevent_cse"]:
            given = _kept_apart(given)
        made = inner.run(jaxpr, (), given)
        walk.keep(inner, inner.give())
        return made

    def evaluated(*values: Any) -> tuple[Values, list[jax.Array]]:
        inner.begin()
        return inner.run(jaxpr, (), values), inner.give()

    again = jax.checkpoint(evaluated, prevent_cse=params["prevent_cse"], policy=params["policy"])
    made, rows = again(*given)
    walk.keep(inner, rows)
    return made


def _kept_apart(values: Values) -> Values:
    """The same values, of which XLA does not know that they are.

    All together, so that nothing is computed again before the gradient is there; but in `shard_map`
    a barrier takes values of one type.
    """
    places: dict[frozenset[str], list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(varying(value), []).append(place)
    for alike in places.values():
        for place, value in zip(
            alike, lax.optimization_barrier([values[place] for place in alike]), strict=True
        ):
            values[place] = value
    return values


def _scan(walk: Walk, params: Mapping[str, Any], given: Values) -> Values:
    """`lax.scan`: each iteration has rows of its own, after those axes of the mesh that lead."""
    inner, function = walk.within(), params["jaxpr"]
    constants, rest = _cut(given, params["num_consts"])
    carry, over = _cut(rest, params["num_carry"])

    def body(carry: Values, over: Values) -> tuple[Values, tuple[Values, list[jax.Array]]]:
        inner.begin()
        made = inner.run(function.jaxpr, function.consts, [*constants, *carry, *over])
        carry, stacked = _cut(made, params["num_carry"])
        return carry, (stacked, inner.give())

    carry, (stacked, rows) = lax.scan(
        body,
        carry,
        over,
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    pairs = zip(inner.found, rows, strict=True)
    walk.keep(inner, [jnp.moveaxis(rows, 0, len(found.axes)) for found, rows in pairs])
    return [*carry, *stacked]


def _while(walk: Walk, params: Mapping[str, Any], given: Values) -> Values:
    """`lax.while_loop`: how many iterations there are is not known, so that they are merged."""
    condition, function = params["cond_jaxpr"], params["body_jaxpr"]
    of_condition, rest = _cut(given, params["cond_nconsts"])
    constants, state = _cut(rest, params["body_nconsts"])
    inner, in_condition = walk.within(), marks_in({"condition": condition})
    walk.unseen += [f"{mark.name} ({IN_A_CONDITION})" for mark in in_condition]

    def run(state: Values) -> tuple[Values, list[jax.Array]]:
        inner.begin()
        made = inner.run(function.jaxpr, function.consts, [*constants, *state])
        return made, inner.give()

    def body(both: tuple[Values, list[jax.Array]]) -> tuple[Values, list[jax.Array]]:
        made, rows = run(both[0])
        return made, [merge(a, b) for a, b in zip(both[1], rows, strict=True)]

    def goes_on(both: tuple[Values, list[jax.Array]]) -> jax.Array:
        return walk.within().run(condition.jaxpr, condition.consts, [*of_condition, *both[0]])[0]

    shapes = jax.eval_shape(run, state)[1]
    nothing = [_nothing(shape, given) for shape in shapes]
    made, rows = lax.while_loop(goes_on, body, (state, nothing))
    walk.keep(inner, rows)
    return made


def _cond(walk: Walk, params: Mapping[str, Any], given: Values) -> Values:
    """`lax.cond` and `lax.switch`: what is marked in the other branches has rows of nothing."""
    index, *operands = given
    walks = [walk.within() for _ in params["branches"]]

    def of(place: int, values: Sequence[Any]) -> tuple[Values, list[jax.Array]]:
        inner, branch = walks[place], params["branches"][place]
        inner.begin()
        made = inner.run(branch.jaxpr, branch.consts, values)
        return made, inner.give()

    places = range(len(walks))
    shapes = [jax.eval_shape(partial(of, place), operands)[1] for place in places]

    def chosen(place: int, *values: Any) -> tuple[Values, list[list[jax.Array]]]:
        made, rows = of(place, values)
        others = [[_nothing(shape, values) for shape in some] for some in shapes]
        return made, [*others[:place], rows, *others[place + 1 :]]

    made, all_rows = lax.switch(index, [partial(chosen, place) for place in places], *operands)
    for inner, rows in zip(walks, all_rows, strict=True):
        walk.keep(inner, rows)
    return made


def _shard_map(walk: Walk, params: Mapping[str, Any], given: Values) -> Values:
    """`jax.shard_map`: each device has rows of its own, of its part alone."""
    inner, mesh, manual = walk.within(manual=True), params["mesh"], params["newly_manual_axes"]
    names = tuple(name for name in mesh.axis_names if name in manual)

    def body(*values: Any) -> tuple[Values, list[jax.Array]]:
        inner.begin()
        made = inner.run(params["jaxpr"], (), list(values))
        return made, [rows.reshape(*[1] * len(names), *rows.shape) for rows in inner.give()]

    mapped = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=params["in_specs"],
        out_specs=(list(params["out_specs"]), PartitionSpec(*names)),
        axis_names=set(manual),
        check_vma=params["check_vma"],
    )
    made, rows = mapped(*given)
    told = manual if not params["check_vma"] else frozenset[str]()
    inner.found = [
        replace(found, axes=(*names, *found.axes), varies=found.varies | told)
        for found in inner.found
    ]
    walk.keep(inner, rows)
    return made


def _nothing(shape: Any, like: Sequence[Any]) -> jax.Array:
    return typed_as(jnp.asarray(empty_rows(*shape.shape[:-1])), *like)


def _cut(values: Sequence[Any], at: int) -> tuple[Values, Values]:
    return list(values[:at]), list(values[at:])


RULES: Mapping[str, Rule] = {
    known.jit_p.name: _jit,
    known.closed_call_p.name: _closed_call,
    known.remat_p.name: _checkpoint,
    known.scan_p.name: _scan,
    known.while_p.name: _while,
    known.cond_p.name: _cond,
    "shard_map": _shard_map,
    known.custom_jvp_call_p.name: partial(_custom, known.custom_jvp_call_p),
    known.custom_vjp_call_p.name: partial(_custom, known.custom_vjp_call_p),
}
"""By name of the primitive."""
