"""An observation, which is a `with` block: what is the same of it under all frameworks."""

from __future__ import annotations

import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from ..sketch.errors import SettingError
from ..wire.messages import PROCESS_ENDED, TRAINING_ENDED
from .alerts import AlertCallback, AlertCallbacks
from .embedded import EmbeddedCollector
from .lifetime import OpenBlocks
from .outbox import OutboxStatistics
from .selection import RankscopeWarning
from .stopwatch import Stopwatch
from .worker import Worker

Number = TypeVar("Number")

logger = logging.getLogger(__name__)

CLOSE_S = 15.0
"""How long leaving the block may wait for the collector, in seconds."""
UNDO_S = 5.0
"""And how long where it could not be entered."""


def numbers_given(training: Mapping[str, Number | None]) -> dict[str, Number]:
    """The numbers of a step without those that this rank has not, given as None."""
    return {name: number for name, number in training.items() if number is not None}


class Block(ABC):
    """Entered once, stepped through, and left; silent in a forked child.

    Nothing of it raises into training once it is entered, but for calls at the wrong time.
    """

    _open_blocks: ClassVar[OpenBlocks[Any]]
    """Those of the same framework: made once that is imported, so that at exit they come first."""
    _worker: Worker
    """From `_enter` on."""
    _stopwatch: Stopwatch
    """Runs while the thread that trains is in the agent; from `_enter` on."""

    def __init__(self, run: str, directory: Path, start: int, to: str | None) -> None:
        self._run, self._directory = run, directory
        self._destination = to
        self._step = self._start = start
        self._state = "new"
        self._own_collector = EmbeddedCollector()
        self._callbacks = AlertCallbacks()
        self._statistics: OutboxStatistics | None = None
        self.ends_with_process = False
        """Where the process ends the block does, too, well or by an error; nobody leaves it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of run {self._run!r} at step {self._step}, {self._state}>"

    @property
    def path(self) -> Path:
        """Where the run lies if its collector was started here, that is without `destination`."""
        return self._directory / self._run

    @property
    def destination(self) -> str | None:
        """The collector or relay that was named, and stores the run where it will; None: none was.

        It was named by `to`, the environment or the file of settings.
        """
        return self._destination

    def __enter__(self) -> Self:
        if self._state != "new":
            raise SettingError(
                "A scope can be entered once; call observe() again for another block."
            )
        self._refuse_twin()
        self._state = "entering"
        is_made = False
        try:
            self._enter()
            is_made = True
            self._worker.start()  # it says hello while kernels are compiled
            self._prepare()
            self._state = "open"
            self._open_blocks.opened(self)
            self._begin()
        except BaseException as error:  # Ctrl-C above all
            self._undo(error, is_made=is_made)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state == "forked":  # the parent's goes on
            self._detach()
        if self._state != "open":
            return
        self._let_go(self._how_it_ended(error), CLOSE_S)
        self._wait()
        if error is None:
            self._warn_of_settings()

    def on_alert(self, callback: AlertCallback) -> AlertCallback:
        """Have `callback` called with each alert of the run, as an `AlertSummary`; returns it.

        It is called by `scope.step`, on the thread that trains, after the step is closed. What it
        raises is told in the run, and it is not called again. Processes hear of an alert at
        different steps: a callback must not wait for others, nor run a program that they share.
        """
        self._callbacks.add(callback)
        return callback

    def statistics(self) -> OutboxStatistics:
        """What the transport sent, holds and lost, for all ranks of this process together.

        Raises:
            SettingError: called before the `with` block.
        """
        self._check_entered("statistics")
        return self._statistics or self._transport()

    def leave_behind(self) -> None:
        """Leave the block, and let a thread wait for all to be stored: the process goes on."""
        if self._state == "open":
            self._end_updated()
            self._let_go("", CLOSE_S)
            Thread(target=self._wait, name="rankscope-leaves").start()

    def silence(self) -> None:
        """In a forked child: the thread and the socket are not here."""
        if self._state == "open":
            self._forget()
            self._state = "forked"

    def let_go_at_exit(self) -> None:
        """The interpreter ends, and the block was not left; threads may still train."""
        error = _error_of_process()
        if self.ends_with_process:
            if error is None:
                self._end_updated()
            self._let_go(self._how_it_ended(error), CLOSE_S)
        else:
            words = f"{PROCESS_ENDED}{self._step}, in the middle of the block{_words_of(error)}"
            self._let_go(words, CLOSE_S)
        self._state = "over"

    def wait_at_exit(self) -> None:
        """After `let_go_at_exit`: wait for all to be stored."""
        self._wait()
        if self.ends_with_process and _error_of_process() is None:
            self._warn_of_settings()

    def _end_step_by(self, end: Callable[[], object]) -> None:
        """Close the step that is open, as `end` does it, and begin the next.

        Raises:
            SettingError: outside the `with` block.
        """
        if self._state in ("forked", "over"):
            return
        if self._state != "open":
            self._refuse("step", "before" if self._state in ("new", "entering") else "after")
        self._stopwatch.reset()
        with self._stopwatch:
            try:
                end()
            except Exception as error:  # never into the training loop: told in the run
                self._report(f"Step {self._step} could not be closed", error)
            finally:  # whatever a signal's handler raises: no step is told twice
                self._step += 1
                self._begin()
        self._callbacks.tell(self._report)

    def _end_updated(self) -> None:
        """Close the step that is open if its update was made, and another one was waited for."""
        return  # as where there is one optimizer

    def _check_entered(self, what: str) -> None:
        """Refuse what can be asked for inside the block, or after it.

        Raises:
            SettingError: it was not entered yet.
        """
        if self._state == "new":
            self._refuse(what, "before")

    def _refuse(self, what: str, when: str) -> NoReturn:
        raise SettingError(
            f"scope.{what}() was called {when} its block; "
            "call it inside `with observe(…) as scope:`."
        )

    def _how_it_ended(self, error: BaseException | None) -> str:
        return f"{TRAINING_ENDED}{self._step}{_words_of(error)}" if error else ""

    def _refuse_twin(self) -> None:
        """Two collectors of one process cannot write one run."""
        own = self.path.absolute()
        twins = [one for one in self._open_blocks if one.path.absolute() == own]
        if self._destination is None and any(one.destination is None for one in twins):
            module = type(self).__module__.rpartition(".")[0]
            raise SettingError(
                f"Run {self._run!r} in {own.parent} is observed by this process already, by a "
                f"scope that was not left: call {module}.leave_scopes(), which leaves all that are "
                "open, or take another `run=` or `directory=`."
            )

    def _undo(self, error: BaseException, *, is_made: bool) -> None:
        """Leave nothing behind of a block that was not wholly entered.

        Args:
            is_made: whether `_enter` was done.
        """
        self._state = "closed"
        try:
            if is_made:
                self._let_go(self._how_it_ended(error), UNDO_S)
                self._worker.join()
                self._statistics = self._transport()
        finally:
            self._own_collector.end()

    def _let_go(self, why: str, timeout_s: float) -> None:
        """End the record that is open, and let the agent's thread say goodbye.

        Args:
            why: what is told of training that did not end well.
            timeout_s: how long the thread may take.
        """
        self._state = "closed"
        self._open_blocks.closed(self)
        try:
            if why:
                self._report(why)
            self._try("What observes could not be taken off", self._detach)
            rest = "What was left could not be sent"
            self._try(rest, lambda: self._send_rest(partial=bool(why)))
            self._worker.submit(lambda: self._finish(timeout_s / 3))
        finally:
            self._worker.dismiss(timeout_s=timeout_s)

    def _try(self, sentence: str, job: Callable[[], object]) -> None:
        """What fails of it is told: where a device has failed that is what ends the block."""
        try:
            job()
        except Exception as error:
            self._report(sentence, error)

    def _wait(self) -> None:
        """After `_let_go`: wait for all to be stored."""
        self._worker.join()
        self._statistics = self._transport()
        _tell_of_frames(self._run, self._statistics, self._never_made())

    def _job_failed(self, error: BaseException) -> None:
        logger.warning("The agent's thread failed at a job: %r", error)
        self._report("The agent's thread failed at a job", error)

    @abstractmethod
    def _enter(self) -> None:
        """Find the collector, and make what observes; if that fails, nothing does."""

    @abstractmethod
    def _prepare(self) -> None:
        """Do what may take a while before training begins; the agent's thread is at work."""

    @abstractmethod
    def _begin(self) -> None:
        """Turn to the step that is open now."""

    @abstractmethod
    def _send_rest(self, *, partial: bool) -> None:
        """Hand the agent's thread what is left when the block ends.

        Args:
            partial: whether it ends in the middle of a step.
        """

    @abstractmethod
    def _finish(self, timeout_s: float) -> None:
        """Wait for what devices still compute, on the agent's thread."""

    @abstractmethod
    def _detach(self) -> None:
        """Observe nothing from now on: the block ends."""

    @abstractmethod
    def _forget(self) -> None:
        """Observe nothing from now on: this is a forked child, which must not disturb a step."""

    @abstractmethod
    def _report(self, sentence: str, error: BaseException | None = None) -> None:
        """Tell a sentence in the run's events."""

    @abstractmethod
    def _transport(self) -> OutboxStatistics:
        """What was sent so far."""

    @abstractmethod
    def _never_made(self) -> int:
        """Frames of steps that did not become any."""

    @abstractmethod
    def _warn_of_settings(self) -> None:
        """Warn of what was probably not meant, once training has ended well."""


