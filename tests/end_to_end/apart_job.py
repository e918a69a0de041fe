"""The job of test_apart.py: tensor parallelism of which rank 2 begins, or goes, wrong by itself.

Usage: torchrun --nproc-per-node 4 apart_job.py RUN DIRECTORY FAULT [fsdp]

The fault is `large` (its part of a weight), `norm` (its copy of one), and from step `FAULTY` on
`nan` (a row of its part) or `copy` (an element of its copy). With `fsdp` the mesh is 2 x 2, and
FSDP2 is along the first axis.
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from rankscope.agent.torch import observe

STEPS, FAULTY, BAD, WIDTH, TOKENS = 12, 3, 2, 32, 64


class Block(nn.Module):
    """A residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(WIDTH), nn.GELU()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Added to its input."""
        return x + self.down(self.act(self.up(self.norm(x))))


def parallelised(is_sharded: bool) -> nn.Sequential:
    """An embedding, two blocks and a head, over all ranks."""
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, TOKENS, bias=False)
    model = nn.Sequential(nn.Embedding(TOKENS, WIDTH), Block(), Block(), head)
    shape = (2, 2) if is_sharded else (1, 4)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    plan: dict[str, Any] = {"0": RowwiseParallel(input_layouts=Replicate())}
    plan["3"] = ColwiseParallel(output_layouts=Replicate())
    for block in ("1", "2"):
        plan |= {f"{block}.up": ColwiseParallel(), f"{block}.down": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    for part in (model[1], model[2], model) if is_sharded else ():
        fully_shard(part, mesh=mesh["dp"])
    return model


def own(weight: Any) -> torch.Tensor:
    """What of a weight is on this rank."""
    return getattr(weight, "_local_tensor", weight.data)


def spoil(block: Any, fault: str, step: int) -> None:
    """On rank `BAD` alone."""
    if fault == "large" and step == 0:
        own(block.up.weight).mul_(100)
    if fault == "norm" and step == 0:
        own(block.norm.weight).mul_(1.5)
    if fault == "nan" and step == FAULTY:
        own(block.down.weight)[3] = float("nan")
    if fault == "copy" and step == FAULTY:
        own(block.norm.weight)[3] = float("nan")


def main() -> None:
    """Ranks that are copies along an axis see the same samples."""
    run, directory, fault, *more = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = parallelised("fsdp" in more)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(1 + (dist.get_rank() // 2 if more else 0))
    with observe(model, optimizer, run=run, directory=directory) as scope:
        for step in range(STEPS):
            if dist.get_rank() == BAD:
                with torch.no_grad():
                    spoil(model[2], fault, step)
            tokens = torch.randint(TOKENS, (4, 16))
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
