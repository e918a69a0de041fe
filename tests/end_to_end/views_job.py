"""A job of test_shards.py: what a row-parallel layer returns is used through a view alone.

Usage: torchrun --nproc-per-node 2 views_job.py RUN DIRECTORY.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from rankscope.agent.torch import observe


class Model(nn.Module):
    """Each layer takes what the one before returns, and nothing is done to it in between."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(8, 4), nn.Linear(4, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.down(self.up(x)))

    def whole_down(self) -> torch.Tensor:
        """What the second layer returns on one process."""
        return self.down(self.up(batch())).detach()


def batch() -> torch.Tensor:
    """The same on each rank and in the test."""
    torch.manual_seed(1)
    return torch.randn(2, 6, 8)


def make_model() -> Model:
    """The same on each rank and in the test."""
    torch.manual_seed(0)
    return Model()


def main() -> None:
    """One step."""
    run, directory = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model, mesh = make_model(), init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    head = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(
        model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel(), "head": head}
    )
    with observe(model, run=run, directory=directory, mesh=mesh) as scope:
        logits = model(batch()).view(-1, 6)
        nn.functional.cross_entropy(logits, torch.zeros(12, dtype=torch.long)).backward()
        scope.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
