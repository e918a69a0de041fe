"""The job of test_ddp.py: two data-parallel ranks, as a user would write them.

Usage: torchrun --nproc-per-node 2 ddp_job.py RUN DIRECTORY [die]
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankscope.agent.torch import observe

run, directory, *wish = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

with observe(model, optimizer, run=run, directory=directory) as scope:
    for step in range(6):
        x = torch.full((2 + rank, 4), float(10 * step + rank))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scope.step(loss=loss)
        optimizer.zero_grad()
        if wish and step == 3 and rank == 1:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        if wish and step == 3:
            break
dist.destroy_process_group()
