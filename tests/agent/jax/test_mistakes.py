"""What was probably not meant is told, with what to write instead."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from rankscope.agent import RankscopeWarning
from rankscope.agent.jax import Scope, collect
from rankscope.sketch import SettingError

from .conftest import Watch

WEIGHTS = {"up": {"w": jnp.ones((3, 3))}, "down": {"w": jnp.ones((3, 3))}}


def told_by(scope: Scope, **given: Any) -> list[str]:
    """What is warned of where each step gives this."""
    step = jax.jit(lambda given: scope.sketch(**given))
    with warnings.catch_warnings(record=True) as caught, scope:
        warnings.simplefilter("always")
        for _ in range(3):
            scope.step(step(given))
    return [str(one.message) for one in caught]


def test_gradients_that_are_called_as_no_weight_are_told(watch: Watch) -> None:
    [told] = told_by(watch(), weights=WEIGHTS, gradients={"net": WEIGHTS})

    assert "No weight has the name of what was given as gradients or updates, as net.down.w" in told
    assert "in a tree of the shape of `weights`" in told


@pytest.mark.parametrize(
    "given",
    [
        {"weights": WEIGHTS, "gradients": {"up": WEIGHTS["up"]}},  # the rest is frozen
        {"weights": {"params": WEIGHTS}, "gradients": WEIGHTS, "updates": WEIGHTS},
        {"gradients": WEIGHTS},
    ],
)
def test_gradients_of_some_weights_are_as_they_should_be(
    watch: Watch, given: dict[str, Any]
) -> None:
    assert told_by(watch(), **given) == []


def test_a_loop_without_a_call_of_step_is_told(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    with watch() as scope:
        jax.jit(lambda w: scope.sketch(weights=w))(WEIGHTS)

    assert "No step was stored: call scope.step(telemetry) after each jitted step" in caplog.text


def test_a_step_that_is_sketched_in_two_calls_is_told(watch: Watch) -> None:
    scope = watch().__enter__()
    for one in jax.jit(lambda w: (scope.sketch(weights=w), scope.sketch(gradients=w)))(WEIGHTS):
        scope.step(one)
    with pytest.warns(RankscopeWarning, match=r"more than once in a program: give it all of a"):
        scope.__exit__(None, None, None)


@pytest.mark.parametrize("jit", [jax.jit, lambda fn: fn], ids=["jitted", "as it is"])  # pyright: ignore[reportUnknownLambdaType]
def test_programs_of_their_own_may_each_be_sketched(watch: Watch, jit: Any) -> None:
    with warnings.catch_warnings(), watch() as scope:
        warnings.simplefilter("error")
        for _ in range(3):
            scope.step(jit(lambda w: scope.sketch(weights=w))(WEIGHTS))
            scope.step(jit(lambda w: scope.sketch(gradients=w))(WEIGHTS))


def test_an_optimizer_in_place_of_its_state_is_refused(watch: Watch) -> None:
    with watch() as scope:
        with pytest.raises(SettingError, match=r"`optimizer` holds no array, got Gradient.*opt_st"):
            scope.sketch(optimizer=optax.adam(1e-3))
        scope.step(scope.sketch(weights=WEIGHTS, optimizer=optax.sgd(1e-3).init(WEIGHTS)))


def test_a_context_in_place_of_what_makes_one_is_refused() -> None:
    within: Any = nullcontext()
    with pytest.raises(SettingError, match=r"got a context: write within=lambda: outputs\(model\)"):
        collect(abs, within=within)
