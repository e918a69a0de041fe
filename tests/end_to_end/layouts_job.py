"""A user's script whose model is cut otherwise in each start. Usage: layouts_job.py RUN DIRECTORY

It is sharded by FSDP on three ranks, and by tensor parallelism on two.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from rankscope.agent.torch import observe

STEPS = 2


def main() -> None:
    """Train a little."""
    run, directory = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model, ranks = nn.Sequential(nn.Linear(4, 12)), dist.get_world_size()
    if ranks == 3:
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",)))
    else:
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, {"0": ColwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with observe(model, optimizer, run=run, directory=directory) as scope:
        for _ in range(STEPS):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            scope.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
