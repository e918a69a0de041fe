"""One of two processes that train together, with four devices each; nothing is started by hand."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rankscope.agent.jax import observe
from rankscope.agent.jax.tensors import NamedArrays, save
from rankscope.sketch import SettingError

P = PartitionSpec
STEPS = 3
WEIGHTS = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
SAMPLES = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)


def train(run: str, directory: str) -> None:
    """What each process does."""
    mesh = jax.make_mesh((2, 4), ("dp", "tp"), (AxisType.Auto,) * 2)

    def on_mesh(array: Any, spec: PartitionSpec) -> jax.Array:
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    weights, batch = on_mesh(WEIGHTS, P(None, "tp")), on_mesh(SAMPLES, P("dp"))
    with observe(run=run, directory=directory) as scope:

        @jax.jit
        def step(weights: jax.Array, batch: jax.Array) -> Any:
            out = batch @ weights
            return scope.sketch(weights={"w": weights}, aux={"out": out}, loss=out.mean())

        for _ in range(STEPS):
            scope.step(step(weights, batch))
    look(Path(directory), mesh, NamedArrays({"w": weights, "batch": batch}))


def look(directory: Path, mesh: Mesh, arrays: NamedArrays) -> None:
    """Write what a process finds by hand, of all processes' elements and of its own."""
    with pytest.raises(SettingError, match="batch lies on devices of several processes"):
        save(arrays.filter("batch"), directory / "arrays.safetensors")
    found = {
        "across": arrays.statistic("l1", by="tensor", across=mesh),
        "own": arrays.statistic("count", by="tensor"),
    }
    path = directory / f"found{jax.process_index()}.json"
    path.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    port, process, run, directory = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", 4)
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process))
    train(run, directory)
    sys.stdout.flush()
    os._exit(0)  # what JAX does at exit waits for the other process
