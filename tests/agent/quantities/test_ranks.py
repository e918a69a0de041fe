"""How series of ranks belong together: merged, copies, or a rank's own.

The process group is torch's fake one, of two ranks of which this is the first: collectives do
nothing, and placements are as they are in a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from rankscope.agent.torch.placements import ModulePlacements
from rankscope.wire import MeshAxis


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """A job of two, whose other rank does not answer."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


def mesh_of(axis: str) -> tuple[DeviceMesh, list[MeshAxis]]:
    """Torch's mesh of that axis, and ours."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=(axis,))
    return mesh, [MeshAxis(name=axis, size=2, coordinate=0)]


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("cut", [0, 1])
def test_pieces_of_a_weight_add_up_to_its_singular_values(
    watch: Callable[..., Any], read_off: Callable[..., Any], cut: int
) -> None:
    mesh, _ = mesh_of("fsdp")
    whole = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = list[Any]()
    for piece in whole.chunk(2, cut):
        placements: list[Placement] = [Shard(cut)]
        made = DTensor.from_local(piece.contiguous(), mesh, placements, run_check=False)
        model = torch.nn.ParameterDict({"w": torch.nn.Parameter(made)})
        watched = watch(model, {"w": "weight_spectrum"})
        watched.quantities.begins(0)
        parts += watched.quantities.ends(0)

    right = np.linalg.svd(whole.numpy(), compute_uv=False)
    assert parts[0].series.axes == {"fsdp": "merge"}
    assert read_off(parts)["weight_spectrum"][:4] == pytest.approx(right)


def test_ranks_with_different_samples_have_one_covariance(
    watch: Callable[..., Any], read_off: Callable[..., Any]
) -> None:
    x = torch.randn(12, 3) + 5
    axes = [MeshAxis(name="dp", size=2, coordinate=0)]
    parts = list[Any]()
    for piece in x.split([8, 4]):
        model = torch.nn.Identity()
        asked = ["input_cov_spectrum", "input_channel_mean", "dead_neurons(threshold=5)"]
        watched = watch(model, {"Identity": asked}, mesh=axes)
        watched.quantities.begins(0)
        model(piece)
        parts.append(watched.quantities.ends(0))

    spectrum, means, dead = (read_off(pair) for pair in zip(*parts, strict=True))

    right = np.linalg.eigvalsh(np.cov(x.double().numpy().T))[::-1]
    assert spectrum["input_cov_spectrum"] == pytest.approx(right, rel=1e-6)
    assert means["input_channel_mean"] == pytest.approx(x.double().mean(0).numpy())
    assert dead["dead_neurons(threshold=5)"] == [0.0]
    assert {tuple(one.series.axes.items()) for one in parts[0]} == {(("dp", "merge"),)}


@pytest.mark.usefixtures("two_ranks")
def test_features_that_are_cut_over_ranks_are_a_rank_s_own(watch: Callable[..., Any]) -> None:
    mesh, axes = mesh_of("tp")
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4), torch.nn.LayerNorm(4)
    )
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "3": SequenceParallel()}
    parallelize_module(model, mesh, plan)  # pyright: ignore[reportArgumentType]
    placements = ModulePlacements(model, ())
    asked = ["input_cov_trace", "output_cov_trace"]
    watched = watch(model, dict.fromkeys("0123", asked), mesh=axes, placements=placements)

    watched.quantities.begins(0)
    with torch.no_grad():
        model(torch.randn(2, 6, 4))
    taken = watched.quantities.ends(0)

    found = {
        (one.series.of, one.series.readings[0].quantity[:3]): one.series.axes.get("tp", "copies")
        for one in taken
    }
    assert found[("0", "inp")] == "copies"
    assert found[("0", "out")] == found[("1", "inp")] == found[("1", "out")] == "own"
    assert found[("2", "inp")] == "own"
    assert found[("3", "inp")] == found[("3", "out")] == "merge"
