"""Observing adds no collective to a compiled step."""

from __future__ import annotations

import math
import re
import runpy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rankscope.agent.jax import Scope, tap

from .conftest import Watch
from .test_sharded import mesh_of, placed, specs_of
from .test_what_is_recorded import batch_of, loss_of, parameters

COLLECTIVE = re.compile(
    r"= (.*?) (all-reduce|all-gather|all-to-all|collective-\w+|reduce-scatter)(?:-start)?\("
)


def collectives(compiled: str) -> Counter[str]:
    """The operations of a program that talk to other devices, and how much of each kind is sent."""
    found = Counter[str]()
    for result, kind in COLLECTIVE.findall(compiled):
        for sizes in re.findall(r"\[([\d,]*)\]", result):
            found[kind] += math.prod(int(size) for size in sizes.split(",") if size)
    return found


@pytest.mark.parametrize("in_program", [False, True])
@pytest.mark.parametrize(
    ("mode", "kind"), [("dp", AxisType.Auto), ("dp", AxisType.Explicit), ("dp, tp", AxisType.Auto)]
)
def test_no_collective_is_added(watch: Watch, mode: str, kind: AxisType, in_program: bool) -> None:
    mesh = mesh_of(mode, kind)
    weights = placed(parameters(), specs_of(mesh), mesh)
    cut = NamedSharding(mesh, P("dp", "tp")) if "tp" in mesh.shape else None
    samples = NamedSharding(mesh, P("dp"))
    batch = jax.device_put(batch_of(0), samples)

    def tapped(weights: Any, batch: jax.Array) -> Any:
        weights = {**weights, "down": tap("down", weights["down"])}
        loss, aux = loss_of(weights, tap("batch", batch))
        return loss, {**aux, "hidden": tap("hidden", aux["hidden"], sharding=cut)}

    def text(scope: Scope) -> str:
        def step(weights: Any, batch: jax.Array) -> Any:
            step = jax.value_and_grad(tapped, has_aux=True)
            is_auto = kind == AxisType.Auto
            how: dict[str, Any] = {"samples": samples, "batch": len(batch)} if is_auto else {}
            ((loss, aux), gradients), taps = scope.collect(step, **how)(weights, batch)
            told = scope.sketch(weights=weights, gradients=gradients, taps=taps, aux=aux, loss=loss)
            return gradients, aux, loss, told

        return str(jax.jit(step).lower(weights, batch).compile().as_text())

    with jax.set_mesh(mesh), watch(in_program=in_program) as scope:
        observed = text(scope)
    with jax.set_mesh(mesh), watch(every=2, start=1) as scope:
        bare = text(scope)
    assert "rankscope" in observed
    assert collectives(observed) == collectives(bare)
    assert collectives(bare)


def shaped(make: Callable[[], Any], sharding: NamedSharding) -> Any:
    """What `make` would give, without its numbers."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(make),
    )


def test_the_example_talks_to_other_devices_as_it_does_unobserved(watch: Watch) -> None:
    folder = Path(__file__).parents[3] / "examples"
    example = runpy.run_path(str(folder / "flax_train.py"))
    mesh = jax.make_mesh((2,), ("dp",), (AxisType.Auto,), devices=jax.devices()[:2])
    samples = NamedSharding(mesh, P("dp"))
    state = shaped(example["new_state"], NamedSharding(mesh, P()))
    batch = shaped(lambda: example["batch_of"](0), samples)

    def text(**options: Any) -> str:
        with watch(**options) as scope:
            step = example["step_of"](scope, samples)
            lowered = step.lower(state, batch)
            assert ("rankscope" in lowered.as_text()) == (not options)
            return str(lowered.compile().as_text())

    observed, bare = collectives(text()), collectives(text(every=2, start=1))
    observed["all-reduce"] -= 1  # the loss
    assert observed == bare
