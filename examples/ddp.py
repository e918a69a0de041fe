"""The smallest data-parallel job that is watched: `torchrun --nproc-per-node 2 examples/ddp.py`."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankscope.agent.torch import observe

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())  # each rank draws samples of its own; weights are rank 0's

model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters())

with observe(model, optimizer, run="ddp") as scope:
    for _ in range(100):
        x = torch.randn(16, 32)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        scope.step(loss=loss)
        optimizer.zero_grad()

sent = scope.statistics()
if dist.get_rank() == 0 and not (sent.dropped_frames or sent.pending_frames):
    if scope.destination:
        print(f"Sent to {scope.destination}: look for the run ddp where that stores its runs.")
    else:
        print(f"Stored in {scope.path}; look at it: rankscope view {scope.path}")
dist.destroy_process_group()
