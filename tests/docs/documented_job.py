"""A job of four ranks with the names that the pages have; in step 40 an activation is infinite."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankscope.agent.torch import BlockExponents, Schedule, observe

STEPS = ((0, 45), (496, 502))
"""Those that the pages ask for are among them."""
KINDS = (
    "activation",
    "activation_gradient",
    "weight",
    "weight_gradient",
    "local_weight_gradient",
    "optimizer_state",
    "update",
)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act = nn.Linear(16, 16), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = nn.Linear(16, 16), Part()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.attention(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.layers = nn.Sequential(Part())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.blocks(x))


def train(directory: str) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(dist.get_rank())
    with observe(
        model,
        optimizer,
        run="demo",
        directory=directory,
        mesh={"dp": 2, "tp": 2},
        schedules=dict.fromkeys(KINDS, Schedule(ranges=STEPS)),
        exact_counts={r"^activation:(blocks.*act|layers.0.up)$": BlockExponents()},
        quantities={"Linear": [["input_cov_max_eig", 20]]},
    ) as scope:
        loss = torch.zeros(())
        for step in range(STEPS[-1][1] + 1):
            if any(first <= step <= last for first, last in STEPS):
                x = torch.randn(8, 16) * (torch.inf if step == 40 else 1)
                loss = model(x).square().mean()
                loss.backward()
                if step != 40:
                    optimizer.step()
            scope.step(loss=loss)
            optimizer.zero_grad()
            if step % 10 == 9:
                time.sleep(0.05)  # a busy machine would drop steps otherwise, which pages ask for


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.destroy_process_group()
