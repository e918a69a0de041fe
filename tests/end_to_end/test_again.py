"""A script is started again, under the name that it had: its collector may not have ended yet."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.store import Run, open_run

JOB, ELASTIC = (Path(__file__).with_name(name) for name in ("again_job.py", "elastic_job.py"))


def train(folder: Path, steps: int, last: int = -1) -> int:
    """How a start of the script ends."""
    command = [sys.executable, str(JOB), "again", str(folder), str(steps), str(last)]
    return subprocess.run(command, timeout=120, check=False).returncode


def launch(folder: Path, start: int) -> list[subprocess.Popen[bytes]]:
    """Both ranks of `elastic_job.py`."""
    command = [sys.executable, str(ELASTIC), str(folder)]
    return [subprocess.Popen([*command, str(rank), str(start)]) for rank in range(2)]


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

    lost = run.events().query("kind == 'rank-lost'")
    assert list(zip(lost["attempt"], lost["rank"], strict=True)) == [(0, 0)]
    [step] = lost["step"]
    assert step in (5, 6), "step 5 had been sent"
    assert run.ending.text == f"finished; attempt 0: ranks lost: 0 (last seen in step {step})"


def test_what_a_launcher_starts_again_tells_who_was_lost_before(tmp_path: Path) -> None:
    zero, one = launch(tmp_path, 0)
    assert one.wait(240) == 3
    zero.kill()
    zero.wait()
    assert [rank.wait(240) for rank in launch(tmp_path, 1)] == [0, 0]
    run = finished(tmp_path / "elastic")

    lost = run.events().query("kind == 'rank-lost'")
    assert sorted(zip(lost["attempt"], lost["rank"], strict=True)) == [(0, 0), (0, 1)]
    assert set(lost["step"]) <= {4, 5, 6}
    assert run.ending.state == "finished"
    [before] = run.ending.earlier
    assert (before.attempt, before.state) == (0, "ranks lost")
    told = CliRunner().invoke(cli, ["why", str(run.path)]).output
    assert "finished; attempt 0: ranks lost: 0, 1 (last seen in step" in told
    assert "attempt 0 did not end well" in told or "incident" in told
