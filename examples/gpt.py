"""Train a small GPT: `torchrun --nproc-per-node 4 -m rankscope.examples.gpt`.

An ordinary script for data-parallel training. What rankscope adds are the lines with `scope`.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from itertools import count
from types import FrameType

import click
import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer

from rankscope.agent.torch import BlockExponents, observe

from .fault import Fault
from .job import SIZES, Progress, Size, finite
from .model import GPT
from .text import draw_batch, read_text

LOSS_SCALE = 1024.0
"""Lifts the gradients of the float16 activations out of float16's subnormal numbers."""
RATE = 2e-3
WARMUP_STEPS = 10


@click.command()
@click.option("--name", default="gpt", show_default=True, help="Name of the run.")
@click.option(
    "--directory", default="rankscope-runs", show_default=True, help="Folder of the runs."
)
@click.option("--size", type=click.Choice(list(SIZES)), default="small", show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=80, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--fault/--no-fault", default=False, show_default=True, help="Break a rank's kernel.")
def main(name: str, directory: str, size: str, steps: int, seed: int, fault: bool) -> None:
    """Train a small GPT on the source of Python's standard library."""
    dist.init_process_group("gloo")
    stop = StopSignal()
    torch.manual_seed(seed)
    model = GPT(SIZES[size])
    if fault:
        plant_fault(
            model, Fault.plan(seed, size=SIZES[size], ranks=dist.get_world_size(), steps=steps)
        )
    ddp = DistributedDataParallel(model)
    optimizer = AdamW(ddp.parameters(), weight_decay=0.1)
    batches = draw_batches(SIZES[size], seed)
    counted = {r"activation:.*mlp\.act": BlockExponents()}  # would they fit mxfp8?
    with observe(ddp, optimizer, run=name, directory=directory, exact_counts=counted) as scope:
        for step in range(steps):
            set_rate(optimizer, step, steps)
            loss = ddp(*next(batches))
            norm = update(ddp, optimizer, loss)
            scope.step(loss=loss, gradient_norm=norm, loss_scale=LOSS_SCALE)
            if report(step, steps, loss, norm, stop):
                break
    dist.destroy_process_group()


def draw_batches(size: Size, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of this rank, without end."""
    text = read_text()
    generator = torch.Generator().manual_seed(seed * dist.get_world_size() + dist.get_rank())
    while True:
        yield draw_batch(text, size.samples, size.context, generator)


def set_rate(optimizer: Optimizer, step: int, steps: int) -> None:
    """A linear warm-up, then a cosine down to a tenth."""
    cosine = 0.55 + 0.45 * math.cos(math.pi * step / steps)
    for group in optimizer.param_groups:
        group["lr"] = RATE * min((step + 1) / WARMUP_STEPS, cosine)


def update(model: DistributedDataParallel, optimizer: Optimizer, loss: Tensor) -> Tensor:
    """Backward and, unless a gradient is not finite, an update; the norm of the gradients."""
    optimizer.zero_grad()
    (loss * LOSS_SCALE).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= LOSS_SCALE
    norm = clip_grad_norm_(model.parameters(), max_norm=1.0)
    if norm.isfinite():
        optimizer.step()
    return norm


def report(step: int, steps: int, loss: Tensor, norm: Tensor, stop: StopSignal) -> bool:
    """Say how it goes, and agree with the other ranks on whether to stop here."""
    both = torch.stack([loss.detach(), torch.tensor(float(stop.received))])
    dist.all_reduce(both)
    mean, stopped = (both / dist.get_world_size()).tolist()
    if dist.get_rank() == 0:
        progress = Progress(
            step=step, steps=steps, loss=finite(mean), updated=bool(norm.isfinite())
        )
        print(msgspec.json.encode(progress).decode(), flush=True)
    return stopped > 0


def plant_fault(model: GPT, fault: Fault) -> None:
    """Break the kernel, if this rank is the one."""
    if dist.get_rank() == fault.rank:
        steps = count()

        def broken(_: torch.nn.Module, inputs: tuple[Tensor]) -> Tensor:
            return fault.spoil(inputs[0], next(steps))

        model.get_submodule(fault.module).register_forward_pre_hook(broken)


class StopSignal:
    """Turns SIGTERM, with which torchrun ends its ranks, into a wish to stop after this step."""

    def __init__(self) -> None:
        self.received = False
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = True


if __name__ == "__main__":
    main()
