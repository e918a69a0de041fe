"""A rank of two that hold pieces of a model's tensors, and say what the whole tensors are like.

`toolkit_job.py DIRECTORY` writes what each rank found there.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from rankscope.agent.torch.tensors import (
    Activations,
    NamedTensors,
    compute_stats,
    gradients,
    load,
    noise_scale,
    optimizer_state,
    save,
    snapshot,
    trust_ratio,
    weights,
)
from rankscope.sketch import SettingError

STATISTICS = ("count", "mean", "var", "kurtosis", "l2", "abs_max", "min")


def make_model() -> torch.nn.Sequential:
    """The same on every rank; one axis is no multiple of two."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 5))


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """One with state."""
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def batch(samples: slice) -> torch.Tensor:
    """Some of eight samples."""
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1))[samples]


def of_single_process(tensors: NamedTensors) -> dict[str, dict[str, float]]:
    """By statistic and name."""
    return {name: tensors.statistic(name, by="tensor") for name in STATISTICS}


def train(
    model: torch.nn.Module,
    samples: slice,
    say: Callable[[NamedTensors], dict[str, dict[str, float]]],
    ratio: Callable[[NamedTensors, NamedTensors], dict[str, float]],
) -> dict[str, object]:
    """One step, and what is told of each kind of tensor."""
    optimizer, before = make_optimizer(model), weights(model)
    with Activations(model) as seen:
        model(batch(samples)).square().mean().backward()
    taken = gradients(model)
    optimizer.step()
    return {
        "weight": say(before),
        "weight_gradient": say(taken),
        "exp_avg": say(optimizer_state(model, optimizer, "exp_avg")),
        "activation": say(seen.activations),
        "activation_gradient": say(seen.gradients),
        "trust_ratio": ratio(before, weights(model)),
    }


def on_ranks(model: torch.nn.Module, samples: slice) -> dict[str, object]:
    """`train`, with numbers of whole tensors."""
    group = dist.group.WORLD
    return train(
        model,
        samples,
        lambda tensors: {
            name: tensors.statistic(name, by="tensor", across=group) for name in STATISTICS
        },
        lambda before, after: trust_ratio(before, after, across=group),
    )


def fsdp(mesh: DeviceMesh, rank: int) -> dict[str, object]:
    """Pieces of weights, and other samples on each rank."""
    model = make_model()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    found = on_ranks(model, slice(4 * rank, 4 * rank + 4))
    table = compute_stats(model, groups="all", by="tensor", across=dist.group.WORLD)
    assert table.loc[("weight", "0.weight"), "shape"] == (4, 6)
    return found


def tensor_parallel(mesh: DeviceMesh) -> dict[str, object]:
    """Pieces of weights and of activations, and the same samples."""
    plan: dict[str, ParallelStyle] = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = make_model()
    return on_ranks(parallelize_module(model, mesh, plan), slice(None))


def pieces_in_a_file(mesh: DeviceMesh, rank: int, directory: Path) -> bool:
    """Whether pieces are pieces again when they come from a file."""
    model = make_model()
    fully_shard(model, mesh=mesh)
    taken, path = weights(model), directory / f"{rank}.safetensors"
    save(taken, path)
    found = load(path)
    group = dist.group.WORLD
    tables = [one.sketches(across=group).table for one in (taken, found)]
    return found == taken and tables[0] == tables[1] and len(taken) == 4


def without_ratio(mesh: DeviceMesh, rank: int) -> list[str]:
    """The weights without a trust ratio, where one element of rank 1's piece became NaN."""
    model = make_model()
    fully_shard(model, mesh=mesh)
    before, after = weights(model), weights(model) + 1
    if rank == 1:
        after["0.weight"][0, 0] = torch.nan
    ratios = trust_ratio(before, after, across=dist.group.WORLD)
    return [name for name, ratio in ratios.items() if ratio != ratio]


def copies_that_differ(rank: int) -> list[str]:
    """What is said of weights that should be the same and are not."""
    model = make_model()
    with torch.no_grad():
        next(model.parameters()).add_(rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weights(model).norm(across=dist.group.WORLD)
    return [str(one.message) for one in caught]


def addends(mesh: DeviceMesh, rank: int) -> list[object]:
    """What is told of the addends 1 and 2 of a sum: alone, together, and of their magnitudes."""
    taken = snapshot({"x": DTensor.from_local(torch.full((3,), 1.0 + rank), mesh, [Partial()])})
    doubled = 2 * (taken + taken)
    group = dist.group.WORLD
    try:
        taken.abs()
    except SettingError as error:
        return [
            doubled.statistic("sum"),
            doubled.statistic("sum", across=group),
            doubled.norm(across=group),
            str(error),
        ]
    return []


def noise(mesh: DeviceMesh, rank: int) -> tuple[float, float]:
    """The noise scale of the known problem, and its error, from gradients that are pieces."""
    model = torch.nn.Linear(50, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    model.weight = torch.nn.Parameter(model.weight.detach().t().contiguous().view(50, 1))
    model.forward = lambda x: x @ model.weight  # pyright: ignore[reportAttributeAccessIssue]
    fully_shard(model, mesh=mesh)
    generator = torch.Generator().manual_seed(rank)

    def closure() -> None:
        model(0.1 + torch.randn(4, 50, generator=generator)).mean().backward()

    found = noise_scale(
        model, closure, batch_size=8, sizes=(1, 16), rounds=10, across=dist.group.WORLD
    )
    return found.b_noise, found.b_noise_error


def main(directory: Path) -> None:
    """Do all of it."""
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    parts = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    found = {
        "fsdp": fsdp(mesh, rank),
        "tp": tensor_parallel(parts),
        "file": pieces_in_a_file(mesh, rank, directory),
        "without_ratio": without_ratio(mesh, rank),
        "differ": copies_that_differ(rank),
        "addends": addends(mesh, rank),
        "noise": noise(mesh, rank),
    }
    (directory / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
