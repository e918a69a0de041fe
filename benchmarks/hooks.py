"""What the agent takes of the training thread on an accelerator, without one: launches left out.

A GPT with the sites of the one of `gpu_step.py`, but small, on the CPU, read by the engine of
accelerators, whose kernels in CUDA C are told everything and launch nothing. What the driver takes
for a launch comes on top. Ways of observing take turns; of each the fastest step counts.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from gpt import LARGE, Job

from rankscope.agent.torch import Scope, observe, scope
from rankscope.agent.torch.cuda import CudaKernels
from rankscope.agent.torch.device import DeviceMeter
from rankscope.agent.torch.fused import Fused
from rankscope.store import open_run

SIZE = replace(LARGE, vocabulary=500, context=16, batch=2, width=64, heads=2)
BLOCKS_AT_ONCE = 396
"""Of most sketches, that an H100 or H200 works at together."""
WARM = 4
"""Steps before those that count."""
WAYS: dict[str, dict[str, Any]] = {
    "everything": {},
    "activations and their gradients": {"kinds": ["activation", "activation_gradient"]},
    "weights, gradients, optimizer state": {
        "kinds": ["weight", "weight_gradient", "optimizer_state"]
    },
    "a tenth of everything in turn": {"every": 10, "staggered": True},
    "sentinel alone": {"every": 10**6, "sentinel": True},
}


class Nothing:
    """Kernels that do not run."""

    magnitudes = 0

    def launch(self, name: str, blocks: int, arguments: ctypes.Structure, shared: int = 0) -> None:
        """Leave out a launch."""


def meter_maker(*_: object) -> Callable[[torch.device], DeviceMeter]:
    """As `meters.meter_maker` on a GPU."""

    def kernels(device: torch.device) -> CudaKernels:
        return CudaKernels(device, Nothing(), at_once=lambda _: BLOCKS_AT_ONCE)

    return lambda device: DeviceMeter(device, Fused(device, kernels))


def hook_seconds(job: Job, watched: Scope) -> float:
    """Seconds of one step that hooks took."""
    before = watched.health()["hook_seconds"]
    job.queue()
    watched.step()
    return watched.health()["hook_seconds"] - before


def measure(name: str, steps: int) -> tuple[float, int]:
    """Seconds of the fastest step of some, and the number of sites."""
    job, run = Job(size=SIZE), name.split(",")[0].replace(" ", "-")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        with observe(
            job.model, job.optimizer, run=run, directory=directory, **WAYS[name]
        ) as watched:
            taken = [hook_seconds(job, watched) for _ in range(WARM + steps)]
        return min(taken[WARM:]), len(open_run(Path(directory) / run).sites())


def main() -> None:
    """Print one row a way of observing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    scope.meter_maker = meter_maker  # pyright: ignore[reportAttributeAccessIssue]
    best: dict[str, float] = {}
    sites: dict[str, int] = {}
    for _ in range(options.rounds):
        for name in WAYS:
            seconds, sites[name] = measure(name, options.steps)
            best[name] = min(seconds, best.get(name, seconds))
    print("| observed | sites | hooks ms | us a site |\n|---|---|---|---|")
    for name, seconds in best.items():
        each = seconds / sites[name]
        print(f"| {name} | {sites[name]} | {seconds * 1e3:.1f} | {each * 1e6:.1f} |")


if __name__ == "__main__":
    main()
