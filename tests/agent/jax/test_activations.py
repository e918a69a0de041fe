"""What `collect` found in a traced function is in the store, under the names of its modules."""

from __future__ import annotations

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from rankscope.agent.jax import Taps, collect, tap
from rankscope.agent.jax.linen import outputs
from rankscope.sketch import MOMENTS, SketchTable, sketch_array
from rankscope.store import open_run

from ..conftest import Observed
from .conftest import Watch
from .test_sharded import mesh_of
from .test_what_is_recorded import assert_same, batch_of, normal

P = PartitionSpec
KEY = jax.random.key(0)
M2, SUM = MOMENTS.index("m2"), MOMENTS.index("sum")


class Net(linen.Module):
    """Two layers."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return linen.Dense(2, name="down")(linen.relu(linen.Dense(8, name="up")(x)))


def test_outputs_of_modules_and_their_gradients_are_stored(
    watch: Watch, observed: Observed
) -> None:
    net, batch = Net(), batch_of(0)
    weights = net.init(jax.random.key(0), batch)

    def loss_of(weights: Any) -> jax.Array:
        out: Any = net.apply(weights, batch)
        return jnp.square(out).mean()

    with watch() as scope:

        @jax.jit
        def step(weights: Any) -> Any:
            graded = scope.collect(jax.value_and_grad(loss_of), within=outputs)
            (loss, gradients), taps = graded(weights)
            return scope.sketch(gradients=gradients, taps=taps, loss=loss)

        scope.step(step(weights))
    stored = observed.sketches(0)
    modules = ("", "up", "down")
    assert {label for label in stored if "activation" in label} == {
        f"{kind}:{name or '(root)'}"
        for kind in ("activation", "activation_gradient")
        for name in modules
    }
    up: Any = linen.Dense(8).apply({"params": weights["params"]["up"]}, batch)
    assert_same(stored["activation:up"], np.asarray(up), "up")
    out: Any = net.apply(weights, batch)
    for label in ("activation:down", "activation:(root)"):
        assert_same(stored[label], np.asarray(out), label)
    assert_same(stored["activation_gradient:down"], np.asarray(2 * out / out.size), "gradient")
    assert open_run(observed.path).sites()["module"].to_dict()["activation:up"] == "Dense"


def test_weights_stand_in_the_order_of_their_modules(watch: Watch, observed: Observed) -> None:
    """Not in that of the alphabet, in which linen has them: `down` runs last."""

    class Shifted(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return Net(name="net")(x + self.param("shift", linen.initializers.zeros, x.shape[-1:]))

    net, batch = Shifted(), batch_of(0)
    weights = net.init(KEY, batch)

    def loss_of(weights: Any) -> jax.Array:
        return jnp.square(net.apply(weights, batch)).mean()  # pyright: ignore[reportArgumentType]  # one output

    with watch() as scope:

        @jax.jit
        def step(weights: Any) -> Any:
            graded = scope.collect(jax.value_and_grad(loss_of), within=outputs)
            (_, gradients), taps = graded(weights)
            return scope.sketch(weights=weights, gradients=gradients, taps=taps)

        scope.step(step(weights))
    run = open_run(observed.path).wait()
    up, down = ("net.up.bias", "net.up.kernel"), ("net.down.bias", "net.down.kernel")

    assert list(run.sites(kind="weight")["name"]) == ["shift", *up, *down]
    assert list(run.sites(kind="weight_gradient")["name"]) == [*down, *up, "shift"]


def test_the_order_of_sites_is_that_in_which_they_run(watch: Watch, observed: Observed) -> None:
    """Through a scan turn by turn, and in the backward from the end: there it overflows."""

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return tap("second", jnp.sin(tap("first", x @ w))), None

    def loss_of(ws: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(jax.checkpoint(layer), normal(1, (4, 8)), ws)
        x, _ = jax.lax.scan(layer, x, ws, reverse=True)
        steep = tap("steep", 1e3 * x, mode="final")
        return (steep * 1e38).sum()

    ws = normal(2, (2, 8, 8))
    with watch() as scope:

        @jax.jit
        def step(ws: jax.Array) -> Any:
            (_, gradients), taps = scope.collect(jax.value_and_grad(loss_of))(ws)
            return scope.sketch(weights={"ws": ws}, gradients={"ws": gradients}, taps=taps)

        scope.step(step(ws))
    run = open_run(observed.path).wait()
    taps = [label.removeprefix("tap:") for label in run.sites().index if "tap" in label]
    calls = ["first", "second", "first#1", "second#1", "first#3", "second#3", "first#2", "second#2"]
    forward = [*calls, "steep"]
    backward = [f"{name}[gradient]{number}" for name, number in map(parted, reversed(forward))]
    bad = run.first_bad()

    assert taps == [*forward, *backward]
    assert bad is not None
    assert (bad.site, bad.after) == ("tap:second[gradient]#2", "tap:steep[gradient]")


def parted(label: str) -> tuple[str, str]:
    """The name, and the number of the call with its sign."""
    name, sign, number = label.partition("#")
    return name, sign + number


def test_layers_of_a_scan_are_calls(watch: Watch, observed: Observed) -> None:
    layers = normal(0, (3, 16, 16))
    batch = batch_of(0)

    def forward(x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, None]:
            return tap("layer", jnp.tanh(x @ kernel)), None

        return jax.lax.scan(layer, x, layers)[0]

    with watch() as scope:
        step = jax.jit(lambda x: scope.sketch(taps=collect(forward)(x)[1]))
        scope.step(step(batch))
    stored, x = observed.sketches(0), batch
    assert set(stored) == {"tap:layer", "tap:layer#1", "tap:layer#2"}
    for number, kernel in enumerate(layers):
        x = jnp.tanh(x @ kernel)
        label = "tap:layer" + f"#{number}" * (number > 0)
        assert stored[label].counts[0, 0] == x.size
        norm = np.sqrt(stored[label].moments[0, M2] + stored[label].moments[0, SUM] ** 2 / x.size)
        assert norm == pytest.approx(float(jnp.linalg.norm(x)), rel=1e-5)


def test_micro_batches_are_one_where_the_body_of_their_scan_collects(
    watch: Watch, observed: Observed
) -> None:
    parts = batch_of(0).reshape(4, -1, 16)
    collected = collect(jax.grad(lambda x: tap("x", 3 * x).sum()))
    with watch() as scope:
        step = jax.jit(
            lambda parts: scope.sketch(
                taps=jax.lax.scan(lambda carry, x: (carry, collected(x)[1]), None, parts)[1]
            )
        )
        scope.step(step(parts))
    stored = observed.sketches(0)
    assert set(stored) == {"tap:x", "tap:x[gradient]"}
    whole = reduce(SketchTable.merge, [sketch_array(np.asarray(3 * part)) for part in parts])
    assert np.array_equal(stored["tap:x"].counts, whole.counts)
    assert np.array_equal(stored["tap:x"].histogram, whole.histogram)
    assert np.array_equal(stored["tap:x"].checksum, whole.checksum)


def test_taps_on_explicit_axes_are_parts_of_the_whole(watch: Watch, observed: Observed) -> None:
    mesh = mesh_of("dp, tp", AxisType.Explicit)
    with watch() as scope, jax.set_mesh(mesh):
        batch = jax.device_put(batch_of(0), NamedSharding(mesh, P("dp", "tp")))
        doubled = collect(lambda x: tap("doubled", 2 * x))
        step = jax.jit(lambda x: scope.sketch(taps=doubled(x)[1], weights={"batch": x}))
        scope.step(step(batch))
    run = open_run(observed.path)
    assert_same(observed.sketches(0)["tap:doubled"], np.asarray(2 * batch), "doubled")
    assert run.ranks("l2", site="tap:doubled", steps=0).sizes["rank"] == 8
    assert {tuple(whole) for whole in run.regions(kind="tap")["whole"]} == {batch.shape}


def test_taps_in_a_shard_map_are_parts(watch: Watch, observed: Observed) -> None:
    mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,))
    batch = jax.device_put(batch_of(0), NamedSharding(mesh, P("data")))

    def forward(x: jax.Array) -> jax.Array:
        def part(x: jax.Array) -> jax.Array:
            return tap("doubled", 2 * x)

        return jax.shard_map(part, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    with watch(axes={"data": "dp"}) as scope:
        step = jax.jit(lambda x: scope.sketch(taps=collect(forward)(x)[1]))
        for _ in range(2):
            scope.step(step(batch))
    run = open_run(observed.path)
    counts = observed.sketches(1)["tap:doubled"].counts
    assert counts[0, 0] == batch.size
    assert run.sites()["placement"].to_dict()["tap:doubled"] == {"dp": "shard"}
    seen = run.ranks("l2", site="tap:doubled", steps=0)
    norms = [float(np.linalg.norm(2 * np.asarray(row))) for row in batch]
    np.testing.assert_allclose(seen.values.ravel(), norms, rtol=1e-6)


def test_samples_on_automatic_axes_are_read_where_they_lie(
    watch: Watch, observed: Observed
) -> None:
    net, mesh = Net(), mesh_of("dp")
    samples = NamedSharding(mesh, P("dp"))
    batch = jax.device_put(batch_of(0), samples)
    weights = jax.device_put(net.init(jax.random.key(0), batch), NamedSharding(mesh, P()))

    def loss_of(weights: Any, batch: jax.Array) -> jax.Array:
        out: Any = net.apply(weights, batch)
        return jnp.square(out).mean()

    plain = jax.value_and_grad(loss_of)
    graded = collect(plain, within=outputs, samples=samples, batch=len(batch))
    with watch() as scope:

        @jax.jit
        def step(weights: Any, batch: jax.Array) -> Any:
            (loss, _), taps = graded(weights, batch)
            return scope.sketch(taps=taps, loss=loss)

        scope.step(step(weights, batch))
        assert "all-gather" not in str(step.lower(weights, batch).compile().as_text())
    out: Any = net.apply(weights, batch)
    assert_same(observed.sketches(0)["activation:(root)"], np.asarray(out), "out")
    run = open_run(observed.path)
    assert run.sites()["placement"].to_dict()["activation_gradient:up"] == {"dp": "shard"}
    assert run.alerts()["text"].tolist() == []


def test_what_cannot_be_seen_is_told_once(watch: Watch, observed: Observed) -> None:
    with watch() as scope:
        for _ in range(2):
            taps = Taps(unseen=("x (why)",))
            scope.step(scope.sketch(taps=taps, loss=jnp.ones(2), key=KEY, epoch=jnp.ones(())))
    told = "key (it is not one number: pass its mean), loss (it is not one number: pass its mean)"
    assert observed.reports().count(f"Not seen are {told}, x (why).") == 1
    assert scope.health()["tensors_unsupported"] == 4


def test_a_number_that_a_process_has_not_is_left_out_of_its_step(
    watch: Watch, observed: Observed
) -> None:
    with watch() as scope:
        scope.step(scope.sketch(aux={"x": batch_of(0)}), loss=None, other=1.0)
    assert open_run(observed.path).training().sel(name="other").values[0].tolist() == [1.0]
    assert observed.reports() == ""


def test_a_tap_may_be_called_as_an_array_of_aux(watch: Watch, observed: Observed) -> None:
    batch = batch_of(0)
    with watch() as scope:
        taps = collect(lambda x: tap("hidden", 3 * x))(batch)[1]
        scope.step(scope.sketch(taps=taps, aux={"hidden": batch}))
    assert_same(observed.sketches(0)["tap:hidden"], np.asarray(batch), "aux")
    assert_same(observed.sketches(0)["tap:hidden#1"], np.asarray(3 * batch), "tap")


def test_taps_that_are_not_chosen_are_not_in_the_program(watch: Watch) -> None:
    def text(include: str) -> str:
        with watch(include=include) as scope:
            graded = collect(lambda x: (tap("a", 2 * x) + tap("b", 3 * x)).sum())
            step = jax.jit(lambda x: scope.sketch(taps=graded(x)[1]))
            return str(step.lower(batch_of(0)).compile().as_text())

    assert text("a|b").count("rankscope_sketch") == 2 * text("a$|c").count("rankscope_sketch") > 0
