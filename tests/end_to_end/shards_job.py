"""The job of test_shards.py: two ranks that hold pieces of one model, as a user would write them.

Usage: torchrun --nproc-per-node 2 shards_job.py RUN DIRECTORY fsdp|tp
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from rankscope.agent.torch import observe

PLAN: dict[str, ParallelStyle] = {
    "tokens": RowwiseParallel(input_layouts=Replicate()),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
    "head": ColwiseParallel(output_layouts=Replicate()),
}


class Model(nn.Module):
    """A block of a transformer without its attention."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30, 300)
        self.norm = nn.LayerNorm(300)
        self.up = nn.Linear(300, 102)
        self.act = nn.GELU()
        self.down = nn.Linear(102, 300)
        self.head = nn.Linear(300, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each token."""
        x = self.tokens(tokens)
        return self.head(x + self.down(self.act(self.up(self.norm(x)))))


def make_model(mode: str) -> nn.Module:
    """The same on each rank and in the test; FSDP cuts 7 rows in two."""
    torch.manual_seed(0)
    return Model(7 if mode == "fsdp" else 8)


def batch(step: int) -> torch.Tensor:
    """The same on each rank and in the test."""
    torch.manual_seed(step)
    return torch.randint(0, 30, (4, 5))


def main() -> None:
    """Two steps."""
    run, directory, mode = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = make_model(mode)
    if mode == "fsdp":
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
        fully_shard(model.up, mesh=mesh)
        fully_shard(model, mesh=mesh)
        told = {"fsdp": 2}
    else:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, PLAN)
        told = mesh
    optimizer = torch.optim.AdamW(model.parameters())
    with observe(model, optimizer, run=run, directory=directory, mesh=told) as scope:
        for step in range(2):
            tokens = batch(step)
            mine = tokens[2 * dist.get_rank() :][:2] if mode == "fsdp" else tokens
            loss = model(mine).square().mean()
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
