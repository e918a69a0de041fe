"""A user's script under plain torchrun, with nothing started by hand."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from rankscope.store import Run, open_run


def run_of(job: Path, ranks: int, run: str, directory: Path, *arguments: str) -> Run:
    """The finished run of a job that went well."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(job), run, str(directory), *arguments]
    ended = subprocess.run(command, timeout=120, check=False, stderr=subprocess.PIPE)
    assert ended.returncode == 0, ended.stderr.decode()
    deadline = time.monotonic() + 45
    while not open_run(directory / run).finished:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return open_run(directory / run)
