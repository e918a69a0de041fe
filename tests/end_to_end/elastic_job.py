"""A user's script whose rank 1 ends at once in step 5 of its first start.

Usage: elastic_job.py DIRECTORY RANK START, once for each of two ranks; START is 0, then 1.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankscope.agent.torch import Scope, observe

RANKS, FATAL, STEPS = 2, 5, 8


def end(scope: Scope, rank: int) -> None:
    """Rank 1 ends once what both have sent is stored; the other one hangs, and is killed."""
    while scope.statistics().acknowledged < FATAL:
        time.sleep(0.05)
    dist.barrier()
    if rank == 1:
        os._exit(3)
    time.sleep(600)


def main() -> None:
    """Train, from step 3 on when it is started again."""
    directory, rank, again = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    meeting = f"file://{directory}/meeting-{again}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    start = 3 if again else 0
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with observe(model, optimizer, run="elastic", directory=directory, start=start) as scope:
        for step in range(start, STEPS):
            if step == FATAL and not again:
                end(scope, rank)
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            scope.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
