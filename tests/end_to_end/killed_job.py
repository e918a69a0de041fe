"""The job of test_killed.py: a rank that trains on when another one is killed.

Usage: killed_job.py RUN DIRECTORY RANK VICTIM [ADDRESS], once for each of three ranks.
"""

import json
import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankscope.agent.torch import Scope, observe

RANKS, STEPS, LAST = 3, 40, 4
"""How many there are at first, how long they train, and the last step of the one that is killed."""
STEP_S, HANG_S = 0.2, 3.0


class Fate(nn.Module):
    """Passes on what it gets; a rank that it strikes hangs in step `LAST`, and is killed."""

    def __init__(self, *, strikes: bool) -> None:
        super().__init__()
        self.step, self.strikes = 0, strikes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same."""
        if self.strikes and self.step == LAST:
            time.sleep(HANG_S)
            os.kill(os.getpid(), signal.SIGKILL)
        return x


def samples(step: int, rank: int) -> torch.Tensor:
    """What a rank trains on; no two have as many."""
    return torch.full((2 + rank, 4), float(step + 10 * rank))


def wrap(model: nn.Module, meeting: str, rank: int, ranks: int) -> DistributedDataParallel:
    """The model in a new process group, whose ranks meet in a file that outlives each of them."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}-of-{ranks}", rank=rank, world_size=ranks
    )
    return DistributedDataParallel(model)


def backward(model: DistributedDataParallel, scope: Scope, data: torch.Tensor) -> None:
    """Of two micro-batches; gradients are reduced once."""
    for number, part in enumerate(data.chunk(2)):
        with model.no_sync() if number == 0 else nullcontext():
            model(scope.tap("data", part)).square().mean().backward()


def main() -> None:
    """Train with all, then with those that are left; between them one step makes no update."""
    run, directory, rank, victim = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:5])
    meeting = f"{directory}/{run}-meeting"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    fate = Fate(strikes=rank == victim)
    whole = nn.Sequential(nn.Linear(4, 8), fate, nn.Linear(8, 1))
    model = wrap(whole, meeting, rank, RANKS)
    optimizer = torch.optim.SGD(whole.parameters(), lr=1e-4, momentum=0.9)
    to, seconds = next(iter(sys.argv[5:]), None), list[float]()
    with observe(model, optimizer, run=run, directory=directory, to=to) as scope:
        for fate.step in range(STEPS):
            begin = time.monotonic()
            try:
                backward(model, scope, samples(fate.step, rank))
                optimizer.step()
            except RuntimeError:  # a rank is gone
                model = wrap(whole, meeting, rank - (rank > victim), RANKS - 1)
            optimizer.zero_grad()
            scope.step()
            seconds.append(time.monotonic() - begin)
            time.sleep(STEP_S)
    told = {"seconds": seconds[LAST + 1 :], "dropped": scope.statistics().dropped_frames}
    (directory / f"{run}-{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
