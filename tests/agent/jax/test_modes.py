"""Modes of taps under JAX: what is taken of the calls of a step, whatever loop they are in."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rankscope.agent.jax import Taps, collect, tap
from rankscope.agent.jax.in_program import made_of_taps
from rankscope.agent.jax.rows import table_of
from rankscope.sketch import SettingError, SketchTable, sketch_array

from .test_taps import mesh_of, whole_numbers

MODES = ("final", "sum", "every(2)")
BATCHES = whole_numbers(0, 5, 4, 8)
WEIGHTS = whole_numbers(1, 8, 8)


def loss(weights: jax.Array, batch: jax.Array) -> jax.Array:
    scores = batch @ weights
    for mode in MODES:
        scores = tap(mode, scores, mode=mode)
    return (scores * batch).sum()


def around(weights: jax.Array, batches: jax.Array) -> Taps:
    """The loop over micro-batches is the user's, around `collect`."""
    graded = collect(jax.value_and_grad(loss))
    return lax.scan(lambda _, batch: (None, graded(weights, batch)[1]), None, batches)[1]


def within(weights: jax.Array, batches: jax.Array) -> Taps:
    """It is in the function that is collected from, which differentiates it."""

    def total(weights: jax.Array) -> jax.Array:
        return lax.scan(lambda sum_, x: (sum_ + loss(weights, x), None), jnp.zeros(()), batches)[0]

    return collect(jax.value_and_grad(total))(weights)[1]


def nested(weights: jax.Array, batches: jax.Array) -> Taps:
    """Each in a loop of its own, of a loop; the last is an iteration of nothing but its own."""

    def total(weights: jax.Array, one: jax.Array) -> jax.Array:
        return lax.scan(lambda sum_, x: (sum_ + loss(weights, x), None), jnp.zeros(()), one[None])[
            0
        ]

    graded = collect(jax.value_and_grad(total))
    return lax.scan(lambda _, batch: (None, graded(weights, batch)[1]), None, batches)[1]


def of(taps: Taps) -> dict[tuple[str, str], SketchTable]:
    """The one sketch of each tap."""
    made = made_of_taps(taps, lambda _: True)
    assert all(len(one.sites) == 1 for one in made)
    sites = [one.sites[0].site for one in made]
    tables = [table_of(one.rows) for one in made]
    return {(s.name, s.slot): table for s, table in zip(sites, tables, strict=True)}


def merged(*arrays: Any) -> SketchTable:
    return reduce(SketchTable.merge, (sketch_array(np.asarray(array)) for array in arrays))


def same(a: SketchTable, b: SketchTable) -> bool:
    columns = ("counts", "histogram", "checksum")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in columns)


@pytest.mark.parametrize("loop", [around, within, nested])
def test_a_mode_says_what_is_taken_of_the_micro_batches(loop: Callable[..., Taps]) -> None:
    found = of(jax.jit(loop)(WEIGHTS, BATCHES))

    values, gradients = BATCHES @ WEIGHTS, BATCHES
    for slot, calls in (("", values), ("gradient", gradients)):
        assert same(found["final", slot], merged(calls[-1]))
        assert same(found["sum", slot], merged(calls.sum(0)))
        assert same(found["every(2)", slot], merged(calls[1], calls[3]))


def test_a_sum_of_bfloat16_is_one_of_float32() -> None:
    def ones(batches: jax.Array) -> Any:
        return lax.scan(lambda _, x: (None, tap("x", x, mode="sum")), None, batches)[1]

    taps = jax.jit(collect(ones))(jnp.ones((300, 2), jnp.bfloat16))[1]
    (made,) = made_of_taps(taps, lambda _: True)

    assert made.sites[0].dtype == "float32"
    assert same(table_of(made.rows), merged(np.full(2, 300, np.float32)))


