"""A user's script that trains a little, and may be killed in the middle: RUN FOLDER STEPS LAST."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from rankscope.agent.torch import observe


def main() -> None:
    """Train; after step LAST the process is killed as soon as that is stored."""
    run, folder, steps, last = sys.argv[1:]
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe(model, optimizer, run=run, directory=Path(folder)) as scope:
        for step in range(int(steps)):
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
            optimizer.zero_grad()
            while step == int(last):
                if scope.statistics().acknowledged > step:
                    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
