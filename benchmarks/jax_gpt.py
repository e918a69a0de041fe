"""The GPT of `gpt.py` in Flax and optax, for the overhead figures of the agent for JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from rankscope.agent.jax import Scope
from rankscope.agent.jax.linen import outputs

VOCABULARY, CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 2048, 128, 8, 256, 4, 4


class Block(nn.Module):
    """One transformer layer."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        norm = nn.LayerNorm(name="norm1")(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=HEADS, name="attention")(norm, mask=mask)
        hidden = nn.gelu(nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm(name="norm2")(x)))
        return x + nn.Dense(WIDTH, name="down")(hidden)


class Gpt(nn.Module):
    """4.2 million parameters in 69 tensors."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(VOCABULARY, WIDTH, name="tokens")(tokens)
        x = x + nn.Embed(CONTEXT, WIDTH, name="positions")(jnp.arange(tokens.shape[1]))
        for layer in range(LAYERS):
            x = Block(name=f"block{layer}")(x)
        return nn.Dense(VOCABULARY, use_bias=False, name="head")(nn.LayerNorm(name="norm")(x))


class Job:
    """A model in training: `step` is one whole step on its own stream of random tokens.

    Args:
        scope: observes all of it; None: nobody does.
    """

    def __init__(self, scope: Scope | None, seed: int = 0) -> None:
        model, optimizer = Gpt(), optax.adamw(3e-4)
        self._scope = scope
        self._key = jax.random.key(seed)
        self._weights = model.init(self._key, jnp.zeros((1, CONTEXT), int))
        self._state = optimizer.init(self._weights)

        def loss_of(weights: Any, tokens: jax.Array) -> jax.Array:
            logits: Any = model.apply(weights, tokens[:, :-1])
            told = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return told.mean()

        graded = jax.value_and_grad(loss_of)

        @partial(jax.jit, donate_argnums=(0, 1))
        def step(weights: Any, state: Any, tokens: jax.Array) -> Any:
            taps = None
            if scope is None:
                loss, gradients = graded(weights, tokens)
            else:
                (loss, gradients), taps = scope.collect(graded, within=outputs)(weights, tokens)
            updates, state = optimizer.update(gradients, state, weights)
            told = scope and scope.sketch(
                weights=weights, gradients=gradients, optimizer=state, taps=taps, loss=loss
            )
            return optax.apply_updates(weights, updates), state, loss, told

        self._train = step

    def step(self) -> float:
        """The loss of one step."""
        self._key, now = jax.random.split(self._key)
        tokens = jax.random.randint(now, (BATCH, CONTEXT + 1), 0, VOCABULARY)
        self._weights, self._state, loss, told = self._train(self._weights, self._state, tokens)
        if self._scope is not None:
            self._scope.step(told)
        return float(loss)
