"""Trains with each snippet of the pages that leaves its model, data or loop to the reader.

What is printed are the places of those that were run, as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from threading import Event
from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import optax
import torch
from flax.training.train_state import TrainState
from torch import Tensor, nn

from rankscope.agent import RankscopeWarning
from rankscope.agent.torch import observe

from .pages import BLOCKS, Block
from .snippets import free_names, is_of_jax, is_of_the_reader


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.BatchNorm2d(1), nn.Linear(16, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        attended, _ = self.attention(x, x, x, need_weights=False)
        return self.norm(self.mlp(attended)[:, None])[:, 0]


class Model(nn.Module):
    """It returns its loss, as the pages' do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(Attention(), Attention()), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x)).square().mean()


class Flax(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return linen.Dense(4, name="head")(linen.tanh(linen.Dense(4, name="up")(x)))


def of_torch() -> dict[str, Any]:
    """What a script in PyTorch has."""
    torch.manual_seed(0)
    model = Model()
    loader = [torch.randn(2, 4, 16) for _ in range(3)]
    loss = model(loader[0])
    loss.backward()
    return {
        "torch": torch,
        "observe": observe,
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
        "loader": loader,
        "loss": loss.detach(),
        "step": 5,
        "steps": 8,
        "checkpoint_wanted": Event(),
    }


def of_jax() -> dict[str, Any]:
    """What a script in JAX has."""
    model, batches = Flax(), [jnp.ones((2, 4)), jnp.zeros((2, 4)), jnp.ones((2, 4))]
    params = model.init(jax.random.key(0), batches[0])["params"]
    optimizer = optax.adam(1e-3)

    def loss_fn(params: Any, x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        output: Any = model.apply({"params": params}, x)
        return jnp.square(output).mean(), {"largest": jnp.abs(output).max()}

    return {
        "jax": jax,
        "jnp": jnp,
        "optax": optax,
        "data": batches,
        "loss_fn": loss_fn,
        "state": TrainState.create(apply_fn=model.apply, params=params, tx=optimizer),
    }


def run(block: Block, make: Callable[[], dict[str, Any]]) -> bool:
    """Run a snippet if all the names are there that it uses; whether they are."""
    names = make()
    if not free_names(block.text) <= names.keys():
        return False
    exec(compile(block.text, str(block), "exec"), names)
    if "cells" in names:  # of a notebook, whose last cell is on the page, too
        names["cells"].close()
    return True


if __name__ == "__main__":
    warnings.filterwarnings("error", category=RankscopeWarning)
    torch.set_num_threads(1)
    chosen = [block for block in BLOCKS if is_of_the_reader(block)]
    ran = [str(block) for block in chosen if run(block, of_jax if is_of_jax(block) else of_torch)]
    json.dump(ran, sys.stdout)
