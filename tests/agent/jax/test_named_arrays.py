"""Arrays of pytrees by name: snapshots, statistics over shards and copies, tables, files."""

from __future__ import annotations

import math
import operator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from rankscope.agent import RankscopeWarning
from rankscope.agent.jax.tensors import (
    NamedArrays,
    adam_update,
    compute_stats,
    gradients,
    hist,
    load,
    noise_scale,
    optimizer_state,
    save,
    snapshot,
    trust_ratio,
    update,
    weights,
)
from rankscope.agent.torch.tensors import NamedTensors
from rankscope.agent.torch.tensors import save as save_of_torch
from rankscope.sketch import STATISTICS, SettingError, derive, sketch_array

P = PartitionSpec
PARAMS: dict[str, Any] = {
    "dense": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones(3)},
    "scale": jnp.full((), 2.0),
}


def on_mesh(array: Any, spec: PartitionSpec) -> jax.Array:
    mesh = jax.make_mesh((2, 4), ("dp", "tp"), (jax.sharding.AxisType.Auto,) * 2)
    return jax.device_put(array, NamedSharding(mesh, spec))


def test_names_are_paths() -> None:
    taken = weights({"params": PARAMS})

    assert list(taken) == ["dense.bias", "dense.kernel", "scale"]
    assert taken.kind == "weight"
    assert list(weights(PARAMS, include="dense", exclude="bias")) == ["dense.kernel"]


def test_a_snapshot_outlives_the_donation_of_what_it_is_of() -> None:
    params = {"w": on_mesh(jnp.arange(8.0), P("tp"))}
    before = weights(params)
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    after = weights(step(params))

    assert params["w"].is_deleted()
    assert update(before, after, lr=0.5).statistic("mean") == 2
    assert before["w"].sharding == after["w"].sharding


def test_what_is_no_number_is_left_out_and_what_jax_cannot_hold_is_refused() -> None:
    taken = snapshot({"key": jax.random.key(0), "name": "x", "host": np.ones(2, np.float32)})

    assert list(taken) == ["host"]
    with pytest.raises(SettingError, match="JAX holds no float64 while jax_enable_x64 is off"):
        snapshot({"host": np.ones(2)})


SPECS = [P(), P("dp"), P("tp", "dp"), P(("dp", "tp")), P(None, "tp"), P(("tp", "dp"), None)]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.int8])
def test_however_an_array_lies_on_devices_its_statistics_are_those_of_the_whole(
    spec: PartitionSpec, dtype: Any
) -> None:
    numbers = (np.random.default_rng(0).normal(size=(16, 8)) * 40).astype(dtype)
    numbers[3, 5] = 0
    arrays = NamedArrays({"x": on_mesh(numbers, spec), "one": jnp.ones(())})
    wide = numbers.astype(np.float64) if numbers.dtype.kind == "i" else numbers
    expected, found = sketch_array(wide), arrays.sketches().table.take([0])

    assert found.counts.tolist() == expected.counts.tolist()
    assert found.histogram.tolist() == expected.histogram.tolist()
    for name in STATISTICS:
        assert derive(found, name) == pytest.approx(
            derive(expected, name), rel=1e-12, abs=1e-12, nan_ok=True
        )
    if jnp.issubdtype(dtype, jnp.floating):
        assert found.checksum.tolist() == expected.checksum.tolist()


def test_arrays_of_several_meshes_and_single_devices_are_read_together() -> None:
    first, last = jax.devices()[0], jax.devices()[-1]
    arrays = NamedArrays(
        {
            "mesh": on_mesh(jnp.arange(8.0), P("tp")),
            "half": jax.device_put(jnp.ones(4), NamedSharding(jax.make_mesh((2,), ("x",)), P("x"))),
            "last": jax.device_put(jnp.ones(3), SingleDeviceSharding(last)),
            "first": jax.device_put(jnp.ones(2), first),
            "none": jnp.ones((0, 3)),
        }
    )

    assert arrays.describe("all")["num_params"].tolist() == [8, 4, 3, 2, 0]
    assert arrays.statistic("l1") == 28 + 4 + 3 + 2


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    arrays = NamedArrays({"x": jnp.array([1, math.nan, math.inf, -3])})

    assert arrays.statistic("nonfinite") == 2
    assert arrays.norm(3) == pytest.approx(28 ** (1 / 3))


