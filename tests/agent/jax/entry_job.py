"""A block that is interrupted while it is entered, and then entered again under the same name.

Usage: entry_job.py FOLDER MOMENT. MOMENT is a number of seconds after which Ctrl-C comes, or
`begin`: when the first step begins. It prints the names of threads that are left of the first.
"""

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp

from rankscope.agent.jax import Scope, observe


def interrupt() -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def begins(step: int) -> bool:
    """A schedule of the user's own, in which it happens."""
    interrupt()
    time.sleep(60)
    return step == 0


def observation(moment: str = "") -> Scope:
    schedules = {"tap": begins} if moment == "begin" else None
    return observe(run="entered", directory=FOLDER / "runs", schedules=schedules)


def left() -> list[str]:
    """The agent's threads; what loads kernels goes on to its end."""
    ours = [one for one in threading.enumerate() if one.name == "rankscope"]
    for one in ours:
        one.join(60)
    return [one.name for one in ours if one.is_alive()]


if __name__ == "__main__":
    FOLDER, MOMENT = Path(sys.argv[1]), sys.argv[2]
    if MOMENT != "begin":
        threading.Timer(float(MOMENT), interrupt).start()
    with suppress(KeyboardInterrupt), observation(MOMENT):
        time.sleep(60)
    LEFT = left()
    with observation() as scope:
        train_step = jax.jit(lambda w: scope.sketch(weights=w))
        for number in range(3):
            scope.step(train_step({"w": jnp.full(5, number, jnp.float32)}))
    print(json.dumps(LEFT))
