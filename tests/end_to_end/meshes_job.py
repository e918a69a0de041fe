"""The job of test_meshes.py: DTensors on meshes that are not the job's, or have other names.

Usage: torchrun --nproc-per-node 4 meshes_job.py RUN DIRECTORY flat|model|part|ddp, of 2 ranks
unnamed|replicate. RUN.error tells why it was refused.
"""

import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from rankscope.agent.torch import observe
from rankscope.sketch import SettingError

SHARDS = runpy.run_path(str(Path(__file__).with_name("shards_job.py")))
STEPS = SHARDS["STEPS"]
SAMPLES = {"flat": 4, "model": 2, "unnamed": 1, "replicate": 2}
"""By mode: into how many parts a batch is cut."""


def make_model() -> nn.Module:
    """7 rows are not cut evenly; the same on each rank and in the test."""
    return SHARDS["make_model"]("fsdp", torch.float64)


def sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """In two units of FSDP2."""
    fully_shard(model.get_submodule("up"), mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def replicated(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """As FSDP2 does what DistributedDataParallel does."""
    from torch.distributed._composable.replicate_with_fsdp import replicate

    replicate(model.get_submodule("up"), mesh=mesh)
    replicate(model, mesh=mesh)
    return model


def parallelised(model: nn.Module, mode: str) -> tuple[nn.Module, DeviceMesh | None]:
    """The model over the ranks, and what is said of their mesh."""
    plan = {name: style for name, style in SHARDS["PLAN"].items() if name != "head"}
    if mode == "flat":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "cp"))
        both = mesh["dp_shard", "cp"]
        flat = both._flatten("dp_shard_cp")  # pyright: ignore[reportPrivateUsage]  # has no other name
        return sharded(model, flat), mesh
    if mode == "unnamed":
        parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
        return model, None
    if mode == "replicate":
        return replicated(model, init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))), None
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    if mode == "part":
        return sharded(model, mesh["model"]), None
    parallelize_module(model, mesh["model"], plan)
    if mode == "ddp":
        return DistributedDataParallel(model, device_mesh=mesh["data"]), mesh
    return sharded(model, mesh["data"]), mesh


def main() -> None:
    """One mode."""
    run, directory, mode = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model, mesh = parallelised(make_model(), mode)
    optimizer = SHARDS["make_optimizer"](model)
    parts = SAMPLES.get(mode, 1)
    share = dist.get_rank() * parts // dist.get_world_size()
    try:
        with observe(model, optimizer, run=run, directory=directory, mesh=mesh) as scope:
            for step in range(STEPS):
                SHARDS["train"](model, SHARDS["batch"](step).chunk(parts)[share])
                optimizer.step()
                scope.step()
                optimizer.zero_grad()
    except SettingError as error:
        Path(directory, f"{run}.error").write_text(str(error))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
