"""`collect(fn)`: what `fn` returns, and the sketches of all values and gradients tapped in it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ...sketch.errors import SettingError
from ...wire.messages import Kind
from ..modes import Mode
from ..printing import PrintOptions
from .functions import RULES
from .objects import Objects
from .shards import names_of
from .walking import Found, Loop, Samples, Walk

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class TapSite:
    """What the rows of one tap are of."""

    kind: Kind
    name: str
    slot: str
    occurrence: int
    """Which tap of that kind, name and slot it is, in the order of the forward."""
    module: str
    """Class of the module that gave it, or nothing."""
    dtype: str
    shape: tuple[int, ...]
    """Of what one row is of."""
    axes: tuple[str, ...]
    """Axes of the mesh that lead the rows; none where each row is of a whole."""
    varies: frozenset[str]
    """Those of the axes along which devices may hold different parts of the whole; along the others
    they hold copies."""
    spec: PartitionSpec | None
    """How `shape` is cut along them; None in `shard_map`, where `shape` is of a part."""
    stacked: tuple[int, ...]
    """Lengths of the scans around it, the outermost first."""
    at: int
    """Its place in the order in which all taps run, without iterations; see `running`."""
    loops: tuple[Loop, ...]
    """The scans around it, as `stacked` has them."""
    mode: Mode
    """What is taken of its calls."""
    is_sum: bool
    """Whether its rows are the array itself, which is to be added up before it is sketched."""
    sharding: NamedSharding | None
    """How that is sharded, where it is known."""
    printed: PrintOptions | None
    """How it is printed; None: it is sketched."""


@partial(jax.tree_util.register_dataclass, data_fields=["rows"], meta_fields=["sites", "unseen"])
@dataclass(frozen=True, slots=True)
class Taps:
    """The sketches of one call; a pytree, which jit and friends pass through."""

    rows: tuple[jax.Array, ...] = ()
    """By site uint32 [*sizes of its mesh axes, *stacked, WORDS], see `rows`; of a sum the array.
    Of what is printed see `printouts`."""
    sites: tuple[TapSite, ...] = ()
    unseen: tuple[str, ...] = field(default=())
    """Names of taps of which nothing is known, and why, as of those in kernels of Pallas."""


def collect(
    fn: Callable[Arguments, Result],
    *,
    within: Callable[[], AbstractContextManager[object]] = nullcontext,
    samples: NamedSharding | None = None,
    batch: int | None = None,
) -> Callable[Arguments, tuple[Result, Taps]]:
    """A function that returns what `fn` does, and the sketches of what is tapped in it.

    Around `jax.value_and_grad(loss)` it has the gradients, too:

        (loss, gradients), taps = collect(jax.value_and_grad(loss_of))(params, batch)

    To be called in the jitted step. A tap in `lax.scan` has a row an iteration, unless its mode is
    `sum`; of `lax.cond` the branch that ran; in `lax.while_loop` one for all iterations; under
    `vmap` one for all examples, unless `collect` itself is mapped. What `jax.checkpoint` computes
    again is not counted again. Rows that the step does not return cost nothing.

    Args:
        fn: of any pytrees; what is no array in them is taken as constant. It is traced once a call.
            What it changes in modules of nnx that it is given is changed.
        within: a context in which it is traced, as that of `linen.outputs`.
        samples: how samples lie on the mesh, as `NamedSharding(mesh, P("dp"))`, where its axes are
            automatic. Then no collective is added: what has not a row a sample is not seen, and
            told, unless the tap has a sharding. Without it a sketch is of the whole, which XLA may
            have to gather.
        batch: how many samples there are: what has so many rows is taken to have one each.

    Raises:
        SettingError: `samples` or `batch` cannot be used.
    """

    check_within(within)
    call: Callable[..., Any] = fn
    how, within_key = _samples_of(samples, batch), object()

    @wraps(fn)
    def collected(*args: Arguments.args, **kwargs: Arguments.kwargs) -> tuple[Result, Taps]:
        objects = Objects((args, kwargs))
        leaves, tree = jax.tree.flatten(objects.split())
        arrays, rest = _parted(leaves)
        given_back: list[Any] = []

        def flat(*arrays: jax.Array) -> Sequence[Any]:
            args, kwargs = objects.merged(*jax.tree.unflatten(tree, _joined(arrays, rest)))
            with _traced_within(within_key), within():
                made = call(*args, **kwargs)
            leaves, out_tree = jax.tree.flatten((made, objects.state()))
            out, constants = _parted(leaves)
            given_back[:] = constants, out_tree
            return out

        traced = jax.make_jaxpr(flat)(*arrays)
        walk = Walk(RULES, samples=how)
        out = walk.run(traced.jaxpr, traced.consts, arrays)
        constants, out_tree = given_back
        result, state = jax.tree.unflatten(out_tree, _joined(out, constants))
        objects.update(state)
        return result, _taps(walk)

    return collected


def check_within(within: object) -> None:
    """Refuse a context where what makes one is asked for: each trace needs its own.

    Raises:
        SettingError: it is one.
    """
    if isinstance(within, AbstractContextManager):
        raise SettingError(
            "`within` must be a function that makes a context, got a context: write "
            "within=lambda: outputs(model)."
        )


def _samples_of(sharding: object, batch: int | None) -> Samples | None:
    if sharding is None:
        return None
    if not isinstance(sharding, NamedSharding):
        raise SettingError(
            f"`samples` must be a NamedSharding, as NamedSharding(mesh, P('dp')), got {sharding!r}."
        )
    if not len(sharding.spec) or not names_of(sharding.spec[0]):
        raise SettingError(
            f"`samples` must cut the first axis, as P('dp') does, got {sharding.spec}; leave it out"
            " where no device has samples of its own."
        )
    if batch is None:
        raise SettingError(
            "`samples` needs `batch`: how many samples there are, for what has so many rows is"
            " taken to have one each."
        )
    is_alone = sharding.mesh.size == 1
    return None if is_alone else Samples(sharding=sharding, count=batch)


_traced_within = jax.make_user_context(default_value=None)
"""Part of the key under which JAX keeps traces: a context that taps must be given none from without
it, and leave none behind. A token stands for it: what is in a cache lives on, as would a model."""


def _parted(leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The arrays among the leaves; and all leaves with `_ARRAY` in place of these."""
    is_array = [isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in leaves]
    pairs = list(zip(leaves, is_array, strict=True))
    return [leaf for leaf, array in pairs if array], [_ARRAY if a else leaf for leaf, a in pairs]


