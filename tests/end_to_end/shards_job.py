"""The job of test_shards.py: two ranks that hold pieces of one model, as a user would write them.

Usage: torchrun --nproc-per-node 2 shards_job.py RUN DIRECTORY fsdp|tp
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from rankscope.agent.torch import observe


def make_model() -> nn.Sequential:
    """The same on each rank and in the test; of the last layer FSDP cuts 7 rows in two."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(300, 102), nn.GELU(), nn.Linear(102, 7))


def main() -> None:
    """Two steps."""
    run, directory, mode = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = make_model()
    if mode == "fsdp":
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters())
    with observe(model, optimizer, run=run, directory=directory) as scope:
        for step in range(2):
            torch.manual_seed(step)
            loss = model(torch.randn(5, 300)).square().mean()
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
