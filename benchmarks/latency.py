"""Seconds from `scope.step` until a reader of the store sees the step, and to leave the block."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch
from gpt import Job

from rankscope.agent.torch import observe
from rankscope.store import open_run

STEPS = 12


def main() -> None:
    """Print the median and the longest of some steps of the GPT of the other figures."""
    torch.set_num_threads(1)
    job = Job()
    taken: list[float] = []
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        observe(job.model, job.optimizer, run="latency", directory=directory) as scope,
    ):
        for _ in range(3):
            scope.step(loss=job.step())
        time.sleep(3)  # the run exists by now
        run = open_run(Path(directory) / "latency")
        for step in range(3, 3 + STEPS):
            loss = job.step()
            begin = time.perf_counter()
            scope.step(loss=loss)
            while run.records()["step"].tolist()[-1] < step:
                time.sleep(0.005)
                run.refresh()
            taken.append(time.perf_counter() - begin)
        scope.step(loss=job.step())
        begin = time.perf_counter()
    leaving = time.perf_counter() - begin  # with the folder's removal
    print("| steps | median s | longest s | leaving the block s |\n|---|---|---|---|")
    print(f"| {STEPS} | {statistics.median(taken):.2f} | {max(taken):.2f} | {leaving:.2f} |")


if __name__ == "__main__":
    main()
