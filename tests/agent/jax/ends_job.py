"""A job that ends in a way of its own: `ends_job.py WAY ADDRESS RUN`."""

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


def train(scope: Scope, way: str) -> None:
    """Four steps, and what happens after the second."""
    step = jax.jit(lambda w: scope.sketch(weights=w))
    for number in range(4):
        telemetry = step({"w": jnp.full(5, number, jnp.float32)})
        if way == "fork" and number == 2:
            fork(scope)
        if way == "delete" and number == 2:
            jax.tree.map(lambda leaf: leaf.delete(), telemetry)
        scope.step(telemetry)
        if way == "error" and number == 2:
            raise ValueError("of the user's own")


if __name__ == "__main__":
    way, address, run = sys.argv[1:]
    scope = observe(run=run, to=address)
    if way == "never left":
        train(scope.__enter__(), way)
    else:
        with scope:
            train(scope, way)
