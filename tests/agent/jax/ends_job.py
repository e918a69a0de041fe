"""A job that forks, deletes what it gave, and never leaves its block: `ends_job.py ADDRESS RUN`."""

from __future__ import annotations

import os
import sys

import jax
import jax.numpy as jnp

from rankscope.agent.jax import Scope, observe


def fork(scope: Scope) -> None:
    """A child that says nothing: for it, nothing is due."""
    child = os.fork()
    if child == 0:
        scope.step()
        os._exit(0 if scope.sketch(weights={}, loss=1.0).is_empty else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def train(scope: Scope) -> None:
    """Four steps."""
    step = jax.jit(lambda w: scope.sketch(weights=w))
    for number in range(4):
        telemetry = step({"w": jnp.full(5, number, jnp.float32)})
        if number == 1:
            fork(scope)
        if number == 2:
            jax.tree.map(lambda leaf: leaf.delete(), telemetry)
        scope.step(telemetry)


if __name__ == "__main__":
    address, run = sys.argv[1:]
    train(observe(run=run, to=address).__enter__())
