"""Each device is a rank; what they hold merges to the sketch of the whole array."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rankscope.agent.jax import Telemetry, collect, tap
from rankscope.store import Run, open_run

from ..conftest import Observed
from .conftest import Watch
from .test_what_is_recorded import (
    assert_same,
    batch_of,
    labelled,
    loss_of,
    normal,
    parameters,
)

P = PartitionSpec
MESHES: dict[str, tuple[tuple[str, int], ...]] = {
    "dp": (("dp", 8),),
    "dp, tp": (("dp", 2), ("tp", 4)),
    "fsdp, tp": (("fsdp", 2), ("tp", 2)),
}
STEPS = 2


def mesh_of(mode: str, kind: AxisType = AxisType.Auto) -> Mesh:
    """The mesh of a mode, over as many devices as it takes."""
    names, sizes = zip(*MESHES[mode], strict=True)
    count = int(np.prod(sizes))
    return jax.make_mesh(sizes, names, (kind,) * len(sizes), devices=jax.devices()[:count])


def specs_of(mesh: Mesh) -> dict[str, Any]:
    """How the parameters lie on a mesh: Megatron's way along `tp`, cut again along `fsdp`."""
    tp, fsdp = ("tp" if "tp" in mesh.shape else None), "fsdp" if "fsdp" in mesh.shape else None
    both = (tp, fsdp) if tp and fsdp else tp
    return {
        "up": {"kernel": P(None, both), "bias": P(tp)},
        "down": {"kernel": P(tp, fsdp)},
    }


def placed(tree: Any, specs: Any, mesh: Mesh) -> Any:
    """The tree on the mesh."""
    return jax.tree.map(
        lambda spec, leaf: jax.device_put(leaf, NamedSharding(mesh, spec)),
        specs,
        tree,
        is_leaf=lambda node: isinstance(node, PartitionSpec),
    )


def train(watch: Watch, mode: str, **options: Any) -> list[dict[str, np.ndarray[Any, Any]]]:
    """By step: what was handed over, gathered, by label."""
    mesh, optimizer = mesh_of(mode), optax.sgd(0.1, momentum=0.9)
    samples = P(tuple(axis for axis in mesh.shape if axis != "tp") or None)
    expected = list[dict[str, np.ndarray[Any, Any]]]()
    with watch(**options) as scope:

        @partial(jax.jit, donate_argnums=(0, 1))
        def step(weights: Any, state: Any, batch: jax.Array) -> Any:
            (loss, aux), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights, batch)
            updates, state = optimizer.update(gradients, state, weights)
            telemetry = scope.sketch(
                weights=weights, gradients=gradients, optimizer=state, aux=aux, loss=loss
            )
            return optax.apply_updates(weights, updates), state, telemetry, (gradients, aux)

        weights = placed(parameters(), specs_of(mesh), mesh)
        state = optimizer.init(weights)
        for number in range(STEPS):
            seen = labelled("weight", weights)
            batch = jax.device_put(batch_of(number), NamedSharding(mesh, samples))
            weights, state, telemetry, (gradients, aux) = step(weights, state, batch)
            scope.step(telemetry)
            seen |= labelled("weight_gradient", gradients)
            seen |= labelled("optimizer_state", state[0].trace, "[trace]")
            seen["tap:hidden"] = np.array(aux["hidden"])
            expected.append(seen)
    return expected


@pytest.mark.parametrize("mode", ["dp", "dp, tp"])
def test_what_devices_hold_merges_to_the_whole(watch: Watch, observed: Observed, mode: str) -> None:
    assert_stored(observed, train(watch, mode))
    run = open_run(observed.path)
    assert run.alerts()["text"].tolist() == []
    assert run.records()["complete"].tolist() == [True] * STEPS
    assert_pieces_are_told(run, mode)


def test_programs_on_the_devices_sketch_the_same(watch: Watch, observed: Observed) -> None:
    assert_stored(observed, train(watch, "fsdp, tp", in_program=True))
    assert_pieces_are_told(open_run(observed.path), "fsdp, tp")


