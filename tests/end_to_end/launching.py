"""A user's script on several ranks, with nothing started by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from rankscope.store import Run, open_run

RANKS = Path(__file__).with_name("ranks.py")


def run_of(job: Path, ranks: int, run: str, directory: Path, *arguments: str) -> Run:
    """The finished run of a job that went well."""
    output = directory / f"{run}.output"
    asked = {
        "ranks": ranks,
        "script": str(job),
        "arguments": [run, str(directory), *arguments],
        "output": str(output),
        "environment": dict(os.environ),
    }
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    assert server.stdout.readline() == "0\n", output.read_text()
    deadline = time.monotonic() + 45
    while not open_run(directory / run).finished:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return open_run(directory / run)


@cache
def _server() -> subprocess.Popen[str]:
    """Ends with this process, which closes its input."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, str(RANKS)], stdin=pipe, stdout=pipe, text=True)
