"""Modules of flax and Equinox are observed under their paths, without a change to the model."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

from rankscope.agent.jax import Taps, collect, equinox, linen
from rankscope.agent.jax import nnx as nnx_taps
from rankscope.agent.jax.rows import table_of
from rankscope.sketch import sketch_array

X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 8), np.float32))
KEY = jax.random.key(0)


def elements(taps: Taps, kind: str) -> dict[str, int]:
    """How many elements each site of a kind has, in order."""
    pairs = zip(taps.sites, taps.rows, strict=True)
    names = [
        (f"{s.name}#{s.occurrence}".removesuffix("#0"), rows) for s, rows in pairs if s.kind == kind
    ]
    return {name: int(table_of(rows).counts[:, 0].sum()) for name, rows in names}


def classes(taps: Taps) -> dict[str, str]:
    return {site.name: site.module for site in taps.sites}


def root_of(taps: Taps) -> Any:
    names = [(site.name, site.kind) for site in taps.sites]
    return table_of(taps.rows[names.index(("(root)", "activation"))])


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return x + nn.Dense(8)(nn.LayerNorm()(x)), None


class Stack(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        blocks = nn.scan(
            nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
        )
        return nn.Dense(2, name="head")(blocks(name="blocks")(x, None)[0])


def test_linen_under_scan_and_remat() -> None:
    model = Stack()
    params = model.init(KEY, X)

    def loss_of(params: Any) -> Any:
        out: Any = model.apply(params, X)
        return jnp.square(out).sum()

    taps = jax.jit(collect(jax.grad(loss_of), within=linen.outputs))(params)[1]

    outputs = {"blocks.LayerNorm_0": 96, "blocks.Dense_0": 96, "blocks": 96, "head": 8, "(root)": 8}
    assert elements(taps, "activation") == outputs
    assert elements(taps, "activation_gradient") == outputs
    assert classes(taps)["blocks.LayerNorm_0"] == "LayerNorm"
    assert [site.slot for site in taps.sites if site.name == "blocks"] == ["0", "0"]
    whole = sketch_array(np.asarray(jax.jit(model.apply)(params, X)))
    assert np.array_equal(root_of(taps).counts, whole.counts)


def test_a_compiled_model_that_was_traced_before_is_observed() -> None:
    model = nn.Dense(4)
    params = model.init(KEY, X)
    apply = jax.jit(model.apply)
    apply(params, X)

    taps = collect(apply, within=linen.outputs)(params, X)[1]

    assert elements(taps, "activation") == {"(root)": 16}
    assert collect(apply)(params, X)[1] == Taps()


class Perceptron(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(8, 8, rngs=rngs)
        self.rest = nnx.List([nnx.Linear(8, 8, rngs=rngs), nnx.LayerNorm(8, rngs=rngs)])

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.first(self.first(x))
        for layer in self.rest:
            x = layer(x)
        return x


def test_nnx_whose_modules_are_made_anew_in_the_step() -> None:
    model = Perceptron(nnx.Rngs(0))
    graph, params = nnx.split(model)

    def loss_of(params: Any) -> Any:
        return jnp.square(nnx.merge(graph, params)(X)).sum()

    step = collect(jax.grad(loss_of), within=lambda: nnx_taps.outputs(model))
    taps = jax.jit(step)(params)[1]

    outputs = dict.fromkeys(["first", "first#1", "rest.0", "rest.1", "(root)"], 32)
    assert elements(taps, "activation") == outputs
    assert elements(taps, "activation_gradient") == outputs
    assert classes(taps)["rest.1"] == "LayerNorm"
    assert np.array_equal(root_of(taps).counts, sketch_array(np.asarray(model(X))).counts)


class Stateful(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(8, 8, rngs=rngs)
        self.again = self.first
        self.norm, self.dropout = nnx.BatchNorm(8, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.again(self.dropout(self.norm(self.first(x))))


def test_an_nnx_module_that_is_an_argument_is_trained_as_without_the_agent() -> None:
    def loss_of(model: Any, x: jax.Array) -> jax.Array:
        return jnp.square(model(x)).mean()

    graded: Any = nnx.value_and_grad(loss_of)
    plain, watched = Stateful(nnx.Rngs(0)), Stateful(nnx.Rngs(0))
    collected = collect(graded, within=lambda: nnx_taps.outputs(watched))
    step, collecting = nnx.jit(lambda model, x: graded(model, x)), nnx.jit(collected)

    for x in (X, X + 1):
        expected, (made, taps) = step(plain, x), collecting(watched, x)
        for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(made), strict=True):
            assert np.allclose(one, other, rtol=1e-4)

    outputs = dict.fromkeys(["again", "norm", "dropout", "again#1", "(root)"], 32)
    assert elements(taps, "activation") == outputs
    assert np.asarray(plain.norm.mean[...]).any()
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(watched), strict=True):
        is_key = jnp.issubdtype(one.dtype, jax.dtypes.prng_key)
        assert one == other if is_key else np.allclose(one, other, rtol=1e-4)


class Encoder(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return x


class Pair(eqx.Module):
    encoder: Encoder
    norm: eqx.nn.LayerNorm

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(eqx.filter_checkpoint(self.encoder)(x))


def pair() -> Pair:
    keys = jax.random.split(KEY, 2)
    return Pair(Encoder([eqx.nn.Linear(8, 8, key=key) for key in keys]), eqx.nn.LayerNorm(8))


def test_equinox_with_copies_of_modules_and_vmap() -> None:
    model = pair()

    @eqx.filter_jit
    def step(model: Pair, x: jax.Array) -> Any:
        grad = eqx.filter_grad(lambda model, x: jnp.square(jax.vmap(model)(x)).sum())
        return collect(grad, within=lambda: equinox.outputs(model))(model, x)

    gradients, taps = step(model, X)

    copies = ["encoder.layers.0", "encoder.layers.1", "encoder"]
    outputs = dict.fromkeys([*copies, "norm", "(root)"], 32)
    assert elements(taps, "activation") == outputs
    assert elements(taps, "activation_gradient") == outputs
    assert isinstance(gradients, Pair)


def test_parts_that_are_called_apart_keep_their_places_and_classes_are_left_as_they_were() -> None:
    model = pair()
    before = {cls: vars(cls)["__call__"] for cls in (Pair, Encoder, eqx.nn.Linear)}

    def outside(model: Pair) -> jax.Array:
        return model.norm(model.encoder(X[0])).sum()

    taps = collect(outside, within=lambda: equinox.outputs(model))(model)[1]

    names = ["encoder.layers.0", "encoder.layers.1", "encoder", "norm"]
    assert elements(taps, "activation") == dict.fromkeys(names, 8)
    assert all(vars(cls)["__call__"] is call for cls, call in before.items())
