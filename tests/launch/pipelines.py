"""Pipelines that say nothing of rankscope: `pipelines.py NAME`, under torchrun.

The layers of each stage count from 0.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

if __name__ == "__main__":  # else all of torch is gone through again and again: 1.5 s of 4
    gc.disable()

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble

STEPS, WIDTH, SAMPLES = 3, 8, 8
CPU = torch.device("cpu")


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def train(
    schedule: Schedule1F1B | ScheduleZBVZeroBubble,
    optimizers: list[torch.optim.Optimizer],
    *,
    is_first: bool,
    is_last: bool,
) -> None:
    for _ in range(STEPS):
        target = torch.zeros(SAMPLES, WIDTH) if is_last else None
        schedule.step(*[torch.randn(SAMPLES, WIDTH)] * is_first, target=target)
        for one in optimizers:
            one.step()
            one.zero_grad()


def in_a_v() -> None:
    """Two stages a rank, the first and the last on rank 0, with an optimizer each."""
    rank = dist.get_rank()
    numbers = [rank, 3 - rank]
    parts = [layers() for _ in numbers]
    stages = [
        PipelineStage(part, number, 4, CPU) for part, number in zip(parts, numbers, strict=True)
    ]

    def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Calls a module of the last stage itself, as a loss of chunks calls the head."""
        return nn.functional.mse_loss(parts[1][1](output), target)

    schedule = ScheduleZBVZeroBubble(stages, 4, loss_fn=loss_of)  # pyright: ignore[reportArgumentType]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(part.parameters(), lr=0.1) for part in parts
    ]
    train(schedule, optimizers, is_first=rank == 0, is_last=rank == 0)


def of_shards() -> None:
    """Two stages of two ranks each, along which FSDP2 cuts the weights; axes by other names."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipe", "data"))
    part = layers()
    fully_shard(part, mesh=mesh["data"])
    one_a_rank(part, mesh.get_local_rank("pipe"), mesh["pipe"].get_group())


def of_copies() -> None:
    """Two stages of two ranks each, which are copies of each other; ranks are numbered by stage."""
    rank = dist.get_rank()
    copies = [dist.new_group([first, first + 1]) for first in (0, 2)]
    pipes: list[Any] = [dist.new_group([first, first + 2]) for first in (0, 1)]
    part = nn.parallel.DistributedDataParallel(layers(), process_group=copies[rank // 2])
    one_a_rank(part, rank // 2, pipes[rank % 2])


def one_a_rank(part: nn.Module, number: int, group: dist.ProcessGroup) -> None:
    stage = PipelineStage(part, number, 2, CPU, group=group)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    train(schedule, [optimizer], is_first=number == 0, is_last=number == 1)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    gc.freeze()
    gc.enable()
    globals()[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()
    gc.freeze()
