"""Ranks as copies of one process that has imported torch already.

`python -m tests.end_to_end.ranks`, in the root, reads jobs, a line each, and runs their scripts or
modules as so many ranks, with torchrun's variables: what torch takes to be imported, seconds of a
core, is paid once and not by each rank. Tests that are about starting and ending use
torchrun itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel

import rankscope.agent.torch
from rankscope.agent.kernel import warm

IMPORTED = (
    rankscope.agent.torch,
    torch.distributed.fsdp,
    torch.distributed.pipelining,
    torch.distributed.tensor.parallel,
)
"""What ranks would have to."""
LIMIT_S = 120
"""A job that takes longer is killed."""


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def be_rank(rank: int, ranks: int, port: int, script: str, arguments: Sequence[str]) -> None:
    """Run the script, or the module of that name, in this process."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(number) for name, number in places.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)  # as torchrun has it
    sys.argv = [script, *arguments]
    if script.endswith(".py"):
        runpy.run_path(script, run_name="__main__")
    else:
        runpy.run_module(script, run_name="__main__", alter_sys=True)


def run(ranks: int, script: str, arguments: Sequence[str]) -> int:
    """Start all ranks and wait for them; 1 if one failed, after the others were ended."""
    port, started, failed = free_port(), set[int](), False
    for rank in range(ranks):
        process = os.fork()
        if not process:
            be_rank(rank, ranks, port, script, arguments)
            return 0
        started.add(process)
    while started:
        process, status = os.wait()
        started.discard(process)
        for other in started if status and not failed else ():
            os.kill(other, signal.SIGTERM)
        failed = failed or status != 0
    return int(failed)


# `Any`: a job as JSON has it.
def lead(job: dict[str, Any]) -> int:
    """Be the process that starts a job, in a group of its own that is killed when time is over."""
    os.setsid()
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.alarm(LIMIT_S)
    out = os.open(job["output"], os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.clear()
    os.environ.update(job["environment"])
    for module in job["imports"]:
        importlib.import_module(module)
    return run(job["ranks"], job["script"], job["arguments"])


def serve() -> int:
    """Run the jobs that come, and print how each ended."""
    warm()
    gc.freeze()  # else each rank, which ends as Python does, goes through all of torch: 1 s
    for line in sys.stdin:
        leader = os.fork()
        if not leader:
            return lead(json.loads(line))
        print(os.waitpid(leader, 0)[1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(serve())
