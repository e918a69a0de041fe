"""What observing costs a training step under FSDP2: ranks of this machine, one torch thread each.

Bare and observed steps in turn, of two copies of the GPT of the other figures that begin alike and
must give the same losses. All ranks, gloo's threads, the agents and the collector share the cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parent))
from gpt import Job

from rankscope.agent.torch import observe
from rankscope.agent.torch.observing import DEFAULT_KINDS


def sharded() -> Job:
    """A job whose model is sharded, each block as one unit."""
    job = Job()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    for block in job.model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(job.model, mesh=mesh)
    job.optimizer = torch.optim.AdamW(job.model.parameters())
    return job


def rank(steps: int, warm: int, directory: str, leave_out: list[str]) -> None:
    """One rank; the first prints a row."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    bare, watched = sharded(), sharded()
    kinds = [kind for kind in DEFAULT_KINDS if kind not in leave_out]
    plain: list[float] = []
    observed: list[float] = []
    with observe(
        watched.model, watched.optimizer, run="fsdp", directory=directory, kinds=kinds
    ) as scope:
        for step in range(warm + steps):
            dist.barrier()
            begin = time.perf_counter()
            loss = bare.step()
            dist.barrier()
            middle = time.perf_counter()
            same = watched.step()
            scope.step(loss=same)
            dist.barrier()
            end = time.perf_counter()
            assert loss == same, f"the losses differ: {loss!r} {same!r}"
            if step >= warm:
                plain.append(middle - begin)
                observed.append(end - middle)
        health = scope.health()
    if dist.get_rank() == 0:
        ratio = statistics.median(a / b for a, b in zip(observed, plain, strict=True))
        mean = statistics.fmean(observed) / statistics.fmean(plain)
        print(
            f"| {dist.get_world_size()} on {os.cpu_count()} cores | {', '.join(leave_out)} | "
            f"{statistics.median(plain) * 1e3:.0f} | {statistics.median(observed) * 1e3:.0f} | "
            f"{ratio:.3f} | {mean:.3f} | {int(health['steps_dropped'])} |",
            flush=True,
        )
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--without", nargs="*", default=[], help="kinds that are not observed")
    parser.add_argument("--directory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.directory:
        rank(options.steps, options.warm, options.directory, options.without)
        return
    print(
        "| ranks | without | bare ms | observed ms | median of pairs | ratio of means | dropped |\n"
        + 7 * "|---"
        + "|",
        flush=True,
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(options.ranks), *sys.argv, "--directory", directory]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
