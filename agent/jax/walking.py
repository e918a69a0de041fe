"""A traced function, evaluated once more, with a sketch of each marked value beside its results.

Functions within it (of `scan`, `cond`, `checkpoint`, …) are given their sketches as further
results, by the same public functions of JAX that made them. What holds no mark is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxprs_in_params
from jax.extend.core import primitives as known
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .engine import sketch
from .rows import empty_rows, merge, typed_as
from .shards import names_of, per_device
from .taps import Mark, slope_p, value_p

Values = list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The sketches of one marked value."""

    mark: Mark
    backward: bool
    """Whether it is the gradient."""
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    """Axes of the mesh that lead the rows."""
    varies: frozenset[str]
    """Those along which devices may hold different parts; along the others they hold copies."""
    spec: PartitionSpec | None
    """How the array is cut along them; None in `shard_map`, where nobody told."""
    rows: jax.Array
    """uint32 [*sizes of the mesh's axes, *lengths of scans, WORDS]"""


Sketched = tuple[jax.Array, tuple[str, ...], frozenset[str], PartitionSpec | None]
"""Rows, axes, varies and spec, as of `Found`."""


class Walk:
    """One evaluation.

    Args:
        again: whether all was evaluated before: values are not counted again, but gradients are.
        samples: how arrays lie on the mesh of which nobody says it, if their first axis can be cut
            so.
    """

    def __init__(self, *, again: bool = False, samples: NamedSharding | None = None) -> None:
        self.found: list[Found] = []
        self.unseen: list[str] = []
        self._again, self._samples = again, samples
        self._read: dict[tuple[int, NamedSharding | None], tuple[jax.Array, Sketched]] = {}

    def run(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> Values:
        """The results of an open jaxpr; what is marked in it is added to `found`."""
        values = dict(zip(jaxpr.constvars, constants, strict=True))
        values |= zip(jaxpr.invars, arguments, strict=True)

        def read(variable: Any) -> Any:
            return variable.val if hasattr(variable, "val") else values[variable]

        for equation in jaxpr.eqns:
            given = [read(variable) for variable in equation.invars]
            with equation.ctx.manager:
                made = self._evaluate(equation, given)
            values |= zip(equation.outvars, made, strict=True)
        return [read(variable) for variable in jaxpr.outvars]

    def _evaluate(self, equation: Any, given: Values) -> Values:
        primitive, params = equation.primitive, equation.params
        if primitive is value_p or primitive is slope_p:
            self._note(given[0], params["mark"], params.get("backward"))
            return given
        marks = list(_marks_in(params))
        rule = _RULES.get(primitive.name) if marks else None
        if rule is not None:
            return rule(self, params, given)
        self.unseen += [mark.name for mark in marks]
        made = primitive.bind(*given, **primitive.get_bind_params(params))
        return list(made) if primitive.multiple_results else [made]

    def _note(self, x: jax.Array, mark: Mark, backward: bool | None) -> None:
        """`backward` is None of a value, and False of a tangent, of which nothing is kept."""
        if backward is False or (backward is None and self._again):
            return
        sharding = mark.sharding or _explicit(x) or _of_samples(x, self._samples)
        key = id(x), sharding
        if key not in self._read:  # a module often returns what one in it did
            self._read[key] = x, _sketched(x, sharding)
        rows, axes, varies, spec = self._read[key][1]
        found = Found(
            mark=mark,
            backward=backward is True,
            dtype=x.dtype.name,
            shape=x.shape,
            axes=axes,
            varies=varies,
            spec=spec,
            rows=rows,
        )
        self.found.append(found)

    def keep(self, inner: Walk, rows: Sequence[jax.Array]) -> None:
        """What a walk within this one found, its rows as they come out of the function around."""
        self.found += [replace(f, rows=r) for f, r in zip(inner.found, rows, strict=True)]
        self.unseen += inner.unseen

    def within(self, *, again: bool = False, manual: bool = False) -> Walk:
        """A walk through a function within; `manual`: one that each device runs by itself."""
        samples = None if manual else self._samples
        return Walk(again=again or self._again, samples=samples)

    def begin(self) -> None:
        """Forget what was found: JAX may trace a function within more than once."""
        self.found.clear()
        self._read.clear()


def _sketched(x: jax.Array, sharding: NamedSharding | None) -> Sketched:
    if sharding is None:
        return sketch(x), (), _varying(x), None
    varies = frozenset(name for entry in sharding.spec for name in names_of(entry))
    return per_device(x, sharding), sharding.mesh.axis_names, varies, sharding.spec


def _explicit(x: jax.Array) -> Any:
    """The sharding of `x` where its type tells it."""
    sharding: Any = jax.typeof(x).sharding
    types = set(sharding.mesh.axis_types)
    return sharding if types == {AxisType.Explicit} and not sharding.mesh.empty else None


def _of_samples(x: jax.Array, samples: NamedSharding | None) -> NamedSharding | None:
    """How samples lie on the mesh, if `x` may be one a row."""
    if samples is None or not x.ndim:
        return None
    parts = math.prod(samples.mesh.shape[name] for name in names_of(samples.spec[0]))
    return samples if x.shape[0] % parts == 0 else None


def _varying(x: jax.Array) -> frozenset[str]:
    """Along which axes of the mesh `x` may differ in `shard_map`, as its type tells there.

    It is called `vma` in releases before 0.10.
    """
    kind: Any = jax.typeof(x)
    return frozenset(kind.mat.varying if hasattr(kind, "mat") else kind.vma)


def _marks_in(params: Mapping[str, Any]) -> Sequence[Mark]:
    marks = list[Mark]()
    for jaxpr in jaxprs_in_params(params):
        for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            if equation.primitive is value_p or equation.params.get("backward"):
                marks.append(equation.params["mark"])
            marks += _marks_in(equation.params)
    return marks


def _rows_of(walk: Walk) -> list[jax.Array]:
    return [found.rows for found in walk.found]


def _call(name: str, walk: Walk, params: Mapping[str, Any], given: Values) -> Values:
    """`jit`, and calls that JAX makes itself: evaluated in place."""
    return walk.run(params[name].jaxpr, params[name].consts, given)


def _custom(primitive: Any, walk: Walk, params: Mapping[str, Any], given: Values) -> Values:
    """`custom_vjp` and `custom_jvp`, not differentiated yet: called as they are, for their rules.

    The same once more, for its marks; the compiler sees that it is the same.
    """
    inner, function = walk.within(), params["call_jaxpr"]
    inner.run(function.jaxpr, function.consts, [lax.stop_gradient(x) for x in given])
    walk.keep(inner, _rows_of(inner))
    return primitive.bind(*given, **primitive.get_bind_params(params))


def _checkpoint(walk: Walk, params: Mapping[str, Any], given: Values) -> Values:
    """`jax.checkpoint`; in the backward it computes again what the forward did."""
    inner, jaxpr = walk.within(again=params["differentiated"]), params["jaxpr"]
    if params["differentiated"]:
        if params["prevent_cse"]:
            given = _kept_apart(given)
        made = inner.run(jaxpr, (), given)
        walk.keep(inner, _rows_of(inner))
        return made

    def evaluated(*values: Any) -> tuple[Values, list[jax.Array]]:
        inner.begin()
        return inner.run(jaxpr, (), values), _rows_of(inner)

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
        places.setdefault(_varying(value), []).append(place)
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
        return carry, (stacked, _rows_of(inner))

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
    inner = walk.within()

    def run(state: Values) -> tuple[Values, list[jax.Array]]:
        inner.begin()
        made = inner.run(function.jaxpr, function.consts, [*constants, *state])
        return made, _rows_of(inner)

    def body(both: tuple[Values, list[jax.Array]]) -> tuple[Values, list[jax.Array]]:
        made, rows = run(both[0])
        return made, [merge(a, b) for a, b in zip(both[1], rows, strict=True)]

    def goes_on(both: tuple[Values, list[jax.Array]]) -> jax.Array:
        return Walk().run(condition.jaxpr, condition.consts, [*of_condition, *both[0]])[0]

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
        return made, _rows_of(inner)

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
        return made, [rows.reshape(*[1] * len(names), *rows.shape) for rows in _rows_of(inner)]

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


_RULES: Mapping[str, Callable[[Walk, Mapping[str, Any], Values], Values]] = {
    known.jit_p.name: partial(_call, "jaxpr"),
    known.closed_call_p.name: partial(_call, "call_jaxpr"),
    known.remat_p.name: _checkpoint,
    known.scan_p.name: _scan,
    known.while_p.name: _while,
    known.cond_p.name: _cond,
    "shard_map": _shard_map,
    known.custom_jvp_call_p.name: partial(_custom, known.custom_jvp_call_p),
    known.custom_vjp_call_p.name: partial(_custom, known.custom_vjp_call_p),
}
