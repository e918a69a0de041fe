"""The job of test_loops.py: loops that are right, though their gradients take another way.

Usage: torchrun --nproc-per-node 2 loops_job.py PREFIX DIRECTORY. Each loop is a run of its own,
called by its name.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankscope.agent.torch import Scope, observe

STEPS = 4
Loop = Callable[[nn.Module, torch.optim.Optimizer, Scope, int], None]


class Model(nn.Module):
    """Convolutions, whose gradients come in the order of their inputs in memory; and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 2)
        self.scale = nn.Parameter(torch.ones(5))
        self.head = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of [samples, 3, 8, 8]."""
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.head(x.mean((2, 3)) * self.scale) + self.scale.sum()


def backward(model: nn.Module, step: int, number: int = 0) -> None:
    """Of a batch of this rank's own."""
    torch.manual_seed(100 * step + 10 * number + dist.get_rank())
    data = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    model(data).square().mean().backward()


def channels_last(model: nn.Module, optimizer: torch.optim.Optimizer, _: Scope, step: int) -> None:
    """The plain loop."""
    backward(model, step)
    optimizer.step()


def clipped_by_group(
    model: nn.Module, optimizer: torch.optim.Optimizer, _: Scope, step: int
) -> None:
    """Each parameter by its own norm."""
    backward(model, step)
    for parameter in model.parameters():
        nn.utils.clip_grad_norm_([parameter], 1e-3)
    optimizer.step()


def thrown_away(model: nn.Module, optimizer: torch.optim.Optimizer, _: Scope, step: int) -> None:
    """A batch that is not used after all."""
    backward(model, step)
    optimizer.zero_grad()
    backward(model, step, 1)
    optimizer.step()


def many_updates(model: nn.Module, optimizer: torch.optim.Optimizer, _: Scope, step: int) -> None:
    """Of which the run shows the first."""
    for number in range(3):
        backward(model, step, number)
        optimizer.step()
        optimizer.zero_grad()


def over_steps(model: nn.Module, optimizer: torch.optim.Optimizer, scope: Scope, step: int) -> None:
    """A micro-batch a step, and an update every other step."""
    assert isinstance(model, DistributedDataParallel)
    with model.no_sync():
        backward(model, step)
    scope.step()
    backward(model, step, 1)
    optimizer.step()


LOOPS: dict[str, Loop] = {
    loop.__name__: loop
    for loop in (channels_last, clipped_by_group, thrown_away, many_updates, over_steps)
}


def main() -> None:
    """One loop after the other."""
    directory = Path(sys.argv[2])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for name, loop in LOOPS.items():
        torch.manual_seed(0)
        model = DistributedDataParallel(Model())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with observe(model, optimizer, run=name, directory=directory) as scope:
            for step in range(STEPS):
                loop(model, optimizer, scope, step)
                scope.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
