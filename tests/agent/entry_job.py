"""A block that is interrupted while it is entered, and then entered again under the same name.

Usage: python -m tests.agent.entry_job FOLDER MOMENT. MOMENT is a number of seconds after which
Ctrl-C comes; `import`: while numba is imported; `begin`: when the first step begins; `exit`: the
script exits then. It prints what was left of the first block, as JSON.
"""

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankscope.agent.torch import observe

from .served import is_served


def interrupt() -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_import() -> None:
    """Ctrl-C as soon as a part of numba is there, and the rest is not."""
    while "numba.core" not in sys.modules:
        time.sleep(0.001)
    interrupt()


def begins(step: int) -> bool:
    """A schedule of the user's own, in which it happens."""
    if MOMENT == "exit":
        sys.exit(3)
    interrupt()
    time.sleep(60)
    return step == 0


def hooks() -> int:
    """How many are on the model and on the optimizer."""
    modules: list[Any] = list(MODEL.modules())  # hooks are not public
    on = [one for each in modules for one in (each._forward_hooks, each._forward_pre_hooks)]
    updates: Any = OPTIMIZER
    on += [updates._optimizer_step_pre_hooks, updates._optimizer_step_post_hooks]
    return sum(map(len, on))


def left() -> dict[str, float]:
    """What is there after the first block."""
    begun = time.monotonic()
    while is_served(FOLDER / "runs", "entered") and time.monotonic() < begun + 90:
        time.sleep(0.05)
    gone_s = time.monotonic() - begun
    threads = [one for one in threading.enumerate() if one.name == "rankscope"]
    for one in threads:  # what loads kernels goes on to its end
        one.join(60)
    alive = sum(one.is_alive() for one in threads)
    return {"hooks": hooks(), "threads": alive, "gone_s": gone_s}


if __name__ == "__main__":
    FOLDER, MOMENT = Path(sys.argv[1]), sys.argv[2]
    MODEL = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)
    SCHEDULES = {"tap": begins} if MOMENT in ("begin", "exit") else None
    if MOMENT == "import":
        threading.Thread(target=interrupt_import, daemon=True).start()
    elif SCHEDULES is None:
        threading.Timer(float(MOMENT), interrupt).start()
    with (
        suppress(KeyboardInterrupt, SystemExit),
        observe(MODEL, OPTIMIZER, run="entered", directory=FOLDER / "runs", schedules=SCHEDULES),
    ):
        time.sleep(60)
    LEFT = left()
    with observe(MODEL, OPTIMIZER, run="entered", directory=FOLDER / "runs") as scope:
        for _ in range(3):
            MODEL(torch.ones(2, 4)).sum().backward()
            OPTIMIZER.step()
            scope.step()
            OPTIMIZER.zero_grad()
    print(json.dumps(LEFT))
