"""What covariances of all inputs of linear layers cost a training step: Taiyi's measure.

All quantities of the covariance of the inputs of the 17 linear layers of the GPT, at every step and
at every tenth; bare and observed steps in turn, in one process, from the same seed. Beside them the
weights are sketched at the same steps, and nothing else; the embedded collector takes the spectra
on the same cores, so that bare steps between observed ones are slowed, too: the ratio of means,
which counts all steps, is to the lesser of these and of bare steps before there is a collector.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from gpt import Job
from overhead import timed

from rankscope.agent.torch import observe
from rankscope.agent.torch.quantities import known_quantities

LIMITS = {1: 2.0, 10: 1.10}
"""By distance of the steps: how many times as long as a bare step one may take, in the mean."""


def measure(threads: int, every: int, steps: int) -> bool:
    """Print one row; whether it is within its limit."""
    torch.set_num_threads(threads)
    bare, watched = Job(), Job()
    names = [name for name in known_quantities() if name.startswith("input_cov_")]
    layers = sum(isinstance(module, torch.nn.Linear) for module in watched.model.modules())
    before = Job()
    alone = [timed(before)[0] for _ in range(10 + steps)][10:]
    plain, observed = list[float](), list[float]()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        observe(
            watched.model,
            watched.optimizer,
            run="covariance",
            directory=directory,
            kinds="weight",
            every=every,
            quantities={"Linear": [[name, every] for name in names]},
        ) as scope,
    ):
        for step in range(-10, steps):
            seconds, loss = timed(bare)
            begin = time.perf_counter()
            same = watched.step()
            scope.step()
            assert loss == same, f"the losses differ: {loss!r} {same!r}"
            if step >= 0:
                plain.append(seconds)
                observed.append(time.perf_counter() - begin)
        hooks_ms = scope.health()["hook_seconds"] / (steps + 10) * 1e3
    lost = scope.statistics().dropped_frames
    untracked = min(statistics.fmean(plain), statistics.fmean(alone))
    mean = statistics.fmean(observed) / untracked
    middle = statistics.median(a / b for a, b in zip(observed, plain, strict=True))
    print(
        f"| {threads} | {every} | {layers} | {len(names)} | {statistics.fmean(alone) * 1e3:.0f} | "
        f"{statistics.fmean(plain) * 1e3:.0f} | "
        f"{statistics.fmean(observed) * 1e3:.0f} | {mean:.3f} | {middle:.3f} | {LIMITS[every]} | "
        f"{hooks_ms:.1f} | {lost} |",
        flush=True,
    )
    return mean <= LIMITS[every]


def main() -> None:
    """Each row in a process of its own, so that thread pools do not meet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--row", nargs=2, type=int, metavar=("THREADS", "EVERY"))
    options = parser.parse_args()
    if options.row:
        sys.exit(0 if measure(*options.row, steps=options.steps) else 1)
    print(
        "| torch threads | every | layers | quantities | bare alone ms | bare ms | observed ms | "
        "ratio of means | median of pairs | limit | hooks ms | dropped |\n" + 12 * "|---" + "|",
        flush=True,
    )
    failed = 0
    for row in ("1 10", "2 10", "1 1", "2 1"):
        command = [sys.executable, __file__, "--steps", str(options.steps)]
        failed += subprocess.run([*command, "--row", *row.split()]).returncode
    sys.exit(f"{failed} rows are beyond their limit" if failed else 0)


if __name__ == "__main__":
    main()
