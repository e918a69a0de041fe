"""What the demo says on the terminal."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from .job import Progress

CHALLENGE = """\
On purpose, one rank's activations will start to overflow at some step.
Find it: which site, which rank, which step? (--no-fault trains a healthy run)"""
EVERY = 10
"""Steps between two lines of progress where no bar can be shown."""


class Screen:
    """The terminal: sentences, and below them one bar while training."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[loss]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bars.add_task("Preparing", total=None, loss="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._bars.disable:  # else Rich before 14.3 would print an empty line
            self._bars.stop()

    @property
    def can_show_pages(self) -> bool:
        """Whether there is a screen: a browser for terminals would take this one."""
        screen = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
        return self._console.is_terminal and bool(screen)

    def say(self, text: str) -> None:
        """A sentence that stays."""
        self._console.print(text, markup=False)

    def doing(self, what: str) -> None:
        """What goes on now, beside the bar or in a line; nobody knows for how long."""
        self._bars.reset(self._task, description=what, total=None, loss="")
        if not self._console.is_terminal:
            self.say(f"{what} …")

    def show(self, progress: Progress) -> None:
        """How far training has come."""
        step, loss = progress.step, describe(progress)
        self._bars.update(
            self._task,
            description=f"Step {step}",
            total=progress.steps,
            completed=step + 1,
            loss=loss,
        )
        if not self._console.is_terminal and step % EVERY == 0:
            self.say(f"Step {step}: {loss}")


def describe(progress: Progress) -> str:
    """The loss, and what became of the update."""
    loss = "NaN" if progress.loss is None else f"{progress.loss:.3f}"
    skipped = "" if progress.updated else ", update skipped: a gradient is not finite"
    return f"loss {loss}{skipped}"
