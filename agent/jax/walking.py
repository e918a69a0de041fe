"""A traced function, evaluated once more, with a sketch of each marked value beside its results.

What holds no mark is left as it is. Of functions within it, `functions` has the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxprs_in_params
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ...sketch.errors import SettingError
from ..printing import PrintOptions
from .engine import sketch
from .printouts import row_to_print, rows_to_print
from .rows import varying
from .shards import names_of, per_device
from .taps import Mark, slope_p, value_p

Values = list[Any]
Loop = tuple[int, bool]
"""Number of a scan in the walk, and whether it runs from the last iteration to the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One marked value, and what its rows are of."""

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
    is_sum: bool = False
    """Whether its calls are to be added up: `rows` is an array that is still to be sketched, or a
    row that is to be printed."""
    sharding: NamedSharding | None = None
    """How that is sharded, where it is known."""
    loops: tuple[Loop, ...] = ()
    """The scans around it, the outermost first; of a sum none, which has no iterations."""


Sketched = tuple[jax.Array, tuple[str, ...], frozenset[str], PartitionSpec | None]
"""Rows, axes, varies and spec, as of `Found`."""


OUT_OF_REACH = "it is in a function that cannot be looked into, as a custom kernel"
IN_A_CONDITION = "it is in the condition of a loop"
NOT_OF_SAMPLES = "it has not a row a sample, of {} (`batch`): give `tap` its sharding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Which values have a row a sample, and how they lie on the mesh."""

    sharding: NamedSharding
    count: int
    """Length of their first axis."""

    def of(self, x: jax.Array) -> NamedSharding | None:
        """The sharding of `x`, if it is such a value and can be cut so."""
        mesh, spec = self.sharding.mesh, self.sharding.spec
        if not x.ndim or x.shape[0] != self.count or len(spec) > x.ndim:
            return None
        parts = [math.prod(mesh.shape[name] for name in names_of(entry)) for entry in spec]
        fits = all(size % part == 0 for size, part in zip(x.shape, parts, strict=False))
        return self.sharding if fits else None


Rule = Callable[["Walk", Mapping[str, Any], Values], Values]
"""Evaluates a function within, given the parameters of its call and its arguments."""