def test_of_complex_numbers_the_parts_are_read() -> None:
    arrays = NamedArrays({"x": jnp.array([3 + 4j, -1j])})

    assert arrays.statistic("count") == 4
    assert arrays.statistic("min") == -1
    assert arrays.norm(2) == pytest.approx(26**0.5)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=2), st.floats(-4, 4, width=32))
def test_arithmetic_is_that_of_jax_by_name(values: list[float], number: float) -> None:
    one = {"a": jnp.array(values), "b": jnp.array(values[:1])}
    two = jax.tree.map(jnp.cos, one)
    mine, theirs = NamedArrays(one), NamedArrays(two)
    expected = jax.tree.map(lambda x, y: (x - number) * y / 2 + abs(x), one, two)

    assert (mine - number) * theirs / 2 + abs(mine) == NamedArrays(expected)


def test_a_number_of_numpys_is_a_number_on_either_side() -> None:
    arrays = NamedArrays({"x": jnp.array([1.0, 2])})

    numbers: list[Any] = [np.float64(2), np.float32(2), np.array(2.0, np.float32)]
    for number in numbers:
        assert number * arrays == arrays * number == 2 * arrays
        assert number - arrays == 2 - arrays


def test_a_frozen_weight_needs_no_rate_and_one_that_is_not_finite_has_no_trust_ratio() -> None:
    before = NamedArrays({"a": jnp.array([3.0, 4]), "b": jnp.ones(2), "c": jnp.ones(2)})
    after = NamedArrays({"a": jnp.array([3.0, 3]), "b": jnp.array([1, math.nan]), "c": jnp.ones(2)})
    rates = {"a": 0.5, "b": 0.5}

    assert trust_ratio(before, after, rates) == {
        "a": 2.5,
        "b": pytest.approx(math.nan, nan_ok=True),
        "c": pytest.approx(math.nan, nan_ok=True),
    }
    assert update(before, after, rates)["c"].tolist() == [0, 0]
    with pytest.raises(SettingError, match="no rate for a, which changed"):
        update(before, after, {"b": 0.5})


