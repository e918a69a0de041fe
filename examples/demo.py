"""`rankscope demo`: train a small GPT on several ranks, with a fault to find, and watch it live."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..sketch.errors import RankscopeError
from .fault import Fault
from .launch import Ranks
from .screen import CHALLENGE, Screen, answer
from .size import SIZES

if TYPE_CHECKING:
    from rankscope.viewer import Server

STORED_S = 30.0
"""How long the collector may take to finish the run after the last rank has left."""
INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What this demo does."""

    path: Path
    """Where the run will lie."""
    ranks: int
    steps: int
    size: str
    seed: int
    fault: Fault | None

    def arguments(self) -> list[str]:
        """Of `rankscope.examples.gpt`."""
        fault = "--fault" if self.fault else "--no-fault"
        return [
            *("--run", self.path.name, "--directory", str(self.path.parent)),
            *("--size", self.size, "--steps", str(self.steps), "--seed", str(self.seed), fault),
        ]


def prepare(plan: Plan, screen: Screen, port: int | None, stack: ExitStack) -> Server | None:
    """Compile the kernels and start the viewer, side by side."""
    screen.say(f"Run {plan.path.name}: {plan.ranks} ranks train a small GPT for {plan.steps} steps.")
    if plan.fault:
        screen.say(CHALLENGE)
    screen.doing("Preparing; the first time kernels are compiled, for about 15 s")
    with compiling():
        if port is None:
            return None
        # Imported late: Panel takes seconds, which `--help` should not.
        from rankscope.viewer import serve

        plan.path.parent.mkdir(parents=True, exist_ok=True)
        server = serve(plan.path.parent, port=port)
        stack.callback(server.stop)
        return server


@contextmanager
def compiling() -> Iterator[None]:
    """Compile the agent's kernels meanwhile, so that the ranks need not, each for itself."""
    command = [sys.executable, "-m", "rankscope.examples.kernels"]
    # In a session of its own: Ctrl-C would have it write a traceback.
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    try:
        yield
        _, said = process.communicate()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        why = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise RankscopeError(f"The CPU kernels could not be compiled: {why}")


def train(plan: Plan, screen: Screen, server: Server | None, open_browser: bool) -> None:
    """Run the job to its end, and wait until all of it is stored.

    Raises:
        RankscopeError: a rank failed.
    """
    screen.doing(f"Starting {plan.ranks} ranks")
    announced = server is None
    log = plan.path.with_name(f"{plan.path.name}.ranks.log")
    with Ranks(plan.ranks, plan.arguments(), log) as ranks:
        for progress in ranks.listen():
            if server is not None and not announced and exists(plan.path):
                announce(plan, screen, server, open_browser)
                announced = True
            if progress is not None:
                screen.show(progress)
        screen.doing("Storing")
        code = ranks.wait()
    wait_until_stored(plan.path)
    if code:
        raise RankscopeError(f"The training failed: {ranks.complaint()}; what was said is in {log}.")
