"""Memory of a training process with and without the agent, each in a process of its own.

`beside` is the resident memory at the end less that of the bare process. What the agent's imports
alone take (numba and its compiler, ZeroMQ) is told apart.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from gpt import Job

from rankscope.agent.torch import observe


def resident() -> float:
    """Resident MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def work(mode: str, steps: int) -> None:
    """Train, and print resident MiB after a quarter of the steps and at the end."""
    torch.set_num_threads(1)
    job = Job()
    if mode == "imports":
        importlib.import_module("rankscope.agent.torch.cpu")
    early = 0.0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        if mode == "observed":
            with observe(job.model, job.optimizer, run="memory", directory=directory) as scope:
                for step in range(steps):
                    scope.step(loss=job.step())
                    early = resident() if step == steps // 4 else early
                print(json.dumps([early, resident()]))
        else:
            for step in range(steps):
                job.step()
                early = resident() if step == steps // 4 else early
            print(json.dumps([early, resident()]))


def main() -> None:
    """Print one row a mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--mode")
    options = parser.parse_args()
    if options.mode:
        work(options.mode, options.steps)
        return
    print("| process | MiB after a quarter | MiB at the end | beside the bare one |")
    print("|---|---|---|---|")
    bare = 0.0
    for mode in ("bare", "imports", "observed"):
        command = [sys.executable, __file__, "--mode", mode, "--steps", str(options.steps)]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        early, late = json.loads(said)
        bare = bare or late
        print(f"| {mode} | {early:.0f} | {late:.0f} | {late - bare:+.0f} |", flush=True)


if __name__ == "__main__":
    main()
