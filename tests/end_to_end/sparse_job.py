"""The job of test_sparse.py: a table whose gradients are sparse, under DistributedDataParallel.

Usage: torchrun --nproc-per-node N sparse_job.py RUN DIRECTORY [lost]

`lost`: in step `FAULTY` the share of rank 1 is lost on its way to the table's gradient.
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankscope.agent.torch import observe

STEPS, FAULTY = 4, 2


def make_model() -> nn.Sequential:
    """The same on each rank and in the test."""
    torch.manual_seed(0)
    table = nn.Embedding(40, 8, sparse=True)
    return nn.Sequential(table, nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))


def batch(step: int, rank: int) -> torch.Tensor:
    """Tokens, some more than once, of each rank others, and more of them."""
    torch.manual_seed(10 * step + rank)
    return torch.randint(0, 40, (6 + rank,))


def main() -> None:
    """A few steps."""
    run, directory, *fault = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model, rank, at = make_model(), dist.get_rank(), [0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = DistributedDataParallel(model)
    with observe(parallel, optimizer, run=run, directory=directory) as scope:

        def lose(gradient: torch.Tensor) -> Any:
            return gradient * 0 if fault and rank == 1 and at[0] == FAULTY else None

        model[0].weight.register_hook(lose)  # pyright: ignore[reportCallIssue, reportArgumentType]
        for step in range(STEPS):
            at[0] = step
            loss = parallel(batch(step, rank)).square().mean()
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
