"""A Flax transformer on all devices, watched: `python examples/flax_train.py`, then the viewer.

    python examples/flax_train.py --devices 4 --view

Four of the CPU's devices train data-parallel, and the page opens in the browser while they do.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding, PartitionSpec

from rankscope.agent.jax import Scope, Telemetry, observe
from rankscope.agent.jax.linen import outputs

CONTEXT, WIDTH, LAYERS, BATCH = 64, 64, 2, 32
Step = Callable[[TrainState, jax.Array], tuple[TrainState, Telemetry]]
TEXT = "".join(f"{a} times {b} is {a * b}. " for a in range(40) for b in range(40))
"""What the model learns to go on with."""


class Block(nn.Module):
    """One transformer layer."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + nn.MultiHeadDotProductAttention(num_heads=4, name="attention")(
            nn.LayerNorm(name="norm1")(x), mask=mask
        )
        hidden = nn.gelu(nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm(name="norm2")(x)))
        return x + nn.Dense(WIDTH, name="down")(hidden)


class Model(nn.Module):
    """From bytes to the next byte."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(128, WIDTH, name="tokens")(tokens)
        x = x + nn.Embed(CONTEXT, WIDTH, name="positions")(jnp.arange(tokens.shape[1]))
        for layer in range(LAYERS):
            x = Block(name=f"block{layer}")(x)
        return nn.Dense(128, name="head")(nn.LayerNorm(name="norm")(x))


def loss_of(weights: Any, batch: jax.Array) -> jax.Array:
    """How badly the next bytes are foretold."""
    logits: Any = Model().apply({"params": weights}, batch[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()


@jax.jit
def new_state() -> TrainState:
    """Weights, and an optimizer whose learning rate is seen, for it changes over time."""
    weights = Model().init(jax.random.key(0), jnp.zeros((1, CONTEXT), int))["params"]
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 20, 200)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.inject_hyperparams(optax.adamw)(rate)
    )
    return TrainState.create(apply_fn=Model().apply, params=weights, tx=optimizer)


@jax.jit
def batch_of(step: int) -> jax.Array:
    """Pieces of the text, another choice at each step."""
    text = jnp.frombuffer(TEXT.encode(), jnp.uint8).astype(int)
    begins = jax.random.randint(jax.random.key(step), (BATCH, 1), 0, len(TEXT) - CONTEXT - 1)
    return text[begins + jnp.arange(CONTEXT + 1)]


def step_of(scope: Scope, samples: NamedSharding) -> Step:
    """A jitted step of the training, which gives the telemetry as well."""

    @partial(jax.jit, donate_argnums=0)
    def train_step(state: TrainState, batch: jax.Array) -> tuple[TrainState, Telemetry]:
        graded = scope.collect(
            jax.value_and_grad(loss_of), within=outputs, samples=samples, batch=BATCH
        )
        (loss, gradients), taps = graded(state.params, batch)
        new = state.apply_gradients(grads=gradients)
        telemetry = scope.sketch(
            weights=state.params,
            gradients=gradients,
            optimizer=new.opt_state,
            taps=taps,
            loss=loss,
        )
        return new, telemetry

    return train_step


def train(run: str, steps: int, every: int) -> None:
    """Train on all devices, each with its own samples."""
    mesh = jax.make_mesh((jax.device_count(),), ("dp",), (jax.sharding.AxisType.Auto,))
    samples = NamedSharding(mesh, PartitionSpec("dp"))
    state = jax.device_put(new_state(), NamedSharding(mesh, PartitionSpec()))
    with observe(run=run, mesh=mesh, every=every) as scope:
        train_step = step_of(scope, samples)
        for step in range(steps):
            batch = jax.device_put(batch_of(step), samples)
            state, telemetry = train_step(state, batch)
            scope.step(telemetry)
    sent = scope.statistics()
    if sent.dropped_frames or sent.pending_frames:  # the agent has said why
        return
    if scope.destination:
        print(f"Sent to {scope.destination}: look for the run {run} where that stores its runs.")
    else:
        print(f"Stored in {scope.path}; look at it: rankscope view {scope.path}")


def main() -> None:
    """Read the arguments, and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="flax")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--devices", type=int, help="of the CPU; by default all that JAX finds")
    parser.add_argument("--view", action="store_true", help="open the page meanwhile")
    options = parser.parse_args()
    if options.devices:
        jax.config.update("jax_num_cpu_devices", options.devices)
        # The CPU's devices share one pool of threads: where steps run ahead, devices that wait in a
        # collective may leave none to the device that they wait for.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    viewer = None
    if options.view:
        folder = Path(os.environ.get("RANKSCOPE_DIR", "rankscope-runs"))
        folder.mkdir(exist_ok=True)
        viewer = subprocess.Popen([sys.executable, "-m", "rankscope", "view", str(folder)])
    train(options.run, options.steps, options.every)
    if viewer is not None:
        print("The page is open until you press Ctrl-C.")
        with suppress(KeyboardInterrupt):
            viewer.wait()


if __name__ == "__main__":
    main()
