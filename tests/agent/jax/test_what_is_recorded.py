"""What a jitted step returns is in the store, with the numbers that NumPy finds."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rankscope.agent.jax import CastCounts, Scope, tap
from rankscope.sketch import MOMENTS, SettingError, SketchTable, sketch_array
from rankscope.store import open_run

from ..conftest import Observed
from .conftest import Watch

L1, MIN = MOMENTS.index("l1"), MOMENTS.index("min")
STEPS = 3


def normal(seed: int, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Random numbers by NumPy, which compiles nothing for another shape."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def parameters(dtype: Any = jnp.float32) -> dict[str, Any]:
    """Of two layers, with a bias."""
    return {
        "up": {"kernel": normal(0, (16, 32), dtype), "bias": jnp.zeros(32, dtype)},
        "down": {"kernel": normal(1, (32, 4), dtype)},
    }


def loss_of(weights: Any, batch: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """What is trained, and what is said beside."""
    hidden = jax.nn.gelu(batch @ weights["up"]["kernel"] + weights["up"]["bias"])
    loss = jnp.square(hidden @ weights["down"]["kernel"]).mean().astype(jnp.float32)
    return loss, {"hidden": hidden, "twice": 2 * loss, "tokens": jnp.int32(7)}


def step_of(scope: Scope, optimizer: Any) -> Any:
    """A jitted step, which also returns all that it made, for comparison.

    It is given weights and state for good: XLA writes the new ones over them.
    """

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(weights: Any, state: Any, batch: jax.Array) -> Any:
        (loss, aux), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights, batch)
        updates, state = optimizer.update(gradients, state, weights)
        telemetry = scope.sketch(
            weights=weights,
            gradients=gradients,
            updates=updates,
            optimizer=state,
            aux=aux,
            loss=loss,
        )
        made = gradients, updates, aux
        return optax.apply_updates(weights, updates), state, telemetry, made

    return step


def batch_of(step: int, dtype: Any = jnp.float32) -> jax.Array:
    """The samples of a step."""
    return normal(step, (8, 16), dtype)


def labelled(kind: str, tree: Any, slot: str = "") -> dict[str, np.ndarray[Any, Any]]:
    """The leaves of a tree on the host, by their labels in the store; what is donated is copied."""
    found = jax.tree_util.tree_leaves_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in found]
    arrays = [np.array(leaf) for _, leaf in found]
    return {f"{kind}:{name}{slot}": leaf for name, leaf in zip(names, arrays, strict=True)}


def assert_same(found: SketchTable, array: np.ndarray[Any, Any], label: str) -> None:
    """What is exact is so to the last bit, and sums are to rounding."""
    exact = sketch_array(array)
    assert np.array_equal(found.counts, exact.counts), label
    assert np.array_equal(found.histogram, exact.histogram), label
    assert np.array_equal(found.checksum, exact.checksum), label
    assert np.array_equal(found.moments[:, MIN:], exact.moments[:, MIN:]), label
    scale = 1e-9 * exact.moments[0, L1]
    np.testing.assert_allclose(found.moments, exact.moments, rtol=1e-9, atol=scale, err_msg=label)


def train(watch: Watch, dtype: str) -> list[dict[str, np.ndarray[Any, Any]]]:
    """By step: what was handed over, by label."""
    expected = list[dict[str, np.ndarray[Any, Any]]]()
    optimizer = optax.adamw(1e-2)
    with watch() as scope:
        step = step_of(scope, optimizer)
        weights = parameters(dtype)
        state = optimizer.init(weights)
        for number in range(STEPS):
            seen = labelled("weight", weights)
            batch = batch_of(number, dtype)
            weights, state, telemetry, (gradients, updates, aux) = step(weights, state, batch)
            scope.step(telemetry)
            seen |= labelled("weight_gradient", gradients)
            seen |= labelled("update", updates)
            seen |= labelled("optimizer_state", state[0].mu, "[mu]")
            seen |= labelled("optimizer_state", state[0].nu, "[nu]")
            seen["tap:hidden"] = np.array(aux["hidden"])
            expected.append(seen)
    return expected


def test_every_site_of_every_step_has_the_numbers_of_numpy(
    watch: Watch, observed: Observed
) -> None:
    for step, seen in enumerate(train(watch, "bfloat16")):
        stored = observed.sketches(step)
        assert set(stored) == set(seen)
        for label, array in seen.items():
            assert_same(stored[label], array, label)
    assert set(open_run(observed.path).sites()["dtype"]) == {"bfloat16"}


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn"]
)
def test_small_floats_are_read_as_they_are(watch: Watch, observed: Observed, name: str) -> None:
    values = jax.random.normal(jax.random.key(0), (64,)).astype(name)
    with watch() as scope:
        scope.step(scope.sketch(weights={"scale": values}))
    assert_same(observed.sketches(0)["weight:scale"], np.asarray(values), name)


def test_what_is_not_finite_is_counted(watch: Watch, observed: Observed) -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -1.5], np.float32)
    with watch() as scope:
        step = jax.jit(lambda x: scope.sketch(weights={"odd": x}))
        scope.step(step(jnp.asarray(odd)))
    assert_same(observed.sketches(0)["weight:odd"], odd, "odd")


def test_arrays_of_numpy_and_plain_numbers_are_taken_as_jax_takes_them(
    watch: Watch, observed: Observed
) -> None:
    kernel = np.linspace(-1, 1, 7, dtype=np.float32)
    weights = {"kernel": kernel, "ids": np.arange(3), "rate": 0.1, "name": np.array("head")}
    with watch() as scope:
        scope.step(scope.sketch(weights=weights, aux={"hidden": kernel * 2, "tokens": 512}))
    assert set(observed.labels()) == {"weight:kernel", "tap:hidden"}
    assert_same(observed.sketches(0)["weight:kernel"], kernel, "kernel")
    told = open_run(observed.path).training().squeeze()
    assert (told["name"].item(), told.item()) == ("tokens", 512.0)
    assert scope.health()["tensors_unsupported"] == 1, "ids"


def test_numbers_of_the_step_are_kept(watch: Watch, observed: Observed) -> None:
    optimizer = optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(1.0, 0.0, 10))
    with watch() as scope:
        step = step_of(scope, optimizer)
        weights = parameters()
        state = optimizer.init(weights)
        for number in range(3):
            weights, state, telemetry, (*_, aux) = step(weights, state, batch_of(number))
            scope.step(telemetry, epoch=0.5, twice_more=aux["twice"] * 2)
    run = open_run(observed.path)
    told = run.training().squeeze("rank")
    named = {str(name): told.sel(name=name).values.tolist() for name in told["name"].values}
    assert named["learning_rate"] == pytest.approx([1.0, 0.9, 0.8])
    assert run.updates(steps=1)["lr"].tolist() == pytest.approx([0.9] * 3)
    assert named["epoch"] == [0.5] * 3
    assert named["tokens"] == [7] * 3
    assert named["twice_more"] == pytest.approx([4 * loss for loss in named["loss"]])


def test_a_number_that_cannot_be_read_is_left_out_alone(watch: Watch, observed: Observed) -> None:
    numbers = {"gone": jnp.ones(()), "one": jnp.full(1, 1.5), "later": jnp.full((), 2.5)}
    numbers["gone"].delete()
    with watch() as scope:
        scope.step(scope.sketch(weights={"w": jnp.ones(3)}), several=jnp.ones(2), **numbers)
        numbers["later"].delete()
    assert observed.labels() == ["weight:w"]
    told = open_run(observed.path).training().squeeze()
    assert dict(zip(told["name"].values.tolist(), told.values.tolist(), strict=True)) == {
        "one": 1.5,
        "later": 2.5,
    }
    assert "`several` of scope.step() is not one number" in observed.reports()
    assert "`gone` of scope.step() is not one number" in observed.reports()


def test_what_is_no_floating_point_number_is_passed_over_and_counted(
    watch: Watch, observed: Observed
) -> None:
    weights = {"w": jnp.ones(4), "ids": jnp.arange(4), "key": jax.random.key(0)}
    with watch() as scope:
        scope.step(scope.sketch(weights=weights))
    assert observed.labels() == ["weight:w"]
    assert scope.health()["tensors_unsupported"] == 2


def test_exact_counts_are_counted(watch: Watch, observed: Observed) -> None:
    values = jax.random.normal(jax.random.key(0), (64, 64)) * 300
    counting = CastCounts("float8_e4m3fn")
    with watch(exact_counts={"weight:w": counting}) as scope:
        scope.step(scope.sketch(weights={"w": values}))
    found = open_run(observed.path).exact_count(counting, site="weight:w", steps=0)
    assert found.values.ravel().tolist() == counting.count(np.asarray(values)).tolist()


def test_exact_counts_that_nobody_would_count_are_refused(watch: Watch) -> None:
    counting = {"weight": CastCounts("float8_e4m3fn")}
    with pytest.raises(SettingError, match="`exact_counts` are counted on the host"):
        watch(in_program=True, exact_counts=counting).__enter__()


def test_a_tap_of_the_scope_is_a_tap(watch: Watch, observed: Observed) -> None:
    with watch() as scope:

        def doubled(x: jax.Array) -> jax.Array:
            return scope.tap("of scope", tap("plain", 2 * x))

        result, taps = jax.jit(scope.collect(doubled))(jnp.ones(3))
        scope.step(scope.sketch(taps=taps))
    assert result.tolist() == [2.0] * 3
    assert observed.means("tap", "of scope") == observed.means("tap", "plain") == {0: 2.0}


def test_exact_counts_of_what_is_tapped_are_told_as_not_counted(
    watch: Watch, observed: Observed
) -> None:
    with watch(exact_counts={"tap": CastCounts("float8_e4m3fn")}) as scope:
        step = jax.jit(lambda x: scope.sketch(taps=scope.collect(lambda x: tap("x", x))(x)[1]))
        for _ in range(2):
            scope.step(step(jnp.ones(3)))
    assert observed.reports() == "ExactCounts are not counted of what is tapped: tap:x."


def test_include_and_exclude_choose_by_name(watch: Watch, observed: Observed) -> None:
    with watch(include="kernel", exclude="^down", kinds="weight") as scope:
        scope.step(scope.sketch(weights=parameters(), gradients=parameters()))
    assert observed.labels() == ["weight:up.kernel"]
