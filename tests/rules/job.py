"""What a job of the bench is, the truth about a faulty one, and the loop in which they train."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from rankscope.agent.torch import Scope, observe

RANKS = 4
"""Of a job of several ranks."""
BEHIND = 8
"""Steps of which no frame is made yet when the next one begins: a quarter of the agent's tables."""
WAITING = 128
"""Frames that may wait for the collector then: half of the agent's window."""
PATIENCE_S = 10.0
"""How long a step waits for those before it; then it begins, whatever became of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Where a job's run goes; called as `observe`, without `run` and `directory`."""

    run: str
    directory: Path
    seed: int

    def __call__(self, model: nn.Module, optimizer: Optimizer, **options: Any) -> Scope:
        return observe(model, optimizer, run=self.run, directory=self.directory, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong in a job, and where a reader of its run can see it."""

    cause: str
    sites: tuple[str, ...]
    """Labels of the sites that show it themselves, and not as a consequence."""
    step: int
    """The first step that is computed with the fault."""
    seen: int
    """The first step whose record shows it at `sites`: a wrong update shows in the next weights."""
    ranks: tuple[int, ...] = (0,)
    """The ranks on which it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run of the bench."""

    train: Callable[[Watch], None]
    """Trains under observation. Torch's generator was seeded before, alike on all ranks."""
    ranks: int = 1
    fault: Fault | None = None
    """None: it is healthy."""

    @property
    def name(self) -> str:
        """That of the function, by which its run is called."""
        return self.train.__name__


Batches = Iterable[tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]
At = Callable[[int], object]
"""Called with the number of a step."""


def nothing(step: int) -> None:
    """Done where a job has no business of its own."""


def paced(scope: Scope, batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """The batch of each step, once agent and collector have kept up with the steps before.

    Steps of the bench take a millisecond. Where other processes take the cores they could outrun
    both, which lose steps then, as they must.
    """
    for steps, batch in enumerate(batches):
        deadline = time.monotonic() + PATIENCE_S
        while is_ahead(scope, steps) and time.monotonic() < deadline:
            time.sleep(0.001)
        yield batch


def is_ahead(scope: Scope, steps: int) -> bool:
    """Whether so many steps are more than the agent could make frames of, or rid itself of."""
    now = scope.statistics()
    made = now.acknowledged + now.pending_frames + now.dropped_frames
    return steps - made > BEHIND or now.pending_frames > WAITING


def train(
    watch: Watch,
    model: nn.Module,
    optimizer: Optimizer,
    batches: Batches,
    *,
    loss_of: Loss = F.cross_entropy,
    before_update: At = nothing,
    after_update: At = nothing,
) -> None:
    """The plain loop: forward, backward, update; over several ranks if there are."""
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    with watch(model, optimizer) as scope:
        for step, (x, y) in enumerate(paced(scope, batches)):
            loss = loss_of(model(x), y)
            loss.backward()
            before_update(step)
            optimizer.step()
            after_update(step)
            scope.step(loss=loss)
            optimizer.zero_grad()