@pytest.mark.parametrize(("mode", "expected"), [("final", [4.0]), ("sum", [10.0])])
def test_a_loop_of_unknown_length_has_modes(mode: str, expected: list[float]) -> None:
    def counting(limit: jax.Array) -> jax.Array:
        return lax.while_loop(
            lambda x: (x < limit).all(), lambda x: tap("x", x + 1, mode=mode), jnp.zeros(1)
        )

    taps = jax.jit(collect(counting))(jnp.asarray(4.0))[1]
    assert same(of(taps)["x", ""], merged(np.array(expected, np.float32)))


def test_branches_that_do_not_run_add_nothing() -> None:
    def model(batches: jax.Array) -> Any:
        def body(_: None, x: jax.Array) -> tuple[None, Any]:
            return None, lax.cond(x[0] > 0, lambda x: tap("x", x, mode="sum"), lambda x: -x, x)

        return lax.scan(body, None, batches)[1]

    taps = jax.jit(collect(model))(jnp.array([[1.0, 2.0], [-3.0, 4.0], [5.0, 6.0]]))[1]
    assert same(of(taps)["x", ""], merged(np.array([6, 8], np.float32)))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_each_device_adds_up_its_own(kind: AxisType) -> None:
    sharding = NamedSharding(mesh_of(kind), P(None, "dp"))
    batches = jax.device_put(whole_numbers(2, 3, 4, 8), sharding)
    told = NamedSharding(sharding.mesh, P("dp")) if kind is AxisType.Auto else None

    def scanned(batches: jax.Array) -> Any:
        def body(_: None, x: jax.Array) -> tuple[None, Any]:
            return None, tap("x", x, mode="sum", sharding=told).sum(-1)

        return lax.scan(body, None, batches)[1]

    manual = jax.shard_map(
        scanned, mesh=sharding.mesh, in_specs=P(None, "dp"), out_specs=P(None, "dp")
    )
    compiled = jax.jit(collect(scanned)).lower(batches).compile()
    (made,) = made_of_taps(compiled(batches)[1], lambda _: True)
    total = np.asarray(batches.sum(0))

    assert "all-" not in (compiled.as_text() or "")
    assert (made.sites[0].axes, made.sites[0].varies) == (("dp", "tp"), ("dp",))
    halves = table_of(np.asarray(made.rows)[:, 0])
    assert same(halves.take([0]).merge(halves.take([1])), merged(total))
    if kind is AxisType.Explicit:
        return
    told = None
    (made,) = made_of_taps(jax.jit(collect(manual))(batches)[1], lambda _: True)
    halves = table_of(np.asarray(made.rows)[:, 0])
    assert made.sites[0].varies == ("dp",)
    assert same(halves.take([0]), merged(total[:2]))
    assert same(halves.take([1]), merged(total[2:]))


def test_modes_that_cannot_be_had_are_refused_while_the_step_is_traced() -> None:
    mesh = mesh_of(AxisType.Auto)
    manual = jax.shard_map(
        lambda x: tap("x", x, mode="sum"), mesh=mesh, in_specs=P("dp"), out_specs=P("dp")
    )

    def in_loop(x: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (manual(x), None), x, length=2)[0]

    def unknown(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda x: x[0] < 9, lambda x: tap("x", x + 1, mode="every(2)"), x)

    x = jnp.zeros(4)
    with pytest.raises(SettingError, match=r"'last' is no mode; write all, final, sum or every"):
        tap("x", x, mode="last")
    with pytest.raises(SettingError, match="have the loop within the shard_map"):
        jax.jit(collect(in_loop))(x)
    with pytest.raises(SettingError, match="have the loop within the shard_map"):
        made_of_taps(
            lax.scan(lambda _, x: (None, collect(manual)(x)[1]), None, jnp.zeros((2, 4)))[1],
            lambda _: True,
        )
    with pytest.raises(SettingError, match=r"'x' has the mode every\(2\) in a while_loop"):
        jax.jit(collect(unknown))(x)
