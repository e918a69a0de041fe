"""The demo from start to end: prepare, train, tell."""

from __future__ import annotations

import subprocess
import sys
import webbrowser
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from rankscope.sketch import RankscopeError

from .fault import Fault
from .launch import Ranks, find_complaint, find_warning
from .screen import CHALLENGE, Screen

if TYPE_CHECKING:
    from rankscope.store import Run

STORED_S = 45.0
"""How long the collector may take to finish the run after the ranks have left."""


class Viewer(Protocol):
    """What the demo needs of a running viewer."""

    address: str

    def wait(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What is trained, and where it is stored."""

    path: Path
    """Where the run will lie."""
    ranks: int
    steps: int
    size: str
    seed: int
    fault: Fault | None

    @property
    def log(self) -> Path:
        """What the ranks say apart from their progress."""
        return self.path.with_name(f"{self.path.name}.ranks.log")

    def introduce(self, screen: Screen) -> None:
        """Say what is to come."""
        ranks = "1 rank trains" if self.ranks == 1 else f"{self.ranks} ranks train"
        text = "the source of Python's standard library"
        screen.say(f"{ranks} a small GPT on {text}: {self.steps} steps on the CPU.")
        if self.fault is not None:
            screen.say(CHALLENGE)

    def train(self, screen: Screen, server: Viewer | None = None, *, open_page: bool) -> None:
        """Run the job to its end, and wait until all of it is stored.

        Raises:
            RankscopeError: a rank failed.
        """
        screen.doing(f"Starting {self.ranks} ranks")
        try:
            with Ranks(self.ranks, self._arguments(), self.log) as ranks:
                self._follow(ranks, screen, server, open_page)
                code = ranks.wait()
        finally:
            screen.doing("Storing")
            self._wait_until_stored()
        if code:
            complaint = find_complaint(ranks.said()) or "it did not begin"
            raise RankscopeError(f"The training failed: {complaint}. More is in {self.log}.")
        if warning := find_warning(ranks.said()):
            screen.say(f"Rankscope warns: {warning}")

    def open_run(self) -> Run | None:
        """The run, once there is one."""
        # Imported late: Zarr and xarray take a second, which `--help` should not.
        from rankscope.store import open_run

        try:
            return open_run(self.path)
        except RankscopeError:
            return None

    def answer(self) -> str:
        """What was planted, beside what the store says."""
        planted, fault = "no fault", self.fault
        if fault is not None:
            planted = f"{fault.site} overflows on rank {fault.rank} from step {fault.step} on"
        return f"Planted: {planted}.\nFound:   {self._found()}, says open_run(…).first_bad()."

    def _found(self) -> str:
        run = self.open_run()
        found = run.first_bad() if run is not None else None
        if found is None:
            return "nothing, all was finite" if run is not None else "no run"
        return f"{found.site} on rank {', '.join(map(str, found.ranks))} at step {found.step}"

    def _follow(self, ranks: Ranks, screen: Screen, server: Viewer | None, open_page: bool) -> None:
        announced = server is None
        try:
            for progress in ranks.listen():
                if server is not None and not announced and self.open_run() is not None:
                    announced = True
                    announce(page(server, self.path), screen, open_page=open_page)
                if progress is not None:
                    screen.show(progress)
        except KeyboardInterrupt:
            screen.doing("Ending the ranks after this step")
            raise

    def _wait_until_stored(self) -> None:
        run = self.open_run()
        if run is not None:
            with suppress(RankscopeError):  # it is shown as far as it is
                run.wait(STORED_S)

    def _arguments(self) -> list[str]:
        return [
            *("--name", self.path.name, "--directory", str(self.path.parent)),
            *("--size", self.size, "--steps", str(self.steps), "--seed", str(self.seed)),
            "--fault" if self.fault is not None else "--no-fault",
        ]


def page(server: Viewer, path: Path) -> str:
    """The address at which `server` shows the run at `path`."""
    return f"{server.address}?run={quote(path.name)}"


def announce(address: str, screen: Screen, *, open_page: bool) -> None:
    """Say where the run is shown, and show it."""
    screen.say(f"Watch it at {address}")
    if open_page and screen.can_show_pages:
        webbrowser.open(address)


@contextmanager
def compiling() -> Generator[None]:
    """Compile the agent's CPU kernels during the block, so that not each rank has to.

    Raises:
        RankscopeError: it failed.
    """
    command = [sys.executable, "-m", "rankscope.examples.kernels"]
    # In a session of its own: Ctrl-C would have it write a traceback.
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    try:
        yield
        _, said = process.communicate()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        why = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise RankscopeError(f"The CPU kernels could not be compiled: {why}")