@pytest.mark.parametrize("in_program", [False, True])
@pytest.mark.parametrize("spec", [P(None, "fsdp", "tp"), P(None, None, "fsdp", "tp")])
def test_leaves_that_are_cut_along_two_inner_axes(
    watch: Watch, observed: Observed, spec: PartitionSpec, in_program: bool
) -> None:
    whole = normal(0, (3, 4, 6, 8)[: len(spec)])
    leaf = jax.device_put(whole, NamedSharding(mesh_of("fsdp, tp"), spec))
    small = leaf.astype("float4_e2m1fn")
    with watch(in_program=in_program) as scope:
        scope.step(scope.sketch(weights={"kernel": leaf, "small": small}))
    assert_same(observed.sketches(0)["weight:kernel"], np.asarray(leaf), "kernel")
    assert_same(observed.sketches(0)["weight:small"], np.asarray(small), "small")


def assert_stored(observed: Observed, expected: list[dict[str, np.ndarray[Any, Any]]]) -> None:
    """All of it is in the store, and nothing else."""
    for step, seen in enumerate(expected):
        stored = observed.sketches(step)
        assert set(stored) == set(seen)
        for label, array in seen.items():
            assert_same(stored[label], array, f"{label} of step {step}")


def assert_pieces_are_told(run: Run, mode: str) -> None:
    """Each rank has the numbers of its own piece, and says where that lies."""
    mesh = mesh_of(mode)
    whole = placed(parameters(), specs_of(mesh), mesh)["up"]["kernel"]
    seen = run.ranks("l2", site="weight:up.kernel", steps=0)
    assert seen["rank"].values.tolist() == list(range(mesh.size))
    by_device = {shard.device: shard for shard in whole.addressable_shards}
    for rank, device in enumerate(mesh.devices.flat):
        norm = float(np.linalg.norm(np.asarray(by_device[device].data, np.float64)))
        assert seen.sel(rank=rank).item() == pytest.approx(norm, rel=1e-6)
    if mode != "dp":
        told = run.regions(kind="weight", name="up.kernel")
        offsets = {
            tuple(at[0] or 0 for at in map(bounds, shard.index)) for shard in by_device.values()
        }
        assert {tuple(offset) for offset in told["offset"]} == offsets


def placement_of(label: str, run: Run) -> Any:
    """How a site relates to the whole."""
    return run.sites()["placement"].to_dict()[label]


def bounds(piece: slice) -> tuple[int | None, int | None]:
    """Where it begins and ends."""
    return piece.start, piece.stop


def test_replicas_that_differ_are_an_alert(watch: Watch, observed: Observed) -> None:
    mesh = mesh_of("dp")
    copies = [np.full(8, 1.0 + (rank == 3), np.float32) for rank in range(8)]
    arrays = [
        jax.device_put(copy, device) for copy, device in zip(copies, mesh.devices.flat, strict=True)
    ]
    broken = jax.make_array_from_single_device_arrays((8,), NamedSharding(mesh, P()), arrays)
    with watch() as scope:
        scope.step(scope.sketch(weights={"w": broken}))
    [text] = open_run(observed.path).alerts()["text"].tolist()
    assert text.endswith("the odd one is 3.")


def test_a_step_with_nothing_but_numbers_does_not_say_which_devices_there_are(
    watch: Watch, observed: Observed
) -> None:
    weights = jax.device_put(parameters()["up"]["bias"], NamedSharding(mesh_of("dp"), P()))
    with watch(axes={"modle": "tp", "dp": "dp"}) as scope:
        scope.step(scope.sketch(loss=2.0))
        scope.step(scope.sketch(weights={"w": weights}, loss=1.0))
    run = open_run(observed.path)
    assert run.ranks("l2", site="weight:w", steps=1).sizes["rank"] == 8
    assert run.training().sel(name="loss", rank=7).values.tolist() == [2.0, 1.0]
    assert observed.reports() == "`axes` names modle; this job's mesh has dp."


def test_what_lies_on_devices_that_are_no_ranks_is_told(watch: Watch, observed: Observed) -> None:
    bias = parameters()["up"]["bias"]
    with watch() as scope:
        scope.step(scope.sketch(weights={"w": bias}))
        for _ in range(2):
            spread = jax.device_put(bias, NamedSharding(mesh_of("dp"), P()))
            scope.step(scope.sketch(weights={"w": spread}))
    assert "pass observe(…, mesh=…) with all devices of the job" in observed.reports()
    assert scope.health()["tensors_unsupported"] == 2 * 7