def _error_of_process() -> BaseException | None:
    """At exit: what ends the process, if an error does; in a child it may be on its way."""
    error = getattr(sys, "last_value", None) or sys.exc_info()[1]
    # torch.multiprocessing tells its parent of an error, and leaves so.
    return error.__context__ if isinstance(error, SystemExit) else error


def _words_of(error: BaseException | None) -> str:
    """What a sentence goes on with that tells of an error."""
    return "" if error is None else f": {type(error).__name__}: {error}".removesuffix(": ")


def _tell_of_frames(run: str, statistics: OutboxStatistics, never_made: int) -> None:
    """Warn of frames that were not stored; that all were is said to who asked for such lines."""
    lost = statistics.dropped_frames + statistics.pending_frames + never_made
    if lost:
        total = statistics.acknowledged + lost
        warnings.warn(
            f"{lost} of {total} frames of rank telemetry were not stored: {_why(statistics)}.",
            RankscopeWarning,
            stacklevel=4,
        )
    else:
        frames, address = statistics.acknowledged, statistics.address
        logger.info("Run %r: all %d frames of this process are stored (%s).", run, frames, address)


def _why(statistics: OutboxStatistics) -> str:
    """Why frames were not stored, and where they should have gone."""
    address = statistics.address
    if statistics.rejected:
        reason = statistics.rejected.rstrip(".")
        return reason if address in reason else f"{reason} ({address})"
    if not statistics.answered:
        return f"no collector has answered at {address}"
    return f"they were not made, or the collector at {address} was not reached, in time"
