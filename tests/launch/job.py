"""Training scripts that say nothing of rankscope: `job.py NAME`; they run as `__main__`."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys

if sys.argv[1] == "after_a_look":
    assert importlib.util.find_spec("torch") is not None

import torch
import torch.distributed as dist
from torch import nn


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def train(model: nn.Module, *, steps: int = 3) -> None:
    """Two micro-batches a step, and an evaluation before."""
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        model(torch.randn(2, 4))
    for _ in range(steps):
        for _ in range(2):
            model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def plain() -> None:
    train(small())


def compiled() -> None:
    train(torch.compile(small(), backend="aot_eager", fullgraph=True))  # pyright: ignore[reportArgumentType]


def after_a_look() -> None:
    """A library has looked whether torch is there, before it was imported: see the top."""
    train(small())


def at_two_rates() -> None:
    """One of two optimizers updates in every iteration, the other in every second."""
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    model = nn.Sequential(first, second)
    nn.init.ones_(second.weight)
    often = torch.optim.SGD(first.parameters(), 0.0)
    seldom = torch.optim.SGD(second.parameters(), 0.0)
    for iteration in range(1, 5):
        model(torch.full((1, 1), float(iteration))).sum().backward()
        often.step()
        if iteration % 2 == 0:
            seldom.step()
        model.zero_grad()


def taken() -> None:
    """Another collector takes the run before a step is told; it waits for no answer."""
    print("ready", flush=True)
    sys.stdin.read()
    train(small())
    os._exit(0)


def fails() -> None:
    train(small())
    raise SystemExit(7)


def raises() -> None:
    train(small())
    raise ValueError("out of data")


def killed() -> None:
    train(small())
    os.kill(os.getpid(), signal.SIGKILL)


def in_parts() -> None:
    """The loop calls parts of the model, never the model itself; one optimizer for each part."""
    model = small()
    optimizers = [torch.optim.SGD(part.parameters()) for part in (model[0], model[2])]
    for _ in range(3):
        x = torch.randn(5, 4)
        for part in model:
            x = part(x)
        x.sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def two_models() -> None:
    """The second is trained with a scale at which every other update overflows."""
    first, second = nn.Linear(3, 4), small()
    one, other = torch.optim.SGD(first.parameters(), 0.1), torch.optim.SGD(second.parameters(), 0.1)
    for _ in range(3):
        first(torch.randn(5, 3)).sum().backward()
        one.step()
        second(first(torch.randn(5, 3)).detach()).sum().backward()
        other.step()


def scaled() -> None:
    """The first update is left out: the gradients overflow."""
    model = nn.Linear(3, 4)
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu", 2.0**127)
    for _ in range(3):
        scaler.scale(model(torch.ones(5, 3)).sum() * 8).backward()
        scaler.step(optimizer)
        scaler.update(1.0)
        optimizer.zero_grad()


def ranks() -> None:
    """The first start ends after step 0, before the ranks have met."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        train(small(), steps=1)
        raise SystemExit(3)
    dist.init_process_group("gloo")
    train(nn.parallel.DistributedDataParallel(small()))
    dist.barrier()
    dist.destroy_process_group()


def in_halves() -> None:
    """The second is trained when the input has ended."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(4):
        if step == 2:
            print("half", flush=True)
            sys.stdin.read()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()


def observed() -> None:
    """The script observes one of its models itself."""
    from rankscope.agent.torch import observe

    model = small()
    with observe(model, run="its-own") as scope:
        train(model)
        scope.step()
    train(nn.Linear(4, 1))


def nothing() -> None:
    small()(torch.randn(2, 4))


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
