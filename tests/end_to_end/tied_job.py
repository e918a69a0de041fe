"""A user's script under FSDP2, whose head has the weight of its embedding: RUN FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from rankscope.agent.torch import observe

ROWS, WIDTH = 10, 6
STEPS = 3


class Tied(nn.Module):
    """One unit, with an element on one rank alone."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(ROWS, WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
        self.last = nn.Linear(WIDTH, 1)
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """A number for each token."""
        x = self.mix(self.tokens(tokens))
        return self.head(x).logsumexp(-1) + self.last(x).squeeze(-1)


def main() -> None:
    """Train."""
    run, folder = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Tied()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    with observe(model, optimizer, run=run, directory=Path(folder)) as scope:
        for _ in range(STEPS):
            loss = model(torch.arange(ROWS)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
