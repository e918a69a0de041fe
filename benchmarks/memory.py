"""Memory of a training process with and without the agent, each in a process of its own.

`beside` is the resident memory at the end less that of the bare process. What the agent's imports
alone take (numba and its compiler, ZeroMQ) is told apart. Resident memory wanders with the
allocator; whether something leaks is told by what is allocated: the least after any of 25 steps.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import subprocess
import sys
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from gpt import Job

from rankscope.agent.torch import observe


def resident() -> float:
    """Resident MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = MallocInfo


def allocated() -> float:
    """MiB that are allocated now, by C and (with PYTHONMALLOC=malloc) by Python."""
    info = mallinfo2()
    return (info.uordblks + info.hblkhd) / 2**20


class Watch:
    """Resident and allocated memory after a quarter of the steps, and at the end."""

    def __init__(self, steps: int) -> None:
        self._ends = (steps // 4, steps - 1)
        self._last: deque[float] = deque(maxlen=25)
        self.numbers: list[float] = []

    def look(self, step: int) -> None:
        """After a step."""
        self._last.append(allocated())
        if step in self._ends:
            self.numbers += [resident(), min(self._last)]


def work(mode: str, steps: int) -> None:
    """Train, and print MiB: resident and allocated, after a quarter of the steps and at the end."""
    torch.set_num_threads(1)
    job = Job()
    if mode == "imports":
        importlib.import_module("rankscope.agent.torch.cpu")
    watch = Watch(steps)
    with ExitStack() as stack:
        scope = None
        if mode == "observed":
            directory = stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))
            scope = stack.enter_context(
                observe(job.model, job.optimizer, run="memory", directory=directory)
            )
        for step in range(steps):
            loss = job.step()
            if scope is not None:
                scope.step(loss=loss)
            watch.look(step)
    print(json.dumps(watch.numbers))


def main() -> None:
    """Print one row a mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--mode")
    options = parser.parse_args()
    if options.mode:
        work(options.mode, options.steps)
        return
    print("| process | resident MiB after a quarter, end | beside the bare one | allocated MiB |")
    print("|---|---|---|---|")
    bare = 0.0
    for mode in ("bare", "imports", "observed"):
        command = [sys.executable, __file__, "--mode", mode, "--steps", str(options.steps)]
        environment = {**os.environ, "PYTHONMALLOC": "malloc"}
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout
        early, held_early, late, held_late = json.loads(said)
        bare = bare or late
        print(
            f"| {mode} | {early:.0f}, {late:.0f} | {late - bare:+.0f} | "
            f"{held_early:.2f}, {held_late:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
