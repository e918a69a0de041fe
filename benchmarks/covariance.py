"""What covariances of all inputs of linear layers cost a training step: Taiyi's measure.

All quantities of the covariance of the inputs of the 17 linear layers of the GPT, at every step and
at every tenth, in one process, from the same seed. Beside them the weights are sketched at the same
steps, and nothing else. The embedded collector takes the spectra on the same cores, behind the
steps: so bare and observed steps take turns in blocks, and a block of bare steps begins once all
frames of the block before are durable. The seconds that this takes, which no step pays for, stand
in the last column, by block.
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

BLOCK = 20
"""Steps that are taken in turn."""
LIMITS = {1: 2.0, 10: 1.10}
"""By distance of the steps: how many times as long as a bare step one may take, in the mean."""


def measure(threads: int, every: int, steps: int) -> bool:
    """Print one row; whether it is within its limit."""
    torch.set_num_threads(threads)
    bare, watched = Job(), Job()
    names = [name for name in known_quantities() if name.startswith("input_cov_")]
    layers = sum(isinstance(module, torch.nn.Linear) for module in watched.model.modules())
    plain, observed, behind = list[float](), list[float](), list[float]()
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
        for block in range(-1, steps // BLOCK):
            losses = [timed(bare) for _ in range(BLOCK)]
            took = list[float]()
            for seconds, loss in losses:
                begin = time.perf_counter()
                same = watched.step()
                scope.step()
                took.append(time.perf_counter() - begin)
                assert loss == same, f"the losses differ: {loss!r} {same!r}"
                plain += [seconds] * (block >= 0)
            observed += took * (block >= 0)
            begin = time.perf_counter()
            while scope.statistics().pending_frames:
                time.sleep(0.01)
            behind += [time.perf_counter() - begin] * (block >= 0)
        health = scope.health()
    ratio = statistics.fmean(observed) / statistics.fmean(plain)
    middle = statistics.median(observed) / statistics.median(plain)
    print(
        f"| {threads} | {every} | {layers} | {len(names)} | {statistics.fmean(plain) * 1e3:.0f} | "
        f"{statistics.fmean(observed) * 1e3:.0f} | {ratio:.3f} | {middle:.3f} | {LIMITS[every]} | "
        f"{health['hook_seconds'] / (len(observed) + BLOCK) * 1e3:.1f} | "
        f"{scope.statistics().dropped_frames} | {health['stretch']:.0f} | "
        f"{statistics.fmean(behind):.1f} |",
        flush=True,
    )
    return ratio <= LIMITS[every]


def main() -> None:
    """Each row in a process of its own, so that thread pools do not meet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--row", nargs=2, type=int, metavar=("THREADS", "EVERY"))
    options = parser.parse_args()
    if options.row:
        sys.exit(0 if measure(*options.row, steps=options.steps) else 1)
    print(
        "| torch threads | every | layers | quantities | bare ms | observed ms | ratio of means | "
        "of medians | limit | hooks ms | dropped | stretch | behind s |\n" + 13 * "|---" + "|",
        flush=True,
    )
    failed = 0
    for row in ("1 10", "2 10", "1 1", "2 1"):
        command = [sys.executable, __file__, "--steps", str(options.steps)]
        failed += subprocess.run([*command, "--row", *row.split()]).returncode
    sys.exit(f"{failed} rows are beyond their limit" if failed else 0)


if __name__ == "__main__":
    main()
