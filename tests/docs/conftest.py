"""A run that the code of the documentation can ask."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("documented_job.py")
NAMES = ("demo", "ddp", "gpt", "gpt-small", "before")
"""What the pages call their runs: all are the same one here."""


@pytest.fixture(scope="session")
def documented_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `rankscope-runs` in it, and `runs`, as the tutorial calls it."""
    folder = tmp_path_factory.mktemp("documented")
    runs = folder / "rankscope-runs"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    done = subprocess.run(
        [*launch, str(JOB), str(runs)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for name in NAMES[1:]:
        shutil.copytree(runs / NAMES[0], runs / name)
    (folder / "runs").symlink_to(runs)
    return folder
