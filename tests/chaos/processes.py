"""Starting, killing and awaiting the processes of a chaos test."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .ledger import Ledger

HERE = Path(__file__).parent
SOAK = float(os.environ.get("RANKSCOPE_SOAK", "0"))
"""0: short, as in CI; 1: long; more: so many times as long."""


def scaled(short: int, long: int) -> int:
    """How many there are of something."""
    return round(long * SOAK) if SOAK else short


SLOWLY_S = 0.2
"""Between two steps: an agent keeps 128 frames, and on a busy machine a collector takes seconds to
start, and stores nothing if it is killed within the next."""


class Processes:
    """All processes of one test; none outlives it.

    Args:
        folder: of the test, for the store, ledgers and logs.
    """

    COLLECT = (sys.executable, "-m", "rankscope", "collect")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.random = random.Random(os.environ.get("RANKSCOPE_SEED", "7"))
        self.store = folder / "store"
        self.log = folder / "collector.log"
        self.address = ""
        self._started: list[subprocess.Popen[str]] = []
        self._collectors: list[subprocess.Popen[str]] = []

    def python(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """A Python process; its words go to the collector's log."""
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        self._started.append(process)
        return process

    def collector(
        self, *options: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """A collector on the address of the first one."""
        bind = self.address or "tcp://127.0.0.1:*"
        process = self.python(
            "-m", "rankscope", "collect", "--announce", "--bind", bind,
            "--store", str(self.store), *options,
            environment=environment,
        )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, self.log.read_text()[-2000:]
        self.address = json.loads(line)["address"]
        self._collectors.append(process)
        return process

    def stop_collector(self) -> None:
        """Have the last collector store all and end, as a service manager does."""
        collector = self._collectors[-1]
        collector.send_signal(signal.SIGTERM)
        assert collector.wait(30) == 0, self.log.read_text()[-2000:]

    def senders(
        self,
        ranks: int,
        steps: int,
        pause_s: float,
        *,
        address: str = "",
        launch: str = "launch",
        environment: Mapping[str, str] | None = None,
    ) -> list[subprocess.Popen[str]]:
        """Each rank of a job as a process, see `sender.py`."""
        return [
            self.sender(
                rank, ranks, steps, pause_s, address=address, launch=launch, environment=environment
            )
            for rank in range(ranks)
        ]

    def sender(
        self,
        rank: int,
        ranks: int,
        steps: int,
        pause_s: float,
        *,
        address: str = "",
        launch: str = "launch",
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """One of them."""
        ledger = self.folder / f"{launch}-{rank}.jsonl"
        what = (address or self.address, rank, ranks, steps, pause_s, ledger, launch)
        return self.python(str(HERE / "sender.py"), *map(str, what), environment=environment)

    def ledgers(self, ranks: int, launch: str = "launch") -> list[Ledger]:
        """What they wrote down."""
        return [Ledger.read(self.folder / f"{launch}-{rank}.jsonl", rank) for rank in range(ranks)]

    def reader(self, name: str = "reader") -> Reader:
        """A reader that looks at every snapshot, see `reader.py`."""
        report = self.folder / f"{name}.json"
        process = self.python(str(HERE / "reader.py"), str(self.store / "demo"), str(report))
        return Reader(process, report)

    def kill(self, process: subprocess.Popen[str]) -> None:
        """As a machine out of memory does."""
        process.kill()
        process.wait()

    def await_all(self, processes: Sequence[subprocess.Popen[str]], seconds: float) -> None:
        """All end well within that time."""
        deadline = time.monotonic() + seconds
        for process in processes:
            code = process.wait(max(deadline - time.monotonic(), 0.1))
            assert code == 0, self.log.read_text()[-2000:]

    def close(self) -> None:
        """End what is left."""
        for process in self._started:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


class Reader:
    """A reader at work."""

    def __init__(self, process: subprocess.Popen[str], report: Path) -> None:
        self._process, self._report = process, report

    def ends_well(self) -> int:
        """Stop it; how many snapshots it saw, of which none was half."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(30)
        assert code == 0, f"the reader ended with {code}: its words are in the collector's log"
        said = json.loads(self._report.read_text())
        assert said["wrong"] == ""
        return int(said["snapshots"])


def wait_until(what: object, seconds: float = 30.0) -> None:
    """Until `what()` is true."""
    assert callable(what)
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def sleep_between(processes: Processes, least_s: float, most_s: float) -> None:
    """A random while: chaos has no beat."""
    time.sleep(processes.random.uniform(least_s, most_s))
