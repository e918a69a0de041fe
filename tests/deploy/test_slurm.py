"""The script for Slurm, with real processes; only Slurm's own commands are stood in for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.store import open_run

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "launch" / "job.py"
SRUN = """#!/usr/bin/env bash
# One node: what follows the options is run here, and SIGTERM goes on to it.
while [[ $1 == -* ]]; do shift; done
exec "$@"
"""


def free_ports(number: int) -> list[str]:
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.mark.parametrize(("name", "code"), [("plain", 0), ("fails", 7), ("nothing", 0)])
def test_a_job_is_observed_and_its_exit_code_kept(tmp_path: Path, name: str, code: int) -> None:
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for command, text in {"srun": SRUN, "scontrol": "#!/bin/sh\necho 127.0.0.1\n"}.items():
        (stubs / command).write_text(text)
        (stubs / command).chmod(0o755)
    ports = free_ports(2)
    kept = {key: value for key, value in os.environ.items() if "RANKSCOPE" not in key}
    done = subprocess.run(
        [
            *("bash", ROOT / "deploy" / "slurm" / "observe.sbatch"),
            *(sys.executable, JOB, name),
        ],
        cwd=tmp_path,
        env={
            **kept,
            "PATH": f"{stubs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NODELIST": "node-[1]",
            "SLURM_NNODES": "1",
            "RANKSCOPE_RUN": name,
            "COLLECTOR_PORT": ports[0],
            "RELAY_PORT": ports[1],
            "SPOOL": str(tmp_path / "spool"),
            "STOP_S": "2",
        },
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert not list(tmp_path.glob(".rankscope-keys*"))
    if name == "nothing":
        assert not (tmp_path / "rankscope-runs" / name).exists()
        return
    run = open_run(tmp_path / "rankscope-runs" / name)
    assert run.finished
    assert run.records()["step"].tolist() == [0, 1, 2, 3]
    assert run.gaps().empty


def test_it_says_what_is_missing(tmp_path: Path) -> None:
    script = ["bash", ROOT / "deploy" / "slurm" / "observe.sbatch"]
    bare = {"PATH": os.environ["PATH"]}
    done = subprocess.run(script, env=bare, capture_output=True, text=True, check=False)
    assert "say what the run is called" in done.stderr
    named = {**bare, "RANKSCOPE_RUN": "x"}
    done = subprocess.run(script, env=named, capture_output=True, text=True, check=False)
    assert (done.returncode, "Say what to run" in done.stderr) == (2, True)