@pytest.mark.parametrize("in_program", [False, True])
def test_explicit_axes_are_placed_the_same(
    watch: Watch, observed: Observed, in_program: bool
) -> None:
    mesh = mesh_of("dp, tp", AxisType.Explicit)
    with watch(in_program=in_program) as scope, jax.set_mesh(mesh):
        weights = placed(parameters(), specs_of(mesh), mesh)
        step = jax.jit(lambda weights: scope.sketch(weights=weights))
        telemetry = step(weights)
        assert bool(telemetry.rows) == in_program
        scope.step(telemetry)
    for label, array in labelled("weight", weights).items():
        assert_same(observed.sketches(0)[label], array, label)
    assert placement_of("weight:up.kernel", open_run(observed.path)) == {"tp": "shard"}


def test_pmap_is_a_mesh_of_one_axis(watch: Watch, observed: Observed) -> None:
    samples = normal(0, (8, 16))
    doubled = collect(lambda x: tap("doubled", 2 * x))
    with watch() as scope:

        def mean(x: jax.Array) -> jax.Array:
            return jax.lax.pmean(x.mean(), "dp")

        def step(x: jax.Array) -> Telemetry:
            return scope.sketch(aux={"x": 2 * x}, taps=doubled(x)[1], loss=mean(x))

        scope.step(jax.pmap(step, axis_name="dp")(samples))
    run = open_run(observed.path)
    for name in ("x", "doubled"):
        assert np.array_equal(observed.sketches(0)[f"tap:{name}"].counts[0, 0], samples.size)
        norms = run.ranks("l2", site=f"tap:{name}", steps=0).values.ravel()
        expected = np.linalg.norm(2 * np.asarray(samples), axis=1)
        np.testing.assert_allclose(norms, expected, rtol=1e-6)
    assert_same(observed.sketches(0)["tap:x"], np.asarray(2 * samples), "x")
    assert run.alerts()["text"].tolist() == []
    assert_loss(run, float(samples.mean()))


@pytest.mark.parametrize("in_program", [False, True])
def test_copies_that_pmap_stacks_are_one_weight_where_placements_say_so(
    watch: Watch, observed: Observed, in_program: bool
) -> None:
    weights = normal(0, (3, 5))
    stacked = jnp.broadcast_to(weights, (8, 3, 5))
    placements = {"^weight:": {"dp": "replicate"}}
    with watch(placements=placements, in_program=in_program) as scope:
        step = jax.pmap(lambda w: scope.sketch(weights={"w": w}), axis_name="dp")
        scope.step(step(stacked))
        scope.step(step(stacked.at[5].add(1.0)))
    run = open_run(observed.path)
    assert_same(observed.sketches(0)["weight:w"], np.asarray(weights), "w")
    assert placement_of("weight:w", run) == {"dp": "replicate"}
    assert run.alerts()[["first_step", "ranks"]].values.tolist() == [[1, (5,)]]


def assert_loss(run: Run, expected: float) -> None:
    """It is among the numbers of step 0."""
    told = run.training().sel(name="loss", step=0)
    assert told.values.ravel()[0] == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_what_a_shard_map_says_is_told(watch: Watch, observed: Observed) -> None:
    mesh = mesh_of("dp")
    samples = jax.device_put(batch_of(0), NamedSharding(mesh, P("dp")))
    doubled = collect(lambda x: tap("doubled", 2 * x))
    with watch() as scope:

        def part(x: jax.Array) -> Telemetry:
            loss = jax.lax.pmean(x.mean(), "dp")
            return scope.sketch(aux={"x": 2 * x}, taps=doubled(x)[1], loss=loss)

        mapped = jax.shard_map(part, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))
        scope.step(jax.jit(mapped)(samples))
    run = open_run(observed.path)
    norms = run.ranks("l2", site="tap:doubled", steps=0).values.ravel()
    np.testing.assert_allclose(norms, np.linalg.norm(2 * np.asarray(samples), axis=1), rtol=1e-6)
    assert_same(observed.sketches(0)["tap:x"], np.asarray(2 * samples), "x")
    assert run.alerts()["text"].tolist() == []
    assert_loss(run, float(samples.mean()))


