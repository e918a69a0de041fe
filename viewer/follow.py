"""Following a run while it is written: one poller a process and run, many pages.

A poller runs only while somebody listens. It never touches a page: a page is told and looks for
itself, on its own thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from threading import Event, Lock, RLock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..rules.explain import why
from ..sketch.errors import RankscopeError, StoreError
from . import grid, series
from .choosing import Choosing

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from ..rules import Why
    from ..store import Ending, Run

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Seconds between two looks at a run."""
PATIENCE_S = 10.0
"""How long `stop` waits for a look that is under way; a store that is away may take longer."""


class Follower:
    """Looks at a run now and then, and tells its listeners."""

    def __init__(self, run: Run, *, interval_s: float = INTERVAL_S) -> None:
        self.run = run
        self.lock = RLock()
        """Held while the run is refreshed; to be held by whoever reads what belongs together."""
        self.version = 0
        """Counts the refreshes that found something new."""
        self.interval_s = interval_s
        # `Any`: answers of several types, each behind a typed method.
        self._answers: dict[str, Any] = {}
        self._wanted: dict[str, Callable[[], object]] = {}
        """What was asked of this version, with what answers it."""
        self._choosing: Choosing | None = None
        self._listeners: list[Callable[[], None]] = []
        self._change = Lock()
        self._stop: Event | None = None
        self._poller: Thread | None = None

    def listen(self, told: Callable[[], None]) -> Callable[[], None]:
        """Call `told` after every look, on the poller's thread; returns what ends it."""
        with self._change:
            self._listeners.append(told)
            if self._stop is None:
                self._stop = Event()
                self._poller = Thread(
                    target=self._poll, args=(self._stop,), name="rankscope-follow", daemon=True
                )
                self._poller.start()

        def leave() -> None:
            with self._change:
                if told in self._listeners:
                    self._listeners.remove(told)
                if not self._listeners:
                    self._end()

        return leave

    def standing(self) -> Follower:
        """One that stays at the present snapshot, and answers as this one does now."""
        with self.lock:
            # A run is a handle on one snapshot; only `refresh` moves it.
            standing = Follower(copy(self.run), interval_s=self.interval_s)
            standing.version, standing._answers = self.version, self._answers
            standing._choosing = self._choosing
        return standing

    def why(self) -> Why:
        """What is wrong with the run, or that nothing is: `rules.why`."""
        return self._once("why", lambda: why(self.run))

    def ending(self) -> Ending:
        """`Run.ending`."""
        return self._once("ending", lambda: self.run.ending)

    def records(self) -> pd.DataFrame:
        """`Run.records`."""
        return self._once("records", self.run.records)

    def steps(self) -> NDArray[np.int64]:
        """int64 [steps]: all that have a record, ascending."""
        return self._once("steps", lambda: self.records()["step"].to_numpy(np.int64))

    def steps_with(self, statistic: str) -> NDArray[np.int64]:
        """`grid.recorded_steps`."""
        return self._once(
            f"steps with {statistic}", lambda: grid.recorded_steps(self.records(), statistic)
        )

    def attempts(self) -> pd.DataFrame:
        """`Run.attempts`."""
        return self._once("attempts", lambda: self.run.attempts)

    def alerts(self) -> pd.DataFrame:
        """`Run.alerts`."""
        return self._once("alerts", self.run.alerts)

    def alert_steps(self, site: str) -> NDArray[np.int64]:
        """int64 [steps]: those in which an alert at a site began or ended, ascending."""
        return self._once(f"alert steps of {site}", lambda: _alert_steps(self.alerts(), site))

    def sites(self) -> pd.DataFrame:
        """`Run.sites`, all of them."""
        return self._once("sites", self.run.sites)

    def choosing(self) -> Choosing:
        """What finds sites, for all pages."""
        sites = self.sites()
        # A run's sites grow in number, and never change.
        if self._choosing is None or len(sites) != len(self._choosing.labels):
            self._choosing = Choosing(sites)
        return self._choosing

    def training_names(self) -> list[str]:
        """`series.training_names`."""
        return series.training_names(self._training())

    def training(self, name: str) -> series.Lines:
        """`series.load_training`."""
        return self._once(
            f"training {name}", lambda: series.load_training(self.run, name, self._training())
        )

    def _training(self) -> xr.DataArray:
        return self._once("training", self.run.training)

    def _once(self, name: str, ask: Callable[[], Answer]) -> Answer:
        """What was answered already for this version of the run, for all pages."""
        with self.lock:
            self._wanted[name] = ask
            return self._answer(name, ask)

    def _answer(self, name: str, ask: Callable[[], Answer]) -> Answer:
        with self.lock:
            if self._answers.get("version") != self.version:
                self._answers = {"version": self.version}
            if name not in self._answers:
                self._answers[name] = ask()
            return self._answers[name]

    @property
    def listeners(self) -> int:
        """How many are listening."""
        return len(self._listeners)

    def look(self) -> None:
        """Refresh the run once, answer anew what was asked of it before, and tell everyone."""
        with self.lock:
            wanted, is_new = self._wanted, self.run.refresh()
            if is_new:
                self.version += 1
                self._wanted = {}
        if is_new:
            for name, ask in wanted.items():
                with suppress(RankscopeError):  # a page that asks again tells it
                    self._answer(name, ask)
        with self._change:
            listeners = list(self._listeners)
        for told in listeners:
            told()

    def stop(self) -> None:
        """Forget all listeners and end the poller, with the look that it is at."""
        with self._change:
            self._listeners.clear()
            self._end()
            poller = self._poller
        if poller is not None:
            poller.join(PATIENCE_S)

    def _end(self) -> None:
        if self._stop is not None:
            self._stop.set()
            self._stop = None

    def _poll(self, stop: Event) -> None:
        failing = False
        while not stop.wait(self.interval_s):
            try:
                self.look()
                failing = False
            # A store may be away for a moment; the page shows the age of what it has.
            except StoreError as error:
                if not failing:
                    logger.warning("Trying again every %g s: %s", self.interval_s, error)
                failing = True
            except Exception:
                if not failing:
                    logger.exception("Cannot look at run %s; trying again.", self.run.name)
                failing = True


def _alert_steps(alerts: pd.DataFrame, site: str) -> NDArray[np.int64]:
    is_own = (alerts["site"] == site).to_numpy()
    if not is_own.any():
        return np.empty(0, np.int64)
    own = alerts.loc[is_own]
    ended = own.dropna(subset=["last_step"])
    ends = [*own["first_step"].tolist(), *ended["last_step"].tolist()]
    return np.unique(np.array(ends, np.int64))
