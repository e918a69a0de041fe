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

from ...sketch.errors import SettingError
from .rows import empty_rows, merge, typed_as, varying
from .walking import (
    IN_A_CONDITION,
    Found,
    Rule,
    Values,
    Walk,
    marks_in,
    not_added_up,
    sketched,
)


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
    """`lax.scan`: each iteration has rows of its own, after those axes of the mesh that lead.

    What is to be added up is, on the way.
    """
    inner, function = walk.within(), params["jaxpr"]
    constants, rest = _cut(given, params["num_consts"])
    carry, over = _cut(rest, params["num_carry"])

    def run(carry: Values, over: Values) -> tuple[Values, list[jax.Array]]:
        inner.begin()
        made = inner.run(function.jaxpr, function.consts, [*constants, *carry, *over])
        return made, inner.give()

    def body(both: tuple[Values, list[jax.Array]], over: Values) -> Any:
        made, rows = run(both[0], over)
        _check_loop(inner.found)
        carry, stacked = _cut(made, params["num_carry"])
        sums, rest = _sums_apart(inner.found, rows)
        return (carry, [a + b for a, b in zip(both[1], sums, strict=True)]), (stacked, rest)

    zeros = list[jax.Array]()
    if any(mark.mode.name == "sum" for mark in marks_in(params)):
        first = [jax.eval_shape(lambda x: x[0], x) for x in over]
        shapes = jax.eval_shape(run, carry, first)[1]
        zeros = [
            _nothing(one, shape, given) for one, shape in zip(inner.found, shapes, strict=True)
        ]
        zeros = _sums_apart(inner.found, zeros)[0]
    (carry, sums), (stacked, rest) = lax.scan(
        body,
        (carry, zeros),
        over,
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    loop = next(walk.loops), params["reverse"]
    inner.found = [
        found if found.is_sum else replace(found, loops=(loop, *found.loops))
        for found in inner.found
    ]
    left, added = iter(rest), iter(sums)
    rows = [
        next(added) if found.is_sum else jnp.moveaxis(next(left), 0, len(found.axes))
        for found in inner.found
    ]
    walk.keep(inner, rows)
    return [*carry, *stacked]


def _while(walk: Walk, params: Mapping[str, Any], given: Values) -> Values:
    """`lax.while_loop`: how many iterations there are is not known, so that they are merged.

    Of some the last is taken, or they are added up.
    """
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
        _check_loop(inner.found, counted=False)
        triples = zip(inner.found, both[1], rows, strict=True)
        return made, [_joined(found, a, b) for found, a, b in triples]

    def goes_on(both: tuple[Values, list[jax.Array]]) -> jax.Array:
        return walk.within().run(condition.jaxpr, condition.consts, [*of_condition, *both[0]])[0]

    shapes = jax.eval_shape(run, state)[1]
    pairs = zip(inner.found, shapes, strict=True)
    nothing = [_nothing(found, shape, given) for found, shape in pairs]
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
    pairs = [
        list(zip(inner.found, some, strict=True)) for inner, some in zip(walks, shapes, strict=True)
    ]

    def chosen(place: int, *values: Any) -> tuple[Values, list[list[jax.Array]]]:
        made, rows = of(place, values)
        others = [[_nothing(found, shape, values) for found, shape in some] for some in pairs]
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
        found, rows = inner.found, inner.give()
        rows = [
            sketched(one, None)[0] if of.is_sum and of.mark.printed is None else one
            for of, one in zip(found, rows, strict=True)
        ]
        return made, [one.reshape(*[1] * len(names), *one.shape) for one in rows]

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
        replace(found, axes=(*names, *found.axes), varies=found.varies | told, is_sum=False)
        for found in inner.found
    ]
    walk.keep(inner, rows)
    return made


def _nothing(found: Found, shape: Any, like: Sequence[Any]) -> jax.Array:
    """What is found where nothing runs."""
    is_sketch = not found.is_sum and found.mark.printed is None
    empty = jnp.asarray(empty_rows(*shape.shape[:-1])) if is_sketch else jnp.zeros_like(shape)
    return typed_as(empty, *like)


def _joined(found: Found, before: jax.Array, now: jax.Array) -> jax.Array:
    """What is taken of two iterations of a loop, which have no rows of their own."""
    if found.is_sum:
        return before + now
    return now if found.mark.mode.name == "final" else merge(before, now)


def _sums_apart(
    found: Sequence[Found], rows: Sequence[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array]]:
    pairs = list(zip(found, rows, strict=True))
    sums = [one for of, one in pairs if of.is_sum]
    return sums, [one for of, one in pairs if not of.is_sum]


def _check_loop(found: Sequence[Found], *, counted: bool = True) -> None:
    """Refuse modes of what is in a loop that cannot be had there.

    Args:
        counted: whether the loop's iterations have rows of their own.

    Raises:
        SettingError: there is one.
    """
    for one in found:
        name, mode = one.mark.name, one.mark.mode
        if mode.name == "sum" and not one.is_sum:
            raise not_added_up(name)
        if mode.name == "all" and one.mark.printed is not None and not counted:
            raise SettingError(
                f"{name!r} is printed in a while_loop, and nobody knows how many calls that will "
                "be: give the mode final or sum."
            )
        if mode.name == "every" and not counted:
            raise SettingError(
                f"tap {name!r} has the mode {mode} in a while_loop, whose iterations are merged, "
                "for nobody knows how many there are: use lax.scan, or the mode final, sum or all."
            )


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
