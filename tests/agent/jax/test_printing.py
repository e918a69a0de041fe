"""`scope.print` under JAX: what a jitted step prints, of which call, step and rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rankscope.agent.jax import Scope
from rankscope.sketch import SettingError

from .conftest import Watch
from .test_taps import mesh_of

Model = Callable[[Scope, jax.Array], jax.Array]


def run(watch: Watch, model: Model, x: jax.Array, *, steps: int = 1, **options: Any) -> None:
    """Train nothing, but take the gradient of `model` in each step."""
    with watch(**options) as scope:

        @jax.jit
        def step(x: jax.Array) -> Any:
            graded = scope.collect(jax.value_and_grad(lambda x: model(scope, x).sum()))
            return scope.sketch(taps=graded(x)[1])

        for number in range(steps):
            scope.step(step(x + number))


def test_a_step_prints_values_and_gradients_when_taps_are_due(
    watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    def model(scope: Scope, x: jax.Array) -> jax.Array:
        return scope.print("x", x, precision=1) ** 2

    run(watch, model, jnp.array([0.5, -1.0]), steps=3, every=2)
    assert capsys.readouterr().out == (
        "x (step 0, rank 0) float32[2]\n[ 0.5, -1.0]\n"
        "x gradient (step 0, rank 0) float32[2]\n[ 1., -2.]\n"
        "x (step 2, rank 0) float32[2]\n[2.5, 1.0]\n"
        "x gradient (step 2, rank 0) float32[2]\n[5., 2.]\n"
    )


@pytest.mark.parametrize(
    ("mode", "printed"),
    [("all", [1, 2, 3, 4]), ("final", [4]), ("every(2)", [2, 4]), ("sum", [10])],
)
def test_a_mode_says_which_iterations_are_printed(
    watch: Watch, capsys: pytest.CaptureFixture[str], mode: str, printed: list[int]
) -> None:
    def model(scope: Scope, x: jax.Array) -> jax.Array:
        def body(_: None, x: jax.Array) -> tuple[None, jax.Array]:
            return None, scope.print("x", x, mode=mode, gradient=False)

        return lax.scan(body, None, x)[1]

    run(watch, model, jnp.arange(1.0, 5.0))
    assert capsys.readouterr().out.splitlines()[1::2] == [f"{value}." for value in printed]


def test_the_branch_that_runs_prints_and_a_large_array_its_ends(
    watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    def model(scope: Scope, x: jax.Array) -> jax.Array:
        yes = partial(scope.print, "yes", gradient=False, threshold=9, edgeitems=1)
        no = partial(scope.print, "no", gradient=False)
        return lax.cond(x[0, 0] == 0, yes, no, x)

    run(watch, model, jnp.arange(200.0).reshape(2, 100).astype(jnp.bfloat16))
    assert capsys.readouterr().out == (
        "yes (step 0, rank 0) bfloat16[2, 100]\n[[  0., ...,  99.],\n [100., ..., 199.]]\n"
    )


@pytest.mark.parametrize("manual", [True, False])
def test_each_device_prints_its_own_part_once(
    watch: Watch, capsys: pytest.CaptureFixture[str], manual: bool
) -> None:
    mesh = mesh_of(AxisType.Auto)

    def model(scope: Scope, x: jax.Array) -> jax.Array:
        if not manual:
            told = NamedSharding(mesh, P("dp"))
            return scope.print("x", x, gradient=False, sharding=told)
        part = partial(scope.print, "x", gradient=False)
        return jax.shard_map(part, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))(x)

    x = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, P("dp")))
    run(watch, model, x, mesh=mesh)
    out = capsys.readouterr().out
    assert out.count("x (step") == 2
    assert "x (step 0, rank 0) float32[2]\n[0., 1.]\n" in out
    assert "x (step 0, rank 2) float32[2]\n[2., 3.]\n" in out


def test_what_cannot_be_printed_is_refused_while_the_step_is_traced(watch: Watch) -> None:
    def counting(scope: Scope, x: jax.Array) -> jax.Array:
        def body(x: jax.Array) -> jax.Array:
            return scope.print("x", x + 1)

        return lax.while_loop(lambda x: x[0] < 3, body, lax.stop_gradient(x)) + x

    with pytest.raises(SettingError, match="'x' is printed in a while_loop"):
        run(watch, counting, jnp.zeros(1))


def test_options_that_cannot_be_used_are_refused(watch: Watch) -> None:
    with watch() as scope, pytest.raises(SettingError, match="`edgeitems` must be an integer"):
        scope.print("x", jnp.zeros(1), edgeitems=0)