def test_others_names_and_what_is_no_array_are_refused() -> None:
    mine = NamedArrays({"a": jnp.ones(2)})

    with pytest.raises(SettingError, match="Only the left side has a; only the right side has b"):
        operator.add(mine, NamedArrays({"b": jnp.ones(2)}))
    with pytest.raises(SettingError, match=r"got \(2,\) and \(3,\) of a; leave it out by `filter`"):
        operator.sub(mine, NamedArrays({"a": jnp.ones(3)}))
    trees: dict[str, Any] = {"dict": {"a": {"b": jnp.ones(2)}}, "list": [jnp.ones(2)]}
    for name, tree in trees.items():
        with pytest.raises(SettingError, match=f"got a tree that is a {name}; name its tensors"):
            operator.sub(mine, tree)
    with pytest.raises(SettingError, match=r"must return a tensor, got 3\.0 of a"):
        mine.apply(lambda _: 3.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(SettingError, match=r"`across` must be a jax\.sharding\.Mesh"):
        mine.describe(across="all")


def test_a_pattern_that_is_found_nowhere_is_warned_of_where_it_stands() -> None:
    with pytest.warns(RankscopeWarning, match="include='kernal' matches no") as told:
        weights(PARAMS, include="kernal")
    assert told[0].filename == __file__


def test_a_file_of_another_ending_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"Tensors are saved as \.safetensors, got 'a\.npz'"):
        save(weights(PARAMS), tmp_path / "a.npz")
    with pytest.raises(SettingError, match="has for itself; got '__metadata__'"):
        save(NamedArrays({"__metadata__": jnp.ones(1)}), tmp_path / "a.safetensors")
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*none to save"):
        save(weights(PARAMS), tmp_path / "none" / "a.safetensors")
    with pytest.raises(SettingError, match="cannot hold these tensors: Unknown dtype"):
        save(weights(PARAMS).to(dtype=jnp.int4), tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_dtype_is_no_place_for_an_array() -> None:
    with pytest.raises(
        SettingError, match=r"must be a device or a sharding of JAX's, got .*float16"
    ):
        weights(PARAMS).to(jnp.float16)  # pyright: ignore[reportArgumentType]


def test_optimizer_state_is_found_by_slot() -> None:
    optimizer = optax.chain(optax.clip(1.0), optax.adamw(1e-3))
    slopes = jax.tree.map(jnp.ones_like, PARAMS)
    changes, state = optimizer.update(slopes, optimizer.init(PARAMS), PARAMS)
    after = optax.apply_updates(PARAMS, changes)
    first, second = (optimizer_state(PARAMS, state, slot) for slot in ("mu", "nu"))
    table = compute_stats(PARAMS, slopes, state, ["mu"], by="tensor", exclude="scale")

    assert list(first) == ["dense.bias", "dense.kernel", "scale"]
    assert adam_update(first, second, steps=1).statistic("mean") == pytest.approx(1, rel=1e-6)
    assert trust_ratio(weights(PARAMS), weights(after), 1e-3)["scale"] < 2
    assert table.index.tolist() == [
        (kind, name)
        for kind in ("weight", "weight_gradient", "optimizer_state[mu]")
        for name in ("dense.bias", "dense.kernel")
    ]
    with pytest.raises(SettingError, match="has no slot 'exp_avg'; it has mu, nu"):
        optimizer_state(PARAMS, state, "exp_avg")


def test_a_file_has_the_same_arrays_and_torch_reads_it(tmp_path: Path) -> None:
    taken = snapshot(
        {"z": jnp.ones((2, 3), jnp.bfloat16), "a": on_mesh(jnp.arange(8.0), P("tp"))}, kind="weight"
    )
    save(taken, tmp_path / "arrays.safetensors")
    again = load(tmp_path / "arrays.safetensors")

    assert list(again) == list(taken)
    assert again.kind == "weight"
    assert again["z"].dtype == ml_dtypes.bfloat16
    assert again["a"].tolist() == list(range(8))
    save_of_torch(NamedTensors({"x": torch.ones(2)}, kind="update"), tmp_path / "torch.safetensors")
    assert load(tmp_path / "torch.safetensors").statistic("l1") == 2
    (tmp_path / "bad").write_bytes(b"nothing")
    with pytest.raises(SettingError, match="is no file of named tensors"):
        load(tmp_path / "bad")


def test_elements_are_drawn_wherever_they_lie() -> None:
    drawn = hist(gradients({"w": on_mesh(jnp.arange(8.0), P("tp"))}), bins=4)

    assert drawn.dimension_values("elements").tolist() == [2, 2, 2, 2]


def test_the_noise_scale_of_a_known_problem() -> None:
    rng = np.random.default_rng(1)

    def closure() -> Any:
        """Gradients of 8 samples, of mean 1 and variance 4 in each of 50 dimensions."""
        return {"w": jnp.asarray(rng.normal(1, 2, (8, 50)).mean(0).astype(np.float32))}

    found = noise_scale(closure, batch_size=8, sizes=(1, 8), rounds=20)

    assert abs(found.b_noise - 4) < 3 * found.b_noise_error
    lost = noise_scale(
        lambda: {"w": closure()["w"].at[0].set(math.inf)}, batch_size=8, sizes=(1, 2)
    )
    assert all(map(math.isnan, (lost.b_noise, lost.b_noise_error, lost.g_2, lost.trace_sigma)))
    with pytest.raises(SettingError, match="must return gradients"):
        noise_scale(dict, batch_size=1)
