"""The embedded collector: a process of its own, for jobs that name no other."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from ..sketch.errors import RankscopeError, SettingError
from .interruption import undisturbed
from .settings import agent_settings

BESIDE = 'exec 3<&0; "$@" <&3 3<&- &'
"""A shell that runs its arguments and ends at once. So the collector is no child of the rank that
starts it, which may wait for all of its children."""
LOGGED = re.compile(r"\d{4}-\d\d-\d\dT|\{")
"""How a line of a collector's log begins, as text or as JSON; see `wire/logs.py`."""
START_S = 60.0
"""How long the collector may take to say its address."""


def folder_of(directory: str | os.PathLike[str] | None) -> Path:
    """Where a collector that is started here keeps its runs.

    Raises:
        SettingError: it is a URL: a run there outlives this machine, and so must its collector.
    """
    said = directory or os.environ.get("RANKSCOPE_DIR") or agent_settings().get("directory")
    named = str(said or "rankscope-runs")
    if "://" in named:
        raise SettingError(
            f"`directory` must be a folder, got {named!r}: start `rankscope collect --store "
            f"{named}` and say with `to` or RANKSCOPE_TO where it listens."
        )
    return Path(named)


class EmbeddedCollector:
    """The collector that this process starts, if it does; one that ends when all ranks have left.

    It has a session of its own, so that it outlives the rank that started it: launchers kill the
    process groups of their workers. Nor is it a child of that. What it logs goes to
    `directory/run.log`.
    """

    def __init__(self) -> None:
        self._group = 0
        """The process group that it is alone in, once it is there."""
        self._is_unwanted = False
        self._lock = threading.Lock()

    def start(
        self, run: str, directory: Path, *, bind: str = "tcp://127.0.0.1:*", keys: str = ""
    ) -> str:
        """Start it; its address.

        What a signal's handler raises meanwhile is raised here, and `end` ends it all the same.

        Args:
            bind: where it listens.
            keys: a line for its input, as of `keys_for_a_job`; empty: it has none.

        Raises:
            SettingError: `directory` cannot be written.
            RankscopeError: it did not start; the message says what it said.
        """
        return undisturbed(lambda: self._start(run, directory, bind, keys))

    def end(self) -> None:
        """End it now, whatever its ranks do: it stores what it has."""
        with self._lock:
            self._is_unwanted = True
            if self._group:
                with suppress(ProcessLookupError):
                    os.killpg(self._group, signal.SIGTERM)

    def _start(self, run: str, directory: Path, bind: str, keys: str) -> str:
        log = open_log(run, directory)
        command = [sys.executable, "-m", "rankscope", "collect", "--bind", bind]
        command += ["--store", str(directory), "--run", run, "--until-done", "--announce"]
        command += ["--keys", "-" if keys else ""]
        begins = log.tell()
        with log, self._lock:
            if self._is_unwanted:
                return ""
            process = subprocess.Popen(
                ["/bin/sh", "-c", BESIDE, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=_plain_environment(),
            )
            self._group = process.pid
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as line_in:  # if it has ended it says why
            line_in.write(keys.encode() + b"\n")
        line = _first_line(process)
        process.wait()  # the shell
        if not line:
            said = (directory / f"{run}.log").read_bytes()[begins:].decode(errors="replace").strip()
            why = last_sentence(said).replace("--store or run name", "`directory` or `run`")
            raise RankscopeError(why or "The embedded collector did not start.")
        return str(json.loads(line)["address"])


def open_log(run: str, directory: Path) -> BinaryIO:
    """The file `directory/run.log`, to write on and to read, for a collector that is started here.

    Raises:
        SettingError: `directory` cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return (directory / f"{run}.log").open("a+b")
    except OSError as error:
        raise SettingError(
            f"Runs cannot be written to {directory}: {error.strerror}; "
            "name another (`directory` of observe(), or --directory), or set RANKSCOPE_DIR."
        ) from None


def _plain_environment() -> dict[str, str]:
    """The environment without what belongs to a rank; spectra take one core of training's."""
    theirs = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "OMP_NUM_THREADS",
        "RANKSCOPE_TO",
        "RANKSCOPE_RELAY",
    )
    plain = {name: value for name, value in os.environ.items() if name not in theirs}
    return {"OPENBLAS_NUM_THREADS": "1", **plain}


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    """What the process says first, within `START_S`; empty if it ends or stays silent."""
    assert process.stdout is not None
    deadline, said = time.monotonic() + START_S, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while b"\n" not in said and selector.select(max(deadline - time.monotonic(), 0)):
            part = os.read(process.stdout.fileno(), 4096)
            if not part:
                break
            said += part
    process.stdout.close()
    if b"\n" not in said:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return b""
    return said.partition(b"\n")[0]


def last_sentence(said: str) -> str:
    """Why a collector did not start; that of the job before may write to the same log.

    An error may have several lines: all faults of a file of settings.
    """
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [place for place, line in enumerate(lines) if line.startswith("Error: ")]
    if not errors:
        return (lines or [""])[-1]
    first, *others = lines[errors[-1] :]
    more = takewhile(lambda line: not LOGGED.match(line), others)
    return "\n".join([first.removeprefix("Error: "), *more])
