"""Scripts that were written for Track & Visualize are observed, jitted or not."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

from rankscope.agent.jax.tracking import MOST_COMPILED, track
from rankscope.sketch import SettingError

from ..conftest import Observed
from .test_what_is_recorded import assert_same, batch_of

NET = linen.Sequential([linen.Dense(8), linen.relu, linen.Dense(1)])


def loss_of(weights: Any, batch: jax.Array) -> jax.Array:
    """What is trained."""
    out: Any = NET.apply(weights, batch)
    return jnp.square(out).mean()


@pytest.mark.parametrize("how", ["by itself", "in a jitted step"])
def test_a_loop_is_tracked(observed: Observed, how: str) -> None:
    weights = jax.jit(NET.init)(jax.random.key(0), batch_of(0))
    gradients: Any = None
    optimizer = optax.chain(optax.clip(1.0), optax.adamw(1e-3))
    state, update = jax.jit(optimizer.init)(weights), jax.jit(optimizer.update)
    graded = jax.value_and_grad(loss_of)
    with track(run=observed.path.name, to=observed.address, init_step=5) as tracker:

        @tracker.jit
        def step(weights: Any, batch: jax.Array) -> Any:
            return tracker.intercept(graded, weights, batch)

        for number in range(2):
            batch = batch_of(number)
            if how == "in a jitted step":
                loss, gradients = step(weights, batch)
            else:
                fn = jax.jit(graded) if number else graded
                loss, gradients = tracker.intercept(fn, weights, batch)
            updates, state = update(gradients, state, weights)
            tracker.step(weights, state, gradients, loss=loss)
            weights = optax.apply_updates(weights, updates)
    assert observed.steps() == [5, 6]
    labels = set(observed.labels())
    assert {"activation:layers_0", "activation_gradient:layers_2"} <= labels
    assert {"weight:layers_0.bias", "optimizer_state:layers_2.kernel[nu]"} <= labels
    stored = observed.sketches(6)["weight_gradient:layers_0.kernel"]
    assert_same(stored, np.asarray(gradients["params"]["layers_0"]["kernel"]), "gradient")


def test_a_function_is_compiled_once_and_one_made_anew_is_told(
    observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    traced = list[int]()

    def counted(x: jax.Array) -> jax.Array:
        traced.append(1)
        return jnp.square(x).sum()

    graded = jax.value_and_grad(counted)
    with track(run=observed.path.name, to=observed.address) as tracker:
        for _ in range(3):
            tracker.intercept(graded, jnp.ones(3))
            tracker.step(loss=1.0)
        assert len(traced) == 1
        for _ in range(MOST_COMPILED + 1):
            tracker.intercept(partial(graded), jnp.ones(3))
            tracker.step(loss=1.0)
    assert len(traced) == MOST_COMPILED + 2
    assert caplog.text.count("compiles each anew") == 1


def test_what_cannot_be_kept_is_refused(observed: Observed) -> None:
    weights = jax.jit(NET.init)(jax.random.key(0), batch_of(0))
    with track(run=observed.path.name, to=observed.address) as tracker:
        step = jax.jit(lambda weights: tracker.intercept(loss_of, weights, batch_of(0)))
        with pytest.raises(SettingError, match=r"with tracker\.jit in place of jax\.jit"):
            step(weights)
