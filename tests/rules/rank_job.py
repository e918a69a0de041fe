"""Jobs of the bench by name, and how they are trained: in this process, or as one of its ranks.

Usage: torchrun --nproc-per-node N -m tests.rules.rank_job FOLDER SEED NAME …
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from .faults import FAULTS
from .healthy import HEALTHY
from .job import Job, Watch

JOBS: dict[str, Job] = {job.name: job for job in (*FAULTS, *HEALTHY)}
"""By name, the faulty ones first."""


def train(names: Sequence[str], folder: Path, seed: int) -> None:
    """Train jobs, or this rank's part of them, in this process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name in names:
        torch.manual_seed(seed)
        JOBS[name].train(Watch(run=name, directory=folder, seed=seed))
    torch.set_num_threads(threads)


def main() -> None:
    """Be a rank."""
    folder, seed, *names = sys.argv[1:]
    dist.init_process_group("gloo")
    train(names, Path(folder), int(seed))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
