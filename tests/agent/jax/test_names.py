"""Sites are called as users of torch know them, whichever library keeps the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState

from rankscope.agent.jax import Scope, Telemetry, collect, observe
from rankscope.sketch import SettingError

SAMPLES = jnp.ones((2, 3))


@pytest.fixture(scope="module")
def scope(collector: tuple[str, Path]) -> Iterator[Scope]:
    """One that is open for all tests of this file, which send nothing."""
    with observe(run="names", to=collector[0]) as opened:
        yield opened


def labels(telemetry: Telemetry) -> list[str]:
    """Kind, name and slot of all sites."""
    sites = telemetry.plan.arrays
    return [f"{one.kind}:{one.name}" + f"[{one.slot}]" * bool(one.slot) for one in sites]


def weights_of(telemetry: Telemetry) -> set[str]:
    """The names of what is a weight."""
    return {site.name for site in telemetry.plan.arrays if site.kind == "weight"}


class Net(linen.Module):
    """An embedding, a norm and a layer with a bias."""

    @linen.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = linen.Embed(8, 4)(tokens)
        return linen.Dense(2, name="head")(linen.LayerNorm()(x))


def test_all_leaves_of_linen_are_weights(scope: Scope) -> None:
    variables = Net().init(jax.random.key(0), jnp.zeros((1, 2), int))
    expected = {"Embed_0.embedding", "LayerNorm_0.scale", "LayerNorm_0.bias"}
    expected |= {"head.kernel", "head.bias"}
    assert weights_of(scope.sketch(weights=variables)) == expected
    assert weights_of(scope.sketch(weights=variables["params"])) == expected
    telemetry = scope.sketch(weights=variables, optimizer=optax.trace(0.9).init(variables))
    states = {f"optimizer_state:{name}[trace]" for name in expected}
    assert set(labels(telemetry)) == {f"weight:{name}" for name in expected} | states


def test_a_train_state_is_taken_apart(scope: Scope) -> None:
    net = Net()
    variables = net.init(jax.random.key(0), jnp.zeros((1, 2), int))
    state = TrainState.create(apply_fn=net.apply, params=variables["params"], tx=optax.adam(1e-3))
    seen = labels(scope.sketch(weights=state.params, optimizer=state.opt_state))
    assert "optimizer_state:head.kernel[mu]" in seen
    assert len(seen) == 15


def test_variables_of_nnx_are_called_as_their_modules_call_them(scope: Scope) -> None:
    model = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.LayerNorm(4, rngs=nnx.Rngs(0)))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    weights, state = nnx.state(model, nnx.Param), nnx.state(optimizer)
    seen = labels(scope.sketch(weights=weights, optimizer=state))
    names = ("layers.0.bias", "layers.0.kernel", "layers.1.bias", "layers.1.scale")
    assert seen == [
        *(f"weight:{name}" for name in names),
        *(f"optimizer_state:{name}[mu]" for name in names),
        *(f"optimizer_state:{name}[nu]" for name in names),
    ]


def test_modules_of_equinox_are_trees(scope: Scope) -> None:
    model = equinox.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    state = optax.sgd(0.1, momentum=0.9).init(equinox.filter(model, equinox.is_array))
    seen = labels(scope.sketch(weights=model, optimizer=state))
    names = ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias")
    assert seen == [
        *(f"weight:{name}" for name in names),
        *(f"optimizer_state:{name}[trace]" for name in names),
    ]


PARAMETERS = {"a": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}, "scale": jnp.float32(1)}
IS_KERNEL = {"a": {"kernel": "kernels", "bias": "others"}, "scale": "others"}
ADAM = {"a.kernel": {"mu", "nu"}, "a.bias": {"mu", "nu"}, "scale": {"mu", "nu"}}
CHAINS: dict[str, tuple[optax.GradientTransformation, dict[str, set[str]]]] = {
    "nested": (optax.chain(optax.clip(1.0), optax.chain(optax.adamw(1e-3))), ADAM),
    "injected": (optax.inject_hyperparams(optax.adamw)(1e-3), ADAM),
    "masked": (
        optax.masked(optax.trace(0.9), {"a": {"kernel": True, "bias": False}, "scale": False}),
        {"a.kernel": {"trace"}},
    ),
    "by label": (
        optax.multi_transform({"kernels": optax.adam(1e-3), "others": optax.lion(1e-3)}, IS_KERNEL),
        {"a.kernel": {"mu", "nu"}, "a.bias": {"mu"}, "scale": {"mu"}},
    ),
    "twice": (
        optax.chain(optax.trace(0.9), optax.trace(0.5)),
        {name: {"0.trace", "1.trace"} for name in ADAM},
    ),
    "accumulated": (
        optax.MultiSteps(optax.adam(1e-3), 2).gradient_transformation(),
        {name: {"mu", "nu", "acc_grads"} for name in ADAM},
    ),
}


@pytest.mark.parametrize("name", list(CHAINS))
def test_states_of_any_chain_are_joined_with_their_parameters(scope: Scope, name: str) -> None:
    optimizer, expected = CHAINS[name]
    state = optimizer.init(PARAMETERS)
    sites = scope.sketch(weights=PARAMETERS, optimizer=state).plan.arrays
    found = [site for site in sites if site.kind == "optimizer_state"]
    slots = {one.name: {site.slot for site in found if site.name == one.name} for one in found}
    assert slots == expected
    # Gradients have the same names: they serve as well.
    assert scope.sketch(gradients=PARAMETERS, optimizer=state).plan.arrays[3:] == tuple(found)


def test_hyperparameters_are_numbers_of_the_step(scope: Scope) -> None:
    schedule = optax.inject_hyperparams(optax.adamw)(optax.constant_schedule(1e-3))
    chain = optax.chain(optax.clip(1.0), schedule)
    telemetry = scope.sketch(weights=PARAMETERS, optimizer=chain.init(PARAMETERS), loss=1.0)
    assert {"learning_rate", "weight_decay", "loss"} <= set(telemetry.plan.numbers)
    [values] = telemetry.numbers
    told = dict(zip(telemetry.plan.numbers, values.tolist(), strict=True))
    assert told["learning_rate"] == pytest.approx(1e-3)


def test_numbers_of_one_name_have_their_paths(scope: Scope) -> None:
    inject = optax.inject_hyperparams(optax.sgd)
    chain = optax.chain(inject(learning_rate=0.1), inject(learning_rate=0.2))
    state = chain.init(PARAMETERS)
    telemetry = scope.sketch(optimizer=state, aux={"loss": jnp.float32(2)}, loss=1.0)
    told = dict(zip(telemetry.plan.numbers, telemetry.numbers[0].tolist(), strict=True))
    assert told == pytest.approx(
        {
            "optimizer.0.hyperparams.learning_rate": 0.1,
            "optimizer.1.hyperparams.learning_rate": 0.2,
            "aux.loss": 2,
            "loss": 1,
        }
    )


def test_other_collections_lie_beside_the_parameters(scope: Scope) -> None:
    variables = {
        "params": {"w": SAMPLES, "a": SAMPLES},
        "batch_stats": {"mean": SAMPLES},
        "scale": SAMPLES,
        "a": SAMPLES,
    }
    expected = {"w", "params.a", "batch_stats.mean", "scale", "a"}
    state = optax.trace(0.9).init(variables["params"])
    telemetry = scope.sketch(weights=variables, gradients={"w": SAMPLES}, optimizer=state)
    assert weights_of(telemetry) == expected
    assert {"weight_gradient:w", "optimizer_state:w[trace]"} <= set(labels(telemetry))


def test_keys_of_random_numbers_are_no_numbers(scope: Scope) -> None:
    telemetry = scope.sketch(aux={"key": jax.random.key(0), "loss": jnp.ones(())})
    assert telemetry.plan.numbers == ("loss",)
    assert telemetry.plan.unsupported == 1


def test_a_tree_that_is_called_otherwise_is_refused(scope: Scope) -> None:
    misspelt: list[dict[str, Any]] = [{"grads": PARAMETERS}, {"gradient": SAMPLES}]
    for given in misspelt:
        with pytest.raises(SettingError, match=r"did you mean `gradients`\?"):
            scope.sketch(weights=PARAMETERS, **given)
    with pytest.raises(SettingError, match="`params` must be one number of the step, got dict"):
        scope.sketch(params=PARAMETERS)


def test_what_collect_has_not_made_are_no_taps(scope: Scope) -> None:
    result: Any = collect(lambda x: (x, x))(SAMPLES)[0]
    with pytest.raises(SettingError, match=r"`taps` must be the second of what .* got tuple"):
        scope.sketch(taps=result)


def test_what_belongs_to_no_parameter_has_its_own_name(scope: Scope) -> None:
    state = {"averages": {"of": {"losses": jnp.ones(5)}}, "best": jnp.float32(3), "count": 0}
    telemetry = scope.sketch(weights=PARAMETERS, optimizer=state)
    assert labels(telemetry)[3:] == ["optimizer_state:averages.of.losses"]
    assert telemetry.plan.numbers == ("optimizer.best",)


def test_an_array_alone_is_the_root(scope: Scope) -> None:
    assert labels(scope.sketch(weights=SAMPLES)) == ["weight:(root)"]
