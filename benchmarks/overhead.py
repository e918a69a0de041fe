"""What observing costs a training step on the CPU: bare and observed steps in turn, in one process.

Both jobs start from the same seed and must give the same losses, in eager mode to the last bit.
Every kind is observed, updates on request. The embedded collector runs on the same cores, as it
does for a user.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from gpt import Job

from rankscope.agent.torch import observe


def timed(job: Job) -> tuple[float, float]:
    """Seconds and loss of one step."""
    begin = time.perf_counter()
    loss = job.step()
    return time.perf_counter() - begin, loss


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(
    threads: int,
    every: int,
    steps: int,
    warm: int,
    *,
    compiled: bool,
    staggered: bool,
    sentinel: bool,
    budget: float | None,
    sample: float | None,
    updates: int | None,
) -> None:
    """Print one row."""
    torch.set_num_threads(threads)
    bare, watched = Job(), Job()
    if compiled:
        bare.model.compile(fullgraph=True)
    plain: list[float] = []
    observed: list[float] = []
    memory: list[int] = []
    for _ in range(warm):
        timed(bare)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        observe(
            watched.model,
            watched.optimizer,
            run="overhead",
            directory=directory,
            every=every,
            staggered=staggered,
            sentinel=sentinel,
            budget=budget,
            sample=sample,
            schedules={"update": updates} if updates else None,
        ) as scope,
    ):
        if compiled:
            watched.model.compile(fullgraph=True)
        for _ in range(warm):
            watched.step()
            scope.step()
        before = scope.health()["hook_seconds"]
        for _ in range(steps):
            seconds, loss = timed(bare)
            plain.append(seconds)
            begin = time.perf_counter()
            same = watched.step()
            scope.step(loss=same)
            observed.append(time.perf_counter() - begin)
            alike = math.isclose(loss, same, rel_tol=1e-6) if compiled else loss == same
            assert alike, f"the losses differ: {loss!r} {same!r}"
            memory.append(resident_bytes())
        sent = scope.statistics()
        health = scope.health()
    hooks_ms = (health["hook_seconds"] - before) / steps * 1e3
    ratio = statistics.median(a / b for a, b in zip(observed, plain, strict=True))
    mean = statistics.fmean(observed) / statistics.fmean(plain)
    tail = sorted(observed)[int(len(observed) * 0.99)] / sorted(plain)[int(len(plain) * 0.99)]
    half = len(memory) // 2
    grown = (statistics.median(memory[-10:]) - statistics.median(memory[half : half + 10])) / 2**20
    schedule = [str(every), "staggered" * staggered, "sentinel" * sentinel]
    schedule += [f"a sample of {sample:g}" if sample else ""]
    schedule += [f"updates every {updates}" if updates else ""]
    schedule += [f"{health['stretch']:.0f} x as rarely" if budget else ""]
    print(
        f"| {threads} of {os.cpu_count()} | {'compiled' if compiled else 'eager'} | "
        f"{', '.join(filter(None, schedule))} | "
        f"{statistics.median(plain) * 1e3:.0f} | {statistics.median(observed) * 1e3:.0f} | "
        f"{ratio:.3f} | {mean:.3f} | {tail:.3f} | {hooks_ms:.2f} | {grown:+.1f} | "
        f"{sent.dropped_frames} | {int(health['tensors_stale'])} |",
        flush=True,
    )


def main() -> None:
    """Each row in a process of its own, so that thread pools do not meet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--row", nargs=2, type=int, metavar=("THREADS", "EVERY"))
    parser.add_argument("--compiled", action="store_true", help="of that row: torch.compile both")
    parser.add_argument("--staggered", action="store_true", help="of that row: sites take turns")
    parser.add_argument("--sentinel", action="store_true", help="of that row: at every step")
    parser.add_argument("--budget", type=float, help="of that row: share of step time to hold")
    parser.add_argument("--sample", type=float, help="of that row: share of large tensors")
    parser.add_argument("--updates", type=int, help="of that row: distance of steps with updates")
    parser.add_argument("--warm", type=int, default=5, help="of that row: steps before the first")
    options = parser.parse_args()
    if options.row:
        measure(
            *options.row,
            steps=options.steps,
            warm=options.warm,
            compiled=options.compiled,
            staggered=options.staggered,
            sentinel=options.sentinel,
            budget=options.budget,
            sample=options.sample,
            updates=options.updates,
        )
        return
    print(
        "| torch threads | mode | every | bare ms | observed ms | median of pairs | "
        "ratio of means | ratio of p99 | hooks ms | MiB grown | dropped | stale |\n"
        + 12 * "|---"
        + "|"
    )
    rows = ("1 1", "2 1", "1 10", "2 10", "1 1 --compiled", "2 1 --compiled")
    for row in rows:
        command = [sys.executable, __file__, "--steps", str(options.steps)]
        subprocess.run([*command, "--row", *row.split()], check=True)


if __name__ == "__main__":
    main()
