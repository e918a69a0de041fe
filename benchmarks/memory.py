"""Memory of a training process with and without the agent, each in a process of its own.

`files` are resident pages of libraries, which the ranks of a host share and which the kernel may
drop; `anonymous` is the rest, which wanders with the allocator. What is really held, and whether
something leaks, is told by what is allocated: the least after any of 25 steps. What the agent's
libraries alone take (numba with its compiler, ZeroMQ) is told apart.
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


def resident(kind: str) -> float:
    """Resident MiB of this process: of `Anon` or `File` pages."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"Rss{kind}:")]
    return int(line.split()[1]) / 2**10


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
    """Resident and allocated MiB after a quarter of the steps, and at the end."""

    def __init__(self, steps: int) -> None:
        self._ends = (steps // 4, steps - 1)
        self._last: deque[float] = deque(maxlen=25)
        self.numbers: list[tuple[float, float, float]] = []

    def look(self, step: int) -> None:
        """After a step."""
        self._last.append(allocated())
        if step in self._ends:
            self.numbers.append((resident("File"), resident("Anon"), min(self._last)))


def work(mode: str, steps: int) -> None:
    """Train, and print what `Watch` saw."""
    torch.set_num_threads(1)
    job = Job()
    if mode == "libraries":
        importlib.import_module("rankscope.agent.torch.cpu")
        importlib.import_module("rankscope.agent.kernel").warm()
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
    print("| process | files MiB | anonymous MiB | allocated MiB | beside bare |")
    print("|---|---|---|---|---|")
    bare = 0.0
    for mode in ("bare", "libraries", "observed"):
        command = [sys.executable, __file__, "--mode", mode, "--steps", str(options.steps)]
        environment = {**os.environ, "PYTHONMALLOC": "malloc"}
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout
        early, late = json.loads(said)
        bare = bare or late[2]
        print(
            f"| {mode} | {early[0]:.0f}, {late[0]:.0f} | {early[1]:.0f}, {late[1]:.0f} | "
            f"{early[2]:.2f}, {late[2]:.2f} | {late[2] - bare:+.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
