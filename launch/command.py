"""`rankscope run`: a command whose processes observe what they train."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import click

from ..agent.embedded import last_sentence, open_log
from ..agent.settings import AgentSettings, agent_settings, keys_of
from ..settings import settings_of
from ..sketch.errors import BusyError, RankscopeError, SettingError
from .environment import Observation, environment_of
from .hints import hint_for

STOP_S = 60.0
"""How long the collector may take to store what it has, in seconds."""
HANDOVER_S = 5.0
"""How long the collector of the job before has to let go of the run, in seconds."""
BUSY = " is being written by "
"""What a collector logs of a run that another one has taken."""
NOTHING = (
    "nothing was observed: no process trained anything that could be observed, that is a model of "
    "PyTorch in training mode (`model.train()`) whose parameters an optimizer updates; or Python "
    "ran as `python -I` or `-E`, without the environment; or a line above says why it was not."
)
PASSED_ON = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2),  # "the time limit is near"
)
"""Signals that the command gets from us."""


# What stands behind the command's first word is the command's, whether `--` goes before or not.
@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--run", envvar="RANKSCOPE_RUN", required=True, help="Name of the run.")
@click.option(
    "--to",
    envvar=["RANKSCOPE_RELAY", "RANKSCOPE_TO"],
    default="",
    help="Address of a collector or relay, as tcp://host:7600; else one is started here.",
)
@click.option("--keys", envvar="RANKSCOPE_KEYS", default="", help="Folder of the agents' keys.")
@click.option(
    "--directory",
    envvar="RANKSCOPE_DIR",
    default="rankscope-runs",
    show_default=True,
    help="Where a collector that is started here keeps its runs.",
)
@click.option("--kinds", help="What is observed, as weight,activation; else all but input, update.")
@click.option("--every", type=click.IntRange(1), help="Distance of the steps that are sketched.")
@click.option("--budget", type=float, help="Share of step time that the agent may take, as 0.01.")
@click.option("--ring", type=click.IntRange(0), help="Steps kept in full until something is wrong.")
@click.option("--include", multiple=True, help="Regular expression of names that are observed.")
@click.option("--exclude", multiple=True, help="Regular expression of names that are not.")
@click.option("--quantities", type=click.Path(exists=True), help="TOML file of quantities.")
@click.option(
    "--print-environment",
    is_flag=True,
    help="Print the variables to set, as lines of a shell, and run nothing.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    run: str,
    to: str,
    keys: str,
    directory: str,
    print_environment: bool,
    command: tuple[str, ...],
    **given: Any,
) -> None:
    """Run COMMAND, as `torchrun train.py`, and observe what it trains.

    The script needs no change: its models and optimizers are found when they are first used.
    """
    options = {name: _plain(value) for name, value in given.items() if value not in (None, ())}
    _check({**options, "run": run, **({"to": to} if to else {})})
    launch = os.environ.get("RANKSCOPE_LAUNCH") or os.environ.get("SLURM_JOB_ID") or ""
    if print_environment:
        asked = Observation(
            run=run, to=to, keys=keys, directory=directory, launch=launch, options=options
        )
        for name, value in environment_of(asked, os.environ).items():
            click.echo(f"export {name}={shlex.quote(value)}")
        return
    if keys:
        keys_of(keys, to)
    if not command:
        raise click.UsageError("Say what to run, as in: rankscope run --run x -- python train.py")
    with nullcontext(to) if to else _collector(directory, run) as address:
        asked = Observation(
            run=run,
            to=address,
            keys=keys,
            directory=directory,
            launch=launch or uuid.uuid4().hex,
            options=options,
        )
        code = _run(command, {**os.environ, **environment_of(asked, os.environ)})
    sys.exit(code if code >= 0 else 128 - code)


def _plain(value: Any) -> Any:
    """As `observe` takes it."""
    if isinstance(value, str) and "," in value:
        return [one.strip() for one in value.split(",")]
    return list(value) if isinstance(value, tuple) else value


def _check(options: dict[str, Any]) -> None:
    """Refuse what each rank would refuse when it trains, which would go on unobserved.

    Raises:
        SettingError: an option cannot be used, or the file of settings says what cannot be.
    """
    faults = list[str]()
    settings_of(options, AgentSettings, "rankscope run", faults)
    if faults:
        raise SettingError("\n".join(faults))
    agent_settings()


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """The exit code of a command, to which signals are passed on."""
    process: subprocess.Popen[bytes] | None = None
    early = list[int]()

    def pass_on(number: int, _: object) -> None:
        # A terminal sends Ctrl-C and Ctrl-\\ to both.
        if number in (signal.SIGINT, signal.SIGQUIT) and sys.stdin.isatty():
            return
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:  # by nohup: the command ignores it, too
            signal.signal(number, pass_on)
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        text = f"{command[0]} cannot be run: {error.strerror}. {hint_for(command)}"
        raise click.ClickException(text.rstrip()) from None
    for number in early:
        process.send_signal(number)
    return process.wait()


@contextmanager
def _collector(directory: str, run: str) -> Generator[str]:
    """The address of a collector that ends, with all stored, when the block is left, and tells then
    where to look.

    If we are killed it ends when the ranks have.
    """
    before = _stored(directory, run)
    _check_free(directory, run)
    with _log(directory, run) as log:
        begins = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "rankscope", "collect", "--announce", "--store", directory),
                *("--bind", "tcp://127.0.0.1:*", "--keys", "", "--while-input"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the command
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout:
            line = process.stdout.readline()
        with process.stdin:
            try:
                if not line:
                    process.wait()
                    raise RankscopeError(_said(log, begins) or "The collector did not start.")
                yield str(json.loads(line)["address"])
                if process.poll() is not None:
                    said = _said(log, begins)
                    text = "the collector ended before the command did; it said last: "
                    click.echo(f"rankscope: {text}{said}", err=True)
            finally:
                process.terminate()
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:  # it ends when it has stored all
                    text = f"the collector still stores what it has, after {STOP_S:.0f} s: "
                    click.echo(f"rankscope: {text}{_said(log, begins)}", err=True)
        log.seek(begins)
        _tell_where(directory, run, before, log.read().decode(errors="replace"))


def _log(directory: str, run: str) -> IO[bytes]:
    """Where the collector of a run logs: beside it, if that is a folder."""
    return TemporaryFile() if "://" in directory else open_log(run, Path(directory))


def _said(log: IO[bytes], begins: int) -> str:
    """What a collector said last, or why it did not start."""
    log.seek(begins)
    return last_sentence(log.read().decode(errors="replace"))


def _stored(directory: str, name: str) -> str:
    """What tells the present state of a run from any other; empty where there is no run."""
    from ..store.reader import open_reader  # loads Icechunk, which `--help` does not need

    try:
        return open_reader(f"{directory}/{name}").snapshot.id
    except RankscopeError:
        return ""


def _check_free(directory: str, name: str) -> None:
    """Refuse a run that another collector writes: all that was observed would be lost.

    Of an object store that is known when something is to be stored.

    Raises:
        BusyError: it does.
    """
    from ..store.lock import check_free

    if "://" in directory:
        return
    try:
        check_free(Path(directory) / name, HANDOVER_S)
    except BusyError as error:
        text = str(error).replace("--store or run name", "--run, or another --directory")
        raise BusyError(text) from None


def _tell_where(directory: str, name: str, before: str, logged: str) -> None:
    """Say where to look, if there is more than `before` the command, and it is this job's."""
    path = f"{directory}/{name}"
    busy = next((line for line in logged.splitlines() if BUSY in line), "")
    if busy:
        said = json.loads(busy)["message"] if busy[0] == "{" else busy.partition(" ")[2]
        text = f"what was observed was not stored, or not all of it: {said}"
    elif _stored(directory, name) != before:
        text = f"look at what was observed with: rankscope view {shlex.quote(path)}"
    else:
        text = NOTHING + (f" What is in {path} is from before." if before else "")
    click.echo(f"rankscope: {text}", err=True)