def _joined(arrays: Sequence[Any], rest: Sequence[Any]) -> list[Any]:
    left = iter(arrays)
    return [next(left) if leaf is _ARRAY else leaf for leaf in rest]


_ARRAY = object()


def _taps(walk: Walk) -> Taps:
    """Rows of the forward, then of the backward, each in the order of the forward.

    So the occurrences of gradients are those of what they are of. Backward runs the other way.
    """
    if walk.unseen:
        names = ", ".join(dict.fromkeys(walk.unseen))
        logger.warning("Not seen are %s.", names)
    found = [
        (at, one, rows) for at, (one, rows) in enumerate(zip(walk.found, walk.rows, strict=True))
    ]
    forward = [one for one in found if not one[1].backward]
    ordered = [*forward, *reversed([one for one in found if one[1].backward])]
    calls = Counter[tuple[str, str, str]]()
    sites = list[TapSite]()
    for at, one, rows in ordered:
        site = _site_of(one, at, rows)
        key = site.kind, site.name, site.slot
        sites.append(replace(site, occurrence=calls[key]))
        calls[key] += 1
    return Taps(tuple(rows for *_, rows in ordered), tuple(sites), tuple(walk.unseen))


def _site_of(found: Found, at: int, rows: jax.Array) -> TapSite:
    mark, slot = found.mark, found.mark.slot
    kind = mark.gradient_kind if found.backward else mark.kind
    if found.backward and kind == mark.kind:
        slot = f"{slot}.gradient".removeprefix(".")
    return TapSite(
        kind=kind,
        name=mark.name,
        slot=slot,
        occurrence=0,
        module=mark.module,
        dtype=found.dtype,
        shape=found.shape,
        axes=found.axes,
        varies=found.varies,
        spec=found.spec,
        stacked=() if found.is_sum else rows.shape[len(found.axes) : -1],
        at=at,
        loops=found.loops,
        mode=found.mark.mode,
        is_sum=found.is_sum,
        sharding=found.sharding,
        printed=found.mark.printed,
    )
