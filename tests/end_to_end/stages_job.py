"""The job of test_stages.py: two ranks that hold two stages of a pipeline each.

Usage: torchrun --nproc-per-node 2 stages_job.py LAST DIRECTORY. Each schedule is a run of its own,
called by its name; LAST is the last of them.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.utils.checkpoint import checkpoint

from rankscope.agent.torch import observe

RANKS, STAGES, WIDTH, STEPS, MICRO_BATCHES = 2, 4, 12, 2, 4
SPELLINGS: dict[str, Callable[[list[PipelineStage]], Any]] = {
    "Interleaved1F1B": lambda stages: [stage.submod for stage in stages],
    "LoopedBFS": lambda stages: stages,
    "InterleavedZeroBubble": lambda stages: nn.ModuleList([stage.submod for stage in stages]),
    "ZBVZeroBubble": lambda stages: [stage.submod for stage in stages],
}
"""By schedule: what is observed, as a user might say it."""


class Trunk(nn.Module):
    """The layers of some stages, each in a block of its own."""

    def __init__(self, kept: range) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(STAGES)]
        self.blocks = nn.ModuleDict({str(number): blocks[number] for number in kept})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block after the other; the backward computes them again."""
        for block in self.blocks.values():
            x = checkpoint(block, x, use_reentrant=False)
        return x


class Model(nn.Module):
    """A trunk, and a head where the last stage is; names are those of the whole."""

    def __init__(self, kept: range = range(STAGES)) -> None:
        super().__init__()
        self.trunk = Trunk(kept)
        head = nn.Linear(WIDTH, 3)
        self.head = head if STAGES - 1 in kept else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of [samples, WIDTH]."""
        x = self.trunk(x)
        return x if self.head is None else self.head(x)


def make_model(kept: range = range(STAGES)) -> nn.Module:
    """Some stages of the whole; the same numbers everywhere."""
    torch.manual_seed(0)
    return Model(kept).double()


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    """As in the test."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What goes in and what shall come out."""
    torch.manual_seed(100 + step)
    return torch.randn(8, WIDTH).double(), torch.randn(8, 3).double()


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Averaged over a micro-batch."""
    return (output - target).square().mean()


def stages_of(schedule: str, rank: int) -> list[int]:
    """The numbers of the stages that a rank holds."""
    return [rank, STAGES - 1 - rank if schedule == "ZBVZeroBubble" else RANKS + rank]


def run_training(run: str, directory: str) -> None:
    """A few steps with one schedule."""
    numbers = stages_of(run, dist.get_rank())
    parts = [make_model(range(number, number + 1)) for number in numbers]
    stages = [
        PipelineStage(part, number, STAGES, torch.device("cpu"))
        for part, number in zip(parts, numbers, strict=True)
    ]
    make_schedule: Any = get_schedule_class(run)
    schedule = make_schedule(stages, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = make_optimizer([weight for part in parts for weight in part.parameters()])
    observed = SPELLINGS[run](stages)
    mesh = {"pp": RANKS} if run == "LoopedBFS" else None
    with observe(observed, optimizer, run=run, directory=directory, mesh=mesh) as scope:
        for step in range(STEPS):
            data, target = batch(step)
            takes, gives = 0 in numbers, STAGES - 1 in numbers
            schedule.step(*[data] * takes, target=target if gives else None)
            optimizer.step()
            scope.step()
            optimizer.zero_grad()


def main() -> None:
    """One schedule after the other."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for run in SPELLINGS:
        run_training(run, sys.argv[2])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
