"""The script for Slurm, with real processes; only Slurm's own commands are stood in for."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankscope.store import open_run

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "launch" / "job.py"
SRUN = """#!/usr/bin/env bash
# One node: what follows the options is run here, as the next step, with our input. As Slurm has it,
# SIGTERM to srun kills the task, and SIGUSR1 is passed on to it.
name=$(basename "$1")
while [[ $1 == -* ]]; do [[ $1 != --job-name=* ]] || name=${1#*=}; shift; done
"$@" <&0 &
task=$!
trap 'kill -KILL "$task"' TERM
trap 'kill -USR1 "$task"' USR1
step=0
until mkdir "$STEPS/$SLURM_JOB_ID.$step" 2>/dev/null; do step=$((step + 1)); done
echo "$name" > "$STEPS/$SLURM_JOB_ID.$step/name"
echo "$task" > "$STEPS/$SLURM_JOB_ID.$step/task"
while :; do wait "$task"; code=$?; kill -0 "$task" 2>/dev/null || break; done
rm -r "$STEPS/$SLURM_JOB_ID.$step"
exit "$code"
"""
SQUEUE = """#!/usr/bin/env bash
# The steps that run: number and name, as --format='%i %j' has them.
cd "$STEPS"
for step in *; do echo "$step $(cat "$step/name")"; done
"""
SCANCEL = """#!/usr/bin/env bash
# A signal for the processes of a step: scancel --quiet --signal=INT STEP.
task=$(cat "$STEPS/$3/task")
kill "-${2#--signal=}" "$task" $(ps -o pid= --ppid "$task")
"""


def free_ports(number: int) -> list[str]:
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start(
    folder: Path, name: str, job: list[str | Path], **variables: str
) -> subprocess.Popen[str]:
    """The script as Slurm would start it, on one node."""
    stubs = folder / "bin"
    stubs.mkdir()
    (folder / "steps").mkdir()
    commands = {"srun": SRUN, "squeue": SQUEUE, "scancel": SCANCEL}
    for command, text in commands.items():
        (stubs / command).write_text(text)
        (stubs / command).chmod(0o755)
    ports = free_ports(2)
    kept = {key: value for key, value in os.environ.items() if "RANKSCOPE" not in key}
    return subprocess.Popen(
        ["bash", ROOT / "deploy" / "slurm" / "observe.sbatch", *job],
        cwd=folder,
        env={
            **kept,
            "PATH": f"{stubs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "STEPS": str(folder / "steps"),
            "SLURM_JOB_ID": "17",
            "SLURMD_NODENAME": "127.0.0.1",
            "SLURM_NNODES": "1",
            "RANKSCOPE_RUN": name,
            "COLLECTOR_PORT": ports[0],
            "RELAY_PORT": ports[1],
            "SPOOL": str(folder / "spool"),
            "STOP_S": "20",
            **variables,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(script: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for it, and for all that write where it does."""
    with script:
        said, complained = script.communicate(timeout=150)
    return subprocess.CompletedProcess(script.args, script.returncode, said, complained)


def submit(
    folder: Path, name: str, job: list[str | Path], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Start the script, and wait for it."""
    return end_of(start(folder, name, job, **variables))


@pytest.mark.parametrize(("name", "code"), [("plain", 0), ("fails", 7)])
def test_a_job_is_observed_and_its_exit_code_kept(tmp_path: Path, name: str, code: int) -> None:
    done = submit(tmp_path, name, [sys.executable, JOB, name])
    assert done.returncode == code, done.stderr
    assert not list(tmp_path.glob(".rankscope-keys*"))
    assert list((tmp_path / "spool").iterdir()) == []
    run = open_run(tmp_path / "rankscope-runs" / name)
    assert run.finished
    assert run.records()["step"].tolist() == [0, 1, 2, 3]
    assert run.gaps().empty


def test_relays_that_nobody_came_to_are_told_to_end(tmp_path: Path) -> None:
    done = submit(tmp_path, "nothing", [sys.executable, JOB, "nothing"], STOP_S="2")
    assert done.returncode == 0, done.stderr
    assert '"held_frames": 0' in done.stderr  # a relay that was killed would not say so
    assert not (tmp_path / "rankscope-runs" / "nothing").exists()


def test_a_signal_for_the_script_goes_to_the_command_alone(tmp_path: Path) -> None:
    words = """if True:
        import os, signal, sys, time
        assert os.environ["SRUN_CPUS_PER_TASK"] == "3"
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))
        open("ready", "w").close()
        while True:
            time.sleep(0.1)
    """
    job: list[str | Path] = [sys.executable, "-c", words]
    script = start(tmp_path, "signalled", job, SLURM_CPUS_PER_TASK="3")
    while not (tmp_path / "ready").exists():
        assert script.poll() is None
        time.sleep(0.1)
    script.send_signal(signal.SIGUSR1)
    done = end_of(script)
    assert done.returncode == 9, done.stderr
    assert '"held_frames": 0' in done.stderr


def test_without_a_collector_it_says_where_frames_lie_and_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    began = time.monotonic()
    done = submit(
        tmp_path,
        "plain",
        [sys.executable, JOB, "plain"],
        RANKSCOPE_DIR=str(tmp_path / "a-file" / "runs"),
        STOP_S="100",
    )
    assert time.monotonic() - began < 90
    assert done.returncode == 0, done.stderr
    spool = tmp_path / "spool" / "17"
    assert "the collector has ended while the job runs" in done.stderr
    assert "set RANKSCOPE_DIR" in done.stderr
    assert f"127.0.0.1: rankscope: what is not stored lies in {spool} on this node" in done.stderr
    command = [Path(sys.executable).parent / "rankscope"]
    collect = [*command, "collect", "--announce", "--until-done", "--bind", "tcp://127.0.0.1:*"]
    with subprocess.Popen(
        [*collect, "--store", tmp_path / "runs"], stdout=subprocess.PIPE, text=True
    ) as collector:
        assert collector.stdout is not None
        to = json.loads(collector.stdout.readline())["address"]
        relay = [*command, "relay", "--to", to, "--bind", "tcp://127.0.0.1:*", "--spool", spool]
        subprocess.run([*relay, "--until-done", "--first-agent", "0"], check=True, timeout=60)
    run = open_run(tmp_path / "runs" / "plain")
    assert run.records()["step"].tolist() == [0, 1, 2, 3]


def test_it_says_what_is_missing(tmp_path: Path) -> None:
    script = ["bash", ROOT / "deploy" / "slurm" / "observe.sbatch"]
    bare = {"PATH": os.environ["PATH"]}
    done = subprocess.run(script, env=bare, capture_output=True, text=True, check=False)
    assert "say what the run is called" in done.stderr
    named = {**bare, "RANKSCOPE_RUN": "x"}
    done = subprocess.run(script, env=named, capture_output=True, text=True, check=False)
    assert (done.returncode, "Say what to run" in done.stderr) == (2, True)
