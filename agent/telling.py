"""What an agent has to tell beside its sketches: sentences, counters, and steps that it lost."""

from __future__ import annotations

from ..sketch.errors import RankscopeError
from ..wire.gaps import joined
from ..wire.messages import Gap
from .interruption import Lock, error_of_a_signal

MAX_REPORTS = 32
"""Sentences that one frame carries at most; more are only counted."""
MAX_CHARACTERS = 1000
"""Of a sentence; it is cut between words."""
FULL = "the agent's thread was behind, and all steps that it may hold were waiting"
UNSENT = "no frame could be made of it"
"""Why a step is missing."""


class Telling:
    """Kept by any thread, and taken by the agent's, which puts it into the next frame."""

    def __init__(self) -> None:
        self._reports: list[str] = []
        self._lost: list[Gap] = []
        self._lock = Lock()
        self.counters = dict.fromkeys(
            (
                "steps_dropped",
                "hook_errors",
                "tensors_unsupported",
                "reports_dropped",
                "alerts_untold",
            ),
            0,
        )

    def report(self, sentence: str, error: BaseException | None = None) -> None:
        """Keep a sentence for the next frame; beyond a limit only count it.

        Args:
            error: what was caught. If a user's signal handler has raised it, it is raised again:
                it only came while the agent was at work.
        """
        meant_for_training = error_of_a_signal(error)
        if meant_for_training is not None:
            raise meant_for_training
        with self._lock:
            if len(self._reports) < MAX_REPORTS:
                self._reports.append(_short(f"{sentence}{_words(error)}".rstrip(".") + "."))
            else:
                self.counters["reports_dropped"] += 1

    @property
    def has_reports(self) -> bool:
        """Whether there is something to tell with the next frame."""
        return bool(self._reports)

    def take_reports(self) -> list[str]:
        """The sentences since the last call."""
        with self._lock:
            reports, self._reports = self._reports, []
        return reports

    def lose(self, gap: Gap) -> None:
        """A step will never become a frame; told with the next one."""
        with self._lock:
            self._lost = joined([*self._lost, gap])

    def take_lost(self) -> list[Gap]:
        """What was lost since the last call."""
        with self._lock:
            lost, self._lost = self._lost, []
        return lost


def _words(error: BaseException | None) -> str:
    if error is None:
        return ""
    if isinstance(error, RankscopeError):  # a sentence of ours
        return f": {error}"
    return f": {type(error).__name__}" + (f": {error}" if str(error) else "")


def _short(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    return text[: MAX_CHARACTERS - 2].rsplit(maxsplit=1)[0] + " …"
