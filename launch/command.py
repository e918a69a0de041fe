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
from ..sketch.errors import RankscopeError, SettingError
from .environment import Observation, environment_of

STOP_S = 60.0
"""How long the collector may take to store what it has, in seconds."""
PASSED_ON = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2),  # "the time limit is near"
)
"""Signals that the command gets from us."""


@click.command()
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
    """Run COMMAND, as `-- torchrun train.py`, and observe what it trains.

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
    if keys and not to:
        keys_of(keys, None)
    if not command:
        raise click.UsageError("Say what to run, as in: rankscope run --run x -- python train.py")
    before = "" if to else _stored(directory, run)
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
    if not to:
        _tell_where(directory, run, before)
    sys.exit(code if code >= 0 else 128 - code)


def _plain(value: Any) -> Any:
    """As `observe` takes it."""
    if isinstance(value, str) and "," in value:
        return value.split(",")
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
        raise click.ClickException(f"{command[0]} cannot be run: {error.strerror}.") from None
    for number in early:
        process.send_signal(number)
    return process.wait()


@contextmanager
def _collector(directory: str, run: str) -> Generator[str]:
    """The address of a collector that ends, with all stored, when the block is left.

    If we are killed it ends when the ranks have.
    """
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


def _tell_where(directory: str, name: str, before: str) -> None:
    """Say where to look, if there is more than `before` the command."""
    path = f"{directory}/{name}"
    if _stored(directory, name) != before:
        text = f"look at what was observed with: rankscope view {path}"
    else:
        text = (
            "nothing was observed: no process trained anything that could be observed, that is a "
            "model of PyTorch whose parameters an optimizer updates, or a line above says why it "
            "was not."
        )
        text += f" What is in {path} is from before." if before else ""
    click.echo(f"rankscope: {text}", err=True)
