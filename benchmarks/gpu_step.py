"""What observing costs a training step on a GPU: a GPT of a billion parameters in bfloat16.

Bare and observed steps take turns in one process, from the same seed; their losses must be alike,
for the gradients of embeddings and of attention are not the same twice. `paper` is the time in
which the device reads all that was observed at its bandwidth, that of a read pass in the same run;
beside it stands what observing added, against it. Then one step is profiled: calls that wait for
the device are counted, and launches.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parent))
from devices import best
from gpt import LARGE, SMALL, Job, Size

from rankscope.agent.torch import Scope, observe
from rankscope.store import open_run

WAITS = ("Synchronize", "cudaMemcpy", "cuMemcpy", "cudaMalloc", "cudaFree", "cudaHostAlloc")
"""Names, or beginnings of names, of calls that wait for the device; copies that do not end in
`Async` among them."""
WAYS: dict[str, dict[str, Any]] = {
    "everything, every step": {},
    "every 10th step": {"every": 10},
    "sentinel alone": {"every": 10**6, "sentinel": True},
}


def read_bandwidth() -> float:
    """Bytes a second that one read pass of 4 GB takes in."""
    words = torch.ones(1 << 29, dtype=torch.int64, device="cuda")
    return words.nbytes / best(words.sum, 5)


def timed(step: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    """Seconds and loss of one step, when the device has run it."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    loss = step()
    torch.cuda.synchronize()
    return time.perf_counter() - begin, loss


def observed_step(job: Job, scope: Scope) -> Callable[[], torch.Tensor]:
    """A step as a user has it."""

    def step() -> torch.Tensor:
        loss = job.queue()
        scope.step(loss=loss)
        return loss

    return step


def calls_of(step: Callable[[], torch.Tensor]) -> Counter[str]:
    """The calls to the driver and the runtime of one step."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        step()
    names = (event.name for event in profiled.events() or ())
    return Counter(name for name in names if name.startswith("cu"))


def waits(calls: Counter[str]) -> dict[str, int]:
    """Those of them that wait; the profiler ends with one of its own."""
    return {
        name: number
        for name, number in calls.items()
        if any(word in name for word in WAITS) and "Async" not in name
    }


def observed_bytes(path: Path) -> int:
    """Of the tensors that the last record with everything holds."""
    run = open_run(path)
    dtypes: dict[str, str] = run.sites()["dtype"].to_dict()
    last = run.records()["step"].tolist()[-2]  # the final one holds weights alone
    labels, table = run.table(last)
    counts = table.counts[:, 0]
    sizes = [getattr(torch, dtypes[label]).itemsize for label in labels]
    return int(sum(count * size for count, size in zip(counts, sizes, strict=True)))


def measure(name: str, options: dict[str, Any], size: Size, steps: int, bandwidth: float) -> None:
    """Print one row, and what the profile of a step holds."""
    bare, watched = (Job(size=size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    plain, taken = list[float](), list[float]()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        run = name.split(",")[0].replace(" ", "-")
        with observe(
            watched.model, watched.optimizer, run=run, directory=directory, **options
        ) as scope:
            step = observed_step(watched, scope)
            for _ in range(3):
                timed(bare.queue)
                timed(step)
            before = scope.health()["hook_seconds"]
            for _ in range(steps):
                seconds, loss = timed(bare.queue)
                plain.append(seconds)
                seconds, same = timed(step)
                taken.append(seconds)
                alike = torch.isclose(loss, same, rtol=0.02)
                assert alike, f"the losses differ: {loss!r} {same!r}"
            hooks = (scope.health()["hook_seconds"] - before) / steps
            calls, calls_bare = calls_of(step), calls_of(bare.queue)
            health = scope.health()
        number = 0 if options else observed_bytes(Path(directory) / run)
    added = statistics.median(b - a for a, b in zip(plain, taken, strict=True))
    paper = number / bandwidth
    share = f"{added / paper:.2f}" if paper else "–"
    launches = sum(n for call, n in (calls - calls_bare).items() if "Launch" in call)
    print(
        f"| {name} | {statistics.median(plain) * 1e3:.2f} | {statistics.median(taken) * 1e3:.2f} | "
        f"{statistics.median(b / a for a, b in zip(plain, taken, strict=True)):.4f} | "
        f"{statistics.fmean(taken) / statistics.fmean(plain):.4f} | {hooks * 1e3:.2f} | "
        f"{number / 1e9:.2f} | {paper * 1e3:.2f} | {share} | "
        f"{launches} | {int(health['tensors_stale'])} | {int(health['steps_dropped'])} |",
        flush=True,
    )
    print(f"  calls that wait, bare {waits(calls_bare)}, observed {waits(calls)}", flush=True)


def main() -> None:
    """Print one row a way of observing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=LARGE.layers)
    parser.add_argument("--small", action="store_true", help="the model of overhead.py instead")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("There is no GPU here, and nothing is measured.")
    size = SMALL if options.small else replace(LARGE, layers=options.layers)
    bandwidth = read_bandwidth()
    print(f"{torch.cuda.get_device_name()}, a read pass: {bandwidth / 1e12:.2f} TB/s")
    print(
        "| observed | bare ms | observed ms | median of pairs | ratio of means | hooks ms | "
        "GB observed | paper ms | added / paper | launches more | stale | dropped |\n"
        + 12 * "|---"
        + "|"
    )
    for name, how in WAYS.items():
        measure(name, how, size, options.steps, bandwidth)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
