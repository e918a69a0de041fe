"""The demo as its users start it: real ranks, a real collector, and signals as from a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

import psutil

from rankscope.examples.fault import Fault
from rankscope.examples.job import SIZES
from rankscope.store import open_run

DDP = Path(__file__).parents[2] / "examples" / "ddp.py"
END_S = 15.0
"""How long what was started may take to be gone, once the demo has ended."""


class Demo:
    """A demo of two ranks with a tiny model, and what it says."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.said = ""
        self.mark = uuid.uuid4().hex
        """In the environment of every process that comes of it."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rankscope", "demo", "--ranks", "2", "--size", "tiny", *options],
            cwd=folder,
            env={**os.environ, "DEMO_TEST_MARK": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for(self, pattern: str) -> str:
        """Listen until a line matches; what stands in its first group."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if found := re.search(pattern, line):
                return found[1] if found.groups() else found[0]
        raise AssertionError(f"The demo ended without {pattern!r}:\n{self.said}")

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Listen until it ends; its exit code."""
        said, _ = self.process.communicate()
        self.said += said
        return self.process.returncode

    def left_behind(self) -> list[str]:
        """The command lines of what still runs, after a while."""
        deadline = time.monotonic() + END_S
        while (left := self._running()) and time.monotonic() < deadline:
            psutil.wait_procs(left, timeout=0.5)
        return [" ".join(process.cmdline()) for process in left]

    def _running(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self.mark in _marks(process)]


def _marks(process: psutil.Process) -> str:
    try:
        return process.environ().get("DEMO_TEST_MARK", "")
    except psutil.Error:
        return ""


def test_the_planted_fault_is_found(tmp_path: Path) -> None:
    fault = Fault.plan(3, size=SIZES["tiny"], ranks=2, steps=12)
    demo = Demo(tmp_path, "--no-view", "--steps", "12", "--seed", "3", "--name", "first")

    assert demo.end() == 0, demo.said

    [path] = re.findall(r"^Trained and stored in (.*)$", demo.said, re.MULTILINE)
    run = open_run(tmp_path / path)
    found = run.first_bad()
    assert run.finished
    assert found is not None
    assert (found.site, found.ranks, found.step) == (fault.site, (fault.rank,), fault.step)
    assert f"Found:   {fault.site} on rank {fault.rank} at step {fault.step}" in demo.said
    assert demo.said.index("Step 10:") < demo.said.index(fault.site), "the answer comes last"
    assert not demo.left_behind()


def test_ctrl_c_while_training_leaves_a_readable_run_and_nothing_else(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--steps", "100000")
    address = demo.wait_for(r"^Watch it at (http://127\.0\.0\.1:\d+/\?run=demo)$")
    demo.wait_for("^Step 10:")
    with urllib.request.urlopen(address) as page:
        assert page.status == 200

    demo.interrupt()

    assert demo.end() == 130, demo.said
    assert "Ended early. What was measured until then is in rankscope-runs/demo." in demo.said
    assert "Traceback" not in demo.said
    assert "Planted" not in demo.said
    assert not demo.left_behind()
    run = open_run(tmp_path / "rankscope-runs" / "demo")
    assert run.finished
    assert len(run.records()) > 10
    assert run.records()["complete"].tolist() == [True] * len(run.records())


def test_ctrl_c_while_preparing_leaves_nothing(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    demo.wait_for("2 ranks train")

    demo.interrupt()

    assert demo.end() == 130, demo.said
    assert demo.said.endswith("Ended early.\n")
    assert not demo.left_behind()


def test_a_rank_that_fails_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "rankscope-runs" / ".demo.lock").mkdir(parents=True)
    demo = Demo(tmp_path, "--ranks", "1", "--no-view", "--no-fault", "--steps", "3")

    assert demo.end() == 1

    last = demo.said.splitlines()[-1]
    assert re.match(
        r"Error: The training failed: rank \d says “\S+Error: Cannot write to .*”", last
    )
    assert "Traceback" not in demo.said
    assert not demo.left_behind()


def test_the_smallest_script_runs_as_the_readme_says(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]

    said = subprocess.check_output([*command, DDP], cwd=tmp_path, text=True)

    [path] = re.findall(r"Stored in (\S+);", said)
    run = open_run(tmp_path / path)
    assert run.records()["step"].tolist()[:100] == list(range(100))
    assert run.first_bad() is None
