"""Taps see each value and gradient once, however the function around them is transformed."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rankscope.agent.jax import Taps, TapSite, collect, tap
from rankscope.agent.jax.in_program import made_of_taps
from rankscope.agent.jax.rows import table_of
from rankscope.sketch import SketchTable, sketch_array

Weights = dict[str, jax.Array]
Model = Callable[[Weights, jax.Array], jax.Array]

LAYERS, TOKENS, WIDTH = 3, 4, 8


def whole_numbers(seed: int, *shape: int) -> jax.Array:
    """Small enough that all arithmetic on them is exact, in any order."""
    return jnp.asarray(np.random.default_rng(seed).integers(-1, 2, shape), jnp.float32)


WEIGHTS = {
    "mix": whole_numbers(0, LAYERS, TOKENS, TOKENS),
    "up": whole_numbers(1, LAYERS, WIDTH, WIDTH),
}
X = whole_numbers(2, TOKENS, WIDTH)


def layer(x: jax.Array, weights: Weights) -> jax.Array:
    x = tap("mixed", x + weights["mix"] @ x)
    return tap("mlp", x + jax.nn.relu(x @ weights["up"]))


def unrolled(one: Callable[..., jax.Array], weights: Weights, x: jax.Array) -> jax.Array:
    for number in range(LAYERS):
        x = one(x, jax.tree.map(lambda all_layers, n=number: all_layers[n], weights))
    return x.sum()


def scanned(one: Callable[..., jax.Array], weights: Weights, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, w: (one(x, w), None), x, weights)[0].sum()


def counted(weights: Weights, x: jax.Array) -> jax.Array:
    """The layers in a loop whose length is not known."""

    def body(state: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        number, x = state
        return number + 1, layer(x, jax.tree.map(lambda w: w[number], weights))

    return lax.while_loop(lambda state: state[0] < len(weights["up"]), body, (0, x))[1].sum()


plain: Model = partial(unrolled, layer)
keep_products = jax.checkpoint_policies.dots_saveable
VARIANTS: dict[str, Model] = {
    "scan": partial(scanned, layer),
    "unrolled checkpoint": partial(unrolled, jax.checkpoint(layer)),
    "scan of checkpoint": partial(scanned, jax.checkpoint(layer)),
    "scan of checkpoint with policy": partial(scanned, jax.checkpoint(layer, policy=keep_products)),
    "checkpoint of scan": jax.checkpoint(partial(scanned, layer)),
    "jit": partial(unrolled, jax.jit(layer)),
}


def by_site(taps: Taps) -> dict[tuple[str, str, int], tuple[TapSite, SketchTable]]:
    pairs = zip(taps.sites, taps.rows, strict=True)
    return {(s.name, s.slot, s.occurrence): (s, table_of(rows)) for s, rows in pairs}


def stacked(taps: Taps) -> dict[tuple[str, str], SketchTable]:
    """All rows of a name, be they of calls or of iterations."""
    tables: dict[tuple[str, str], list[SketchTable]] = {}
    for (name, slot, _), (_, table) in by_site(taps).items():
        tables.setdefault((name, slot), []).append(table)
    return {key: SketchTable.concatenate(found) for key, found in tables.items()}


def united(rows: Any) -> SketchTable:
    """All rows as one."""
    table = table_of(rows)
    return reduce(SketchTable.merge, (table.take([row]) for row in range(len(table))))


@pytest.fixture(scope="module")
def untransformed() -> dict[tuple[str, str], SketchTable]:
    """By plain calls, one after the other, not compiled."""
    return stacked(collect(jax.value_and_grad(plain))(WEIGHTS, X)[1])


def test_values_and_gradients_are_what_they_are() -> None:
    """Against derivatives by what is added to each value."""

    def by_hand(shifts: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        x, seen = X, []
        for number in range(LAYERS):
            x = x + WEIGHTS["mix"][number] @ x + shifts[number]
            seen.append(x)
            x = x + jax.nn.relu(x @ WEIGHTS["up"][number])
        return x.sum(), seen

    zeros = jnp.zeros((LAYERS, *X.shape))
    slopes, values = jax.grad(by_hand, has_aux=True)(zeros)
    found = by_site(jax.jit(collect(jax.grad(plain)))(WEIGHTS, X)[1])

    for number in range(LAYERS):
        for slot, arrays in (("", values), ("gradient", slopes)):
            expected = sketch_array(np.asarray(arrays[number]))
            assert found["mixed", slot, number][1].checksum == expected.checksum
            assert np.array_equal(found["mixed", slot, number][1].counts, expected.counts)


@pytest.mark.parametrize("name", VARIANTS)
def test_each_transformation_has_the_same_sketches(
    name: str, untransformed: dict[tuple[str, str], SketchTable]
) -> None:
    step = jax.value_and_grad(VARIANTS[name])
    result, taps = jax.jit(collect(step))(WEIGHTS, X)

    assert not taps.unseen
    assert stacked(taps) == untransformed
    for mine, theirs in zip(
        jax.tree.leaves(result), jax.tree.leaves(step(WEIGHTS, X)), strict=True
    ):
        assert np.array_equal(mine, theirs)


def test_a_loop_of_unknown_length_has_one_row(
    untransformed: dict[tuple[str, str], SketchTable],
) -> None:
    taps = jax.jit(collect(counted))(WEIGHTS, X)[1]

    assert [(site.name, site.stacked) for site in taps.sites] == [("mixed", ()), ("mlp", ())]
    for (name, _, _), (_, table) in by_site(taps).items():
        assert np.array_equal(table.counts[0], untransformed[name, ""].counts.sum(0))
        assert np.array_equal(table.histogram[0], untransformed[name, ""].histogram.sum(0))


def test_of_branches_the_one_that_ran_is_counted() -> None:
    def model(x: jax.Array, which: jax.Array) -> jax.Array:
        branches = [lambda x: tap("double", 2 * x), lambda x: tap("same", x), lambda x: -x]
        return lax.switch(which, branches, x).sum()

    step = jax.jit(collect(jax.grad(model)))
    for which, elements in enumerate(([32, 0], [0, 32], [0, 0])):
        found = by_site(step(X, jnp.asarray(which))[1])
        for slot in ("", "gradient"):
            assert [found[name, slot, 0][1].counts[0, 0] for name in ("double", "same")] == elements


def test_a_batch_is_one_sketch_within_and_many_around() -> None:
    batch = whole_numbers(3, 5, TOKENS, WIDTH)

    def of_batch(weights: Weights, batch: jax.Array) -> jax.Array:
        return jax.vmap(plain, (None, 0))(weights, batch).sum()

    within = stacked(jax.jit(collect(jax.value_and_grad(of_batch)))(WEIGHTS, batch)[1])
    around = jax.jit(jax.vmap(collect(jax.value_and_grad(plain)), (None, 0)))(WEIGHTS, batch)[1]

    assert {site.shape for site in around.sites} == {X.shape}
    merged = [table_of(made.rows) for made in made_of_taps(around, lambda _: True)]
    assert [table.counts[:, 0].tolist() for table in merged] == [[batch.size]] * len(around.sites)
    for site, rows in zip(around.sites, around.rows, strict=True):
        assert rows.shape[0] == 5
        merged = united(rows)
        whole = within[site.name, site.slot].take([site.occurrence])
        assert np.array_equal(merged.counts, whole.counts)
        assert np.array_equal(merged.histogram, whole.histogram)


def mesh_of(kind: AxisType) -> Mesh:
    return jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(kind, kind), devices=jax.devices()[:4])


@pytest.mark.parametrize(
    ("kind", "check"), [(AxisType.Auto, True), (AxisType.Auto, False), (AxisType.Explicit, True)]
)
def test_in_shard_map_each_device_has_rows_of_its_own(kind: AxisType, check: bool) -> None:
    mesh, batch = mesh_of(kind), whole_numbers(3, 4, TOKENS, WIDTH)

    def of_batch(weights: Weights, batch: jax.Array) -> jax.Array:
        return jax.vmap(partial(scanned, jax.checkpoint(layer)), (None, 0))(weights, batch)

    sharded = jax.shard_map(
        of_batch, mesh=mesh, in_specs=(P(), P("dp")), out_specs=P("dp"), check_vma=check
    )
    alone = collect(jax.grad(lambda w, x: of_batch(w, x).sum()))(WEIGHTS, batch)[1]
    placed = jax.device_put(batch, NamedSharding(mesh, P("dp")))
    weights = jax.device_put(WEIGHTS, NamedSharding(mesh, P()))
    taps = jax.jit(collect(jax.grad(lambda w, x: sharded(w, x).sum())))(weights, placed)[1]

    for site, rows, whole in zip(taps.sites, taps.rows, alone.rows, strict=True):
        if site.slot == "gradient" and not check:
            continue  # JAX itself divides it by the number of copies then
        rows = np.asarray(rows)
        assert (site.axes, site.stacked, site.spec) == (("dp", "tp"), (LAYERS,), None)
        assert site.varies == ({"dp"} if check else {"dp", "tp"})
        assert site.shape == (2, TOKENS, WIDTH)
        for number in range(LAYERS):
            merged = united(rows[:, 0, number])
            assert np.array_equal(merged.histogram[0], table_of(whole).histogram[number])
        assert np.array_equal(rows[:, 0], rows[:, 1])


def test_in_pmap_each_device_has_a_row() -> None:
    batch = whole_numbers(3, 2, TOKENS, WIDTH)
    step = jax.pmap(jax.grad(plain), in_axes=(None, 0), devices=jax.devices()[:2])
    taps = jax.jit(collect(step))(WEIGHTS, batch)[1]

    for site, rows in zip(taps.sites, taps.rows, strict=True):
        assert (site.shape, len(site.axes), rows.shape[0]) == (X.shape, 1, 2)
        assert table_of(rows).counts[:, 0].tolist() == [X.size, X.size]


def test_donated_arrays_are_sketched_before_they_go(
    untransformed: dict[tuple[str, str], SketchTable],
) -> None:
    weights = jax.tree.map(jnp.copy, WEIGHTS)

    def updated(weights: Weights) -> Weights:
        gradients = jax.grad(plain)(weights, X)
        return jax.tree.map(lambda weight, slope: weight - slope, weights, gradients)

    taps = jax.jit(collect(updated), donate_argnums=0)(weights)[1]

    assert weights["up"].is_deleted()
    assert stacked(taps) == untransformed


def test_an_explicit_sharding_is_seen_and_nothing_is_sent() -> None:
    sharding = NamedSharding(mesh_of(AxisType.Explicit), P("dp", "tp"))
    x = jax.device_put(X, sharding)
    compiled = jax.jit(collect(lambda x: tap("twice", x * 2))).lower(x).compile()
    (site,), (rows,) = (taps := compiled(x)[1]).sites, taps.rows

    assert "all-" not in (compiled.as_text() or "")
    assert (site.shape, site.spec, site.varies) == (X.shape, P("dp", "tp"), {"dp", "tp"})
    assert united(rows).checksum == sketch_array(np.asarray(X) * 2).checksum


def test_a_tap_can_be_told_the_sharding() -> None:
    mesh = mesh_of(AxisType.Auto)
    x = jax.device_put(jnp.stack([X, -X]), NamedSharding(mesh, P(None, "dp")))
    tapped = collect(jax.vmap(lambda x: tap("x", x, sharding=NamedSharding(mesh, P("dp")))))
    compiled = jax.jit(tapped).lower(x).compile()
    (site,), (rows,) = (taps := compiled(x)[1]).sites, taps.rows

    assert "all-" not in (compiled.as_text() or "")
    assert (site.spec, site.varies, rows.shape[:-1]) == (P(None, "dp"), {"dp"}, (2, 2))
    assert united(np.asarray(rows)[:, 0]).checksum == sketch_array(np.asarray(x)).checksum


@jax.custom_vjp
def rounded(x: jax.Array) -> jax.Array:
    """Straight through: the gradient passes as if nothing were rounded."""
    return tap("rounded", jnp.round(x))


rounded.defvjp(
    lambda x: (tap("rounded", jnp.round(x)), None), lambda _, slope: (tap("slope", slope),)
)


def test_the_rules_of_custom_functions_are_kept() -> None:
    x = jnp.array([0.6, -1.2])
    within = by_site(collect(jax.grad(lambda x: (3 * rounded(x)).sum()))(x)[1])
    gradient, around = jax.grad(
        lambda x: collect(lambda x: (3 * rounded(x)).sum())(x), has_aux=True
    )(x)

    assert {name for name, _, _ in within} == {"rounded", "slope"}
    assert within["slope", "", 0][1].moments[0, 0] == 6
    assert by_site(around)["rounded", "", 0][1] == sketch_array(np.array([1, -1], np.float32))
    assert np.array_equal(gradient, [3, 3])


def test_derivatives_of_any_order_pass_a_tap() -> None:
    def cube(x: jax.Array) -> jax.Array:
        return (tap("x", x) ** 3).sum()

    x = jnp.array([2.0, -1.0])

    assert np.array_equal(jax.jvp(cube, (x,), (x,))[1], 3 * (x**3).sum())
    assert np.array_equal(jax.hessian(cube)(x), jnp.diag(6 * x))


def test_what_nobody_collects_leaves_nothing_in_the_program() -> None:
    def tapped(x: jax.Array) -> jax.Array:
        return tap("x", x * 2) + 1

    def bare(x: jax.Array) -> jax.Array:
        return x * 2 + 1

    bare.__name__ = bare.__qualname__ = "tapped"
    dropped = jax.jit(lambda x: collect(tapped)(x)[0]).lower(X).compile()

    assert jax.jit(tapped).lower(X).as_text() == jax.jit(bare).lower(X).as_text()
    assert "rankscope_" not in (dropped.as_text() or "")  # the names of its calls; not of files


def test_profilers_see_the_names_of_the_function() -> None:
    def model(x: jax.Array) -> jax.Array:
        with jax.named_scope("block"):
            return scanned(layer, WEIGHTS, x)

    def names(step: Any) -> set[str]:
        text = jax.jit(step).lower(X).compile().as_text() or ""
        found = set(re.findall(r'op_name="[^"]*?/([^"]*)"', text))
        return {name for name in found if "ffi_call" not in name}

    assert any("transpose(jvp(block))" in name for name in names(jax.grad(model)))
    assert names(collect(jax.grad(model))) >= names(jax.grad(model))


def test_leaves_have_slots_and_what_is_no_float_passes() -> None:
    def model(x: jax.Array, *, double: bool) -> dict[str, Any]:
        tree = {"a": (x, x.astype(jnp.bfloat16)), "n": jnp.arange(3), "key": jax.random.key(0)}
        return tap("tree", {**tree, "double": double, "name": "tree", "scale": 2.0})

    out, taps = collect(model)(X, double=True)

    assert [(s.slot, s.dtype) for s in taps.sites] == [("a.0", "float32"), ("a.1", "bfloat16")]
    assert (out["double"], out["name"], out["scale"]) == (True, "tree", 2.0)
    assert out["n"].dtype == jnp.int32


def test_nothing_that_is_traced_outlives_its_trace() -> None:
    step = collect(jax.grad(partial(scanned, jax.checkpoint(layer))))

    gc.freeze()  # what was there before need not be searched
    with jax.checking_leaks():
        taps = jax.jit(step)(WEIGHTS, X)[1]
    gc.unfreeze()

    assert len(taps.sites) == 4
