"""A user's script on several ranks, with nothing started by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rankscope.store import Run, open_run

ROOT = Path(__file__).resolve().parents[2]


def run_of(
    job: Path,
    ranks: int,
    run: str,
    directory: Path,
    *arguments: str,
    imports: Sequence[str] = (),
) -> Run:
    """The finished run of a job that went well; `imports` as of `run_ranks`."""
    output, given = directory / f"{run}.output", [run, str(directory), *arguments]
    run_ranks(str(job), ranks, given, output, imports)
    deadline = time.monotonic() + 45
    while not open_run(directory / run).finished:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return open_run(directory / run)


def run_ranks(
    script: str, ranks: int, arguments: Sequence[str], output: Path, imports: Sequence[str] = ()
) -> None:
    """Run a script, or a module of `tests`, as so many ranks, until all have ended well.

    Args:
        imports: what takes long to import, and is imported once before there are ranks.
    """
    asked = {
        "ranks": ranks,
        "script": script,
        "arguments": list(arguments),
        "output": str(output),
        "imports": list(imports),
        "environment": dict(os.environ),
    }
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    assert server.stdout.readline() == "0\n", output.read_text()


@cache
def _server() -> subprocess.Popen[str]:
    """Ends with this process, which closes its input."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "tests.end_to_end.ranks"]
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
