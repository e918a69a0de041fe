"""Alerts of the collector, on their way to the training's own code."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from ..wire.messages import AlertSummary

AlertCallback = Callable[[AlertSummary], object]

MAX_WAITING = 256
"""So many alerts wait for the end of a step; beyond that the oldest are counted and not told."""

logger = logging.getLogger(__name__)


class AlertCallbacks:
    """What the training wants to be told of, and what it has not been told yet.

    Alerts come on the agent's thread; they are told on the one that trains, between two steps.
    """

    def __init__(self) -> None:
        self._callbacks: list[AlertCallback] = []
        self._waiting: deque[AlertSummary] = deque(maxlen=MAX_WAITING)

    def add(self, callback: AlertCallback) -> None:
        """Call it for each alert from now on."""
        self._callbacks.append(callback)

    def hear(self, alerts: Sequence[AlertSummary], more: int) -> int:
        """Take in what is new, on the agent's thread, where `more` were left out.

        Returns:
            How many will never be told.
        """
        if not self._callbacks:
            return 0
        over = max(len(self._waiting) + len(alerts) - MAX_WAITING, 0)
        self._waiting.extend(alerts)
        return more + over

    def tell(self, report: Callable[[str, Exception], None]) -> None:
        """Tell what waits; a callback that fails is reported, and not called again."""
        while self._waiting:
            alert = self._waiting.popleft()
            for callback in self._callbacks.copy():
                try:
                    callback(alert)
                except Exception as error:  # the law: told, never raised into the training
                    self._callbacks.remove(callback)
                    name = getattr(callback, "__qualname__", repr(callback))
                    logger.warning("on_alert: %s failed, and is not called again.", name)
                    report(f"on_alert: {name} failed, and is not called again", error)
