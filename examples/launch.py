"""The ranks as one thing: started by torchrun, heard line by line, and ended together."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from .job import Progress

PATIENCE_S = 20.0
"""How long ranks that are asked to end may take for it."""
GLANCE_S = 0.2
"""`listen` gives a sign at least so often."""


class Ranks:
    """A job of several ranks on this machine.

    Args:
        ranks: how many.
        arguments: of `rankscope.examples.gpt`.
        log: what the ranks say apart from their progress goes there.
    """

    def __init__(self, ranks: int, arguments: Sequence[str], log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", "-m", "rankscope.examples.gpt", *arguments]
        with log.open("wb") as said:
            # In a session of its own: Ctrl-C is for us, and we pass it on in our own way.
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
                env=_environment(),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def listen(self) -> Iterator[Progress | None]:
        """What the ranks tell, until they end; None now and then, for the caller to look around."""
        assert self._process.stdout is not None
        said = self._process.stdout.fileno()
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(said, selectors.EVENT_READ)
            while True:
                if not selector.select(GLANCE_S):
                    yield None
                    continue
                part = os.read(said, 1 << 16)
                if not part:
                    return
                *lines, rest = (rest + part).split(b"\n")
                yield from (progress for line in lines if (progress := _read(line)))

    def wait(self) -> int:
        """The exit code of the job, once it has ended."""
        return self._process.wait()

    def stop(self) -> None:
        """Ask the ranks to end after their step; those that do not are killed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(PATIENCE_S)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                self._kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _kill(self) -> None:
        """End torchrun and the ranks, whatever they are at; each rank has a session of its own."""
        for process in (*_children(self._process.pid), self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()

    def said(self) -> str:
        """All that the ranks said apart from their progress."""
        return self._log.read_text(errors="replace")


def find_complaint(said: str) -> str:
    """Which rank failed first, and why, in its own words; empty if torchrun does not say."""
    root = re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", said, re.DOTALL)
    if root is None:
        return ""
    rank, code = root[1], int(root[2])
    quoted = re.search(rf"^\[rank{rank}\]: ((?:\w+\.)*\w*Error\b.*)$", said, re.MULTILINE)
    if quoted is not None:
        return f"rank {rank} says “{quoted[1].strip()}”"
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"rank {rank} {how}"


def find_warning(said: str) -> str:
    """What the agent warned of; empty if it did not."""
    found = re.search(r"RankscopeWarning: (.*)", said)
    return found[1].strip() if found else ""


def _environment() -> dict[str, str]:
    """Ours, without what would lead the agent to another collector; one thread a rank."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RANKSCOPE_")}
    return {"OMP_NUM_THREADS": "1", **kept}


def _children(process: int) -> list[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


def _read(line: bytes) -> Progress | None:
    try:
        return msgspec.json.decode(line, type=Progress)
    except msgspec.DecodeError:
        return None
