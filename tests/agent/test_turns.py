"""What is made once on a machine: one process makes it, the others wait, and nobody for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rankscope.agent.turns import Doing, made_once

MAKE = """
import os, sys, time
from pathlib import Path
from rankscope.agent.turns import made_once

with made_once(Path(sys.argv[1]), lambda doing: print(doing, flush=True)):
    if sys.argv[2] == "die":
        os._exit(9)
    time.sleep(1.0)
print(time.process_time())
"""


def make(marker: Path, how: str = "") -> subprocess.Popen[str]:
    """A process that makes it for a second, if nobody has."""
    command = [sys.executable, "-c", MAKE, str(marker), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def told_by(process: subprocess.Popen[str]) -> list[str]:
    """What it did, in turn, and its CPU time."""
    return process.communicate(timeout=60)[0].split()


def test_one_process_makes_it_and_the_others_wait_and_load(tmp_path: Path) -> None:
    processes = [make(tmp_path / "marker") for _ in range(3)]
    told = sorted(told_by(process)[-2] for process in processes)

    assert told == ["loading", "loading", "making"]
    assert told_by(make(tmp_path / "marker"))[:-1] == ["loading"]


def test_the_lock_goes_with_the_process_that_has_it(tmp_path: Path) -> None:
    assert told_by(make(tmp_path / "marker", "die")) == ["making"]
    assert told_by(make(tmp_path / "marker"))[:-1] == ["making"]


def test_where_no_file_can_be_it_is_made(tmp_path: Path) -> None:
    told = list[Doing]()
    with made_once(tmp_path / "missing" / "marker", told.append):
        pass

    assert told == ["making"]
