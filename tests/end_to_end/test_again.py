"""A script is started again, under the name that it had: its collector may not have ended yet."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from rankscope.store import Run, open_run

JOB = Path(__file__).with_name("again_job.py")


def train(folder: Path, steps: int, last: int = -1) -> int:
    """How a start of the script ends."""
    command = [sys.executable, str(JOB), "again", str(folder), str(steps), str(last)]
    return subprocess.run(command, timeout=120, check=False).returncode


def finished(path: Path) -> Run:
    """The run, once its last collector has ended it."""
    deadline = time.monotonic() + 60
    while not open_run(path).finished:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return open_run(path)


def test_a_job_that_was_killed_is_started_again_at_once(tmp_path: Path) -> None:
    assert train(tmp_path, steps=8, last=5) == -signal.SIGKILL
    assert train(tmp_path, steps=4) == 0
    assert train(tmp_path, steps=3) == 0
    run = finished(tmp_path / "again")

    records = run.records(all_attempts=True)
    of = {attempt: records[records["attempt"] == attempt] for attempt in range(3)}
    assert of[0]["step"].tolist()[:6] == list(range(6))
    assert of[1]["step"].tolist() == list(range(5))
    assert of[2]["step"].tolist() == list(range(4))
    assert run.gaps().empty
