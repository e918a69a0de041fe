"""The job of test_meshes.py: DTensors on meshes that are not the job's, or have other names.

Usage: torchrun --nproc-per-node 4 meshes_job.py RUN DIRECTORY flat|model|empty|part|ddp, of 2 ranks
unnamed|replicate|accumulate. RUN.error tells why it was refused.

A rank of `empty` has no row of the head. That mode and `accumulate`, which has two micro-batches,
compute activations anew in the backward.
"""

import runpy
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from rankscope.agent.torch import observe
from rankscope.sketch import SettingError

SHARDS = runpy.run_path(str(Path(__file__).with_name("shards_job.py")))
STEPS = SHARDS["STEPS"]
SAMPLES = {"flat": 4, "model": 2, "empty": 4, "unnamed": 1, "replicate": 2, "accumulate": 2}
"""By mode: among how many ranks a batch is cut."""
MICRO_BATCHES = {"accumulate": 2}
"""By mode: into how many parts a rank cuts its own; else it takes it in one."""


class Checkpointed(SHARDS["Model"]):
    """The same model, which keeps less for its backward."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each token."""
        x = self.tokens(tokens)
        return self.head(x + checkpoint(self.block, x, use_reentrant=False))

    def block(self, x: torch.Tensor) -> torch.Tensor:
        """What is computed anew."""
        return self.down(self.act(self.up(self.norm(x))))


def make_model(mode: str) -> nn.Module:
    """The same numbers on each rank and in the test; 7 rows are not cut evenly."""
    kind = Checkpointed if mode in ("empty", "accumulate") else SHARDS["Model"]
    torch.manual_seed(0)
    return kind(3 if mode == "empty" else 7).to(torch.float64)


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
    if mode == "empty":
        return sharded(model, init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))), None
    if mode == "accumulate":
        return DistributedDataParallel(model), None
    if mode == "replicate":
        return replicated(model, init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))), None
    if mode == "part":
        group: Any = dist.new_subgroups(2)[0]
        return sharded(model, DeviceMesh.from_group(group, "cpu")), None
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    parallelize_module(model, mesh["model"], plan)
    if mode == "ddp":
        return DistributedDataParallel(model, device_mesh=mesh["data"]), mesh
    return sharded(model, mesh["data"]), mesh


def train(model: nn.Module, tokens: torch.Tensor, parts: int) -> None:
    """Forward and backward of each part; the last one reduces."""
    for number, part in enumerate(tokens.chunk(parts)):
        is_ddp = isinstance(model, DistributedDataParallel)
        with model.no_sync() if is_ddp and number < parts - 1 else nullcontext():
            (model(part).square().mean() / parts).backward()


def main() -> None:
    """One mode."""
    run, directory, mode = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model, mesh = parallelised(make_model(mode), mode)
    optimizer = SHARDS["make_optimizer"](model)
    parts = SAMPLES.get(mode, 1)
    share = dist.get_rank() * parts // dist.get_world_size()
    try:
        with observe(model, optimizer, run=run, directory=directory, mesh=mesh) as scope:
            for step in range(STEPS):
                train(model, SHARDS["batch"](step).chunk(parts)[share], MICRO_BATCHES.get(mode, 1))
                optimizer.step()
                scope.step()
                optimizer.zero_grad()
    except SettingError as error:
        Path(directory, f"{run}.error").write_text(str(error))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
