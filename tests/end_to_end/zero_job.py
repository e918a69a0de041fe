"""A user's script whose ranks share the optimizer's state. Usage: zero_job.py RUN DIRECTORY"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankscope.agent.torch import observe

STEPS = 3


def make_model() -> nn.Sequential:
    """Of four parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    """All ranks have the same samples."""
    torch.manual_seed(10 + step)
    return model(torch.randn(6, 4)).square().mean()


def main() -> None:
    """Train a little."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # torch warns of itself there

    run, directory = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    with observe(model, optimizer, run=run, directory=directory) as scope:
        for step in range(STEPS):
            loss_of(model, step).backward()
            optimizer.step()
            scope.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