class Walk:
    """One evaluation.

    Args:
        rules: by name of the primitive, of functions within.
        again: whether all was evaluated before: values are not counted again, but gradients are.
        samples: how arrays lie on the mesh of which nobody says it. Those that have not a row a
            sample are not seen then: to see them XLA might have to add up or gather over devices.
        loops: numbers for scans; None: from 0 on.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        *,
        again: bool = False,
        samples: Samples | None = None,
        loops: Iterator[int] | None = None,
    ) -> None:
        self.found: list[Found] = []
        self.rows: list[jax.Array] = []
        """Of each found uint32 [*sizes of the mesh's axes, *lengths of scans, WORDS], or what is to
        be added up."""
        self.unseen: list[str] = []
        self._rules, self._again, self._samples = rules, again, samples
        self.loops = loops or count()
        """Numbers of scans, also of those in walks within this one."""
        self._read: dict[tuple[int, NamedSharding | None], tuple[jax.Array, Sketched]] = {}

    def run(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> Values:
        """The results of an open jaxpr; what is marked in it is added to `found`."""
        values = dict(zip(jaxpr.constvars, constants, strict=True))
        values |= zip(jaxpr.invars, arguments, strict=True)

        def read(variable: Any) -> Any:
            return variable.val if hasattr(variable, "val") else values[variable]

        for equation in jaxpr.eqns:
            given = [read(variable) for variable in equation.invars]
            with equation.ctx.manager, _scope_of(equation):
                made = self._evaluate(equation, given)
            values |= zip(equation.outvars, made, strict=True)
        return [read(variable) for variable in jaxpr.outvars]

    def _evaluate(self, equation: Any, given: Values) -> Values:
        primitive, params = equation.primitive, equation.params
        if primitive is value_p or primitive is slope_p:
            self._note(given[0], params["mark"], params.get("backward"))
            return given
        marks = list(marks_in(params))
        rule = self._rules.get(primitive.name) if marks else None
        if rule is not None:
            return rule(self, params, given)
        self.unseen += [f"{mark.name} ({OUT_OF_REACH})" for mark in marks]
        made = primitive.bind(*given, **primitive.get_bind_params(params))
        return list(made) if primitive.multiple_results else [made]

    def _note(self, x: jax.Array, mark: Mark, backward: bool | None) -> None:
        """`backward` is None of a value, and False of a tangent, of which nothing is kept."""
        if backward is False or (backward is None and self._again):
            return
        sharding = mark.sharding or _explicit(x)
        if sharding is None and self._samples is not None:
            sharding = self._samples.of(x)
            if sharding is None:
                self.unseen.append(f"{mark.name} ({NOT_OF_SAMPLES.format(self._samples.count)})")
                return
        if mark.printed is not None:
            self._note_print(x, mark, sharding, mark.printed, backward=backward is True)
            return
        if mark.mode.name == "sum":
            self._note_addend(x, mark, sharding, backward=backward is True)
            return
        key = id(x), sharding
        if key not in self._read:  # a module often returns what one in it did
            self._read[key] = x, sketched(x, sharding)
        rows, axes, varies, spec = self._read[key][1]
        found = Found(
            mark=mark,
            backward=backward is True,
            dtype=x.dtype.name,
            shape=x.shape,
            axes=axes,
            varies=varies,
            spec=spec,
        )
        self.found.append(found)
        self.rows.append(rows)

    def _note_addend(
        self, x: jax.Array, mark: Mark, sharding: NamedSharding | None, *, backward: bool
    ) -> None:
        x = lax.stop_gradient(x.astype(jnp.promote_types(x.dtype, jnp.float32)))
        found = Found(
            mark=mark,
            backward=backward,
            dtype=x.dtype.name,
            shape=x.shape,
            axes=(),
            varies=varying(x),
            spec=None,
            is_sum=True,
            sharding=sharding,
        )
        self.found.append(found)
        self.rows.append(x)

    def _note_print(
        self,
        x: jax.Array,
        mark: Mark,
        sharding: NamedSharding | None,
        how: PrintOptions,
        *,
        backward: bool,
    ) -> None:
        if backward and not mark.with_gradient:
            return
        is_sum, along = mark.mode.name == "sum", sharding.spec if sharding is not None else ()
        found = Found(
            mark=mark,
            backward=backward,
            dtype=jnp.promote_types(x.dtype, jnp.float32).name if is_sum else x.dtype.name,
            shape=x.shape if sharding is None else sharding.shard_shape(x.shape),
            axes=() if sharding is None else sharding.mesh.axis_names,
            varies=varying(x) | {name for entry in along for name in names_of(entry)},
            spec=None,
            is_sum=is_sum,
        )
        self.found.append(found)
        self.rows.append(
            row_to_print(x, how) if sharding is None else rows_to_print(x, sharding, how)
        )

    def keep(self, inner: Walk, rows: Sequence[jax.Array]) -> None:
        """What a walk within this one found, its rows as they come out of the function around."""
        self.found += inner.found
        self.rows += rows
        self.unseen += inner.unseen

    def give(self) -> list[jax.Array]:
        """The rows, as results of the function that is being traced: they must not outlive that."""
        rows, self.rows, self._read = self.rows, [], {}
        return rows

    def within(self, *, again: bool = False, manual: bool = False) -> Walk:
        """A walk through a function within; `manual`: one that each device runs by itself."""
        samples = None if manual else self._samples
        return Walk(self._rules, again=again or self._again, samples=samples, loops=self.loops)

    def begin(self) -> None:
        """Forget what was found: JAX may trace a function within more than once."""
        self.found.clear()
        self.unseen.clear()


def sketched(x: jax.Array, sharding: NamedSharding | None) -> Sketched:
    """The sketch of an array, by device where its sharding is known."""
    if sharding is None:
        return sketch(x), (), varying(x), None
    varies = frozenset(name for entry in sharding.spec for name in names_of(entry))
    return per_device(x, sharding), sharding.mesh.axis_names, varies, sharding.spec


def not_added_up(name: str) -> SettingError:
    """Of a sum that was made on each device by itself, in a loop that goes on."""
    return SettingError(
        f"tap {name!r} has the mode sum in a shard_map that is called in a loop, and what devices "
        "hold is not added up beyond it: have the loop within the shard_map, or tap what it "
        "returns."
    )


def _explicit(x: jax.Array) -> Any:
    """The sharding of `x` where its type tells it."""
    sharding: Any = jax.typeof(x).sharding
    types = set(sharding.mesh.axis_types)
    return sharding if types == {AxisType.Explicit} and not sharding.mesh.empty else None


def _scope_of(equation: Any) -> AbstractContextManager[object]:
    """What profilers call it."""
    name = str(equation.source_info.name_stack)
    return jax.named_scope(name) if name else nullcontext()


def marks_in(params: Mapping[str, Any]) -> Sequence[Mark]:
    """The marks in the functions among the parameters of a call."""
    marks = list[Mark]()
    for jaxpr in jaxprs_in_params(params):
        for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            if equation.primitive is value_p or equation.params.get("backward"):
                marks.append(equation.params["mark"])
            marks += marks_in(equation.params)
    return marks