def test_steps_in_a_scan_are_one(watch: Watch, observed: Observed) -> None:
    steps = normal(0, (3, 16))
    doubled = collect(lambda x: tap("doubled", 2 * x))
    with watch() as scope:

        def one(carry: None, x: jax.Array) -> tuple[None, Telemetry]:
            return carry, scope.sketch(taps=doubled(x)[1], loss=x.mean())

        scope.step(jax.jit(lambda xs: jax.lax.scan(one, None, xs)[1])(steps))
    run = open_run(observed.path)
    [norm] = run.ranks("l2", site="tap:doubled", steps=0).values.ravel()
    assert norm == pytest.approx(float(jnp.linalg.norm(2 * steps)), rel=1e-6)
    assert_loss(run, float(steps[-1].mean()))


def test_shard_map_gives_global_arrays(watch: Watch, observed: Observed) -> None:
    mesh = mesh_of("dp")
    samples = jax.device_put(batch_of(0), NamedSharding(mesh, P("dp")))
    with watch() as scope:

        @jax.jit
        def step(x: jax.Array) -> Any:
            doubled = jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))
            return scope.sketch(aux={"x": doubled(x)})

        scope.step(step(samples))
    assert_same(observed.sketches(0)["tap:x"], np.asarray(2 * samples), "x")


def test_axes_may_be_called_otherwise_in_the_run(watch: Watch, observed: Observed) -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), (AxisType.Auto,) * 2)
    weights = jax.device_put(parameters()["up"]["kernel"], NamedSharding(mesh, P(None, "model")))
    with watch(mesh=mesh, axes={"data": "dp", "model": "tp"}) as scope:
        scope.step(scope.sketch(weights={"w": weights}))
    run = open_run(observed.path)
    assert placement_of("weight:w", run) == {"tp": "shard"}
    assert {"tp=0", "dp=1"} <= set(run.groups)
    assert_same(observed.sketches(0)["weight:w"], np.asarray(weights), "w")


def test_layers_that_are_stacked_for_a_scan_are_seen_one_by_one(
    watch: Watch, observed: Observed
) -> None:
    layers = {"up": normal(0, (3, 8, 16))}
    layers["up"] = layers["up"].at[1, 2, 3].set(jnp.nan)
    sharding = NamedSharding(
        jax.make_mesh((4,), ("tp",), (AxisType.Auto,), devices=jax.devices()[:4]),
        P(None, None, "tp"),
    )
    sharded = jax.device_put(layers, {"up": sharding})
    with watch() as scope:

        @jax.jit
        def step(layers: dict[str, jax.Array]) -> Telemetry:
            count = len(layers["up"])
            return scope.sketch(
                weights={str(i): jax.tree.map(lambda x, i=i: x[i], layers) for i in range(count)}
            )

        scope.step(step(sharded))
    for i in range(3):
        assert_same(observed.sketches(0)[f"weight:{i}.up"], np.asarray(layers["up"][i]), str(i))
    found = open_run(observed.path).first_bad()
    assert found is not None
    assert found.site == "weight:1.up"


def test_a_shard_map_of_two_axes_hands_out_the_sketches_of_all_devices(
    watch: Watch, observed: Observed
) -> None:
    mesh = jax.make_mesh((2, 2), ("dp", "tp"), (AxisType.Auto,) * 2, devices=jax.devices()[:4])
    values = normal(0, (8, 16))
    samples = jax.device_put(values, NamedSharding(mesh, P("dp", "tp")))
    with watch(mesh=mesh) as scope:

        def part(x: jax.Array) -> Telemetry:
            return scope.sketch(aux={"x": 2 * x})

        mapped = jax.shard_map(part, mesh=mesh, in_specs=P("dp", "tp"), out_specs=P(("dp", "tp")))
        scope.step(jax.jit(mapped)(samples))
    ranks = open_run(observed.path).ranks("l2", site="tap:x", steps=0).values.ravel()
    assert len(ranks) == 4
    assert np.isfinite(ranks).all()
    parts = np.asarray(2 * values).reshape(2, 4, 2, 8).swapaxes(1, 2).reshape(4, -1)
    np.testing.assert_allclose(ranks, np.linalg.norm(parts, axis=1), rtol=1e-6)
