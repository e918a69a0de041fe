"""What agents are told of alerts, and asked to do about them. No I/O, no clock.

All ranks of an attempt are asked alike: to send the steps that their rings keep, and to sketch all
sites in the same few steps. That costs training time, so that it is asked for now and then only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..rules.book import Closer
from ..store.incidents import SEVERITIES, severity_of
from ..store.record import Alert, Record
from ..wire.messages import MAX_ALERTS, MAX_BLAMED, MAX_NAME, Alerts, AlertSummary
from .budget import NOTICE_S, NOTICE_STEPS

REST = 16
"""So many times as long as they took, agents are left alone after steps in detail."""


class Response:
    """What the agents of one attempt are to hear.

    Args:
        closer: at which alerts agents look closer, and for how long.
    """

    def __init__(self, closer: Closer) -> None:
        self._closer = closer
        self._waiting: list[Alerts] = []
        self._last: tuple[int, int] | None = None
        """Step of the newest record, and when it ended."""
        self._step_s = 0.0
        self._rest_until: int | None = None
        self.is_of_use = False
        """Whether there is an agent that keeps something back."""

    def pace(self, records: Sequence[Record]) -> None:
        """Learn from new records how long a step takes."""
        for record in records:
            if self._last is not None and record.step > self._last[0]:
                seconds = (record.time_ns - self._last[1]) / 1e9
                self._step_s = max(seconds / (record.step - self._last[0]), 0.0)
            self._last = record.step, record.time_ns

    def add(self, begun: Sequence[Alert], newest_step: int, *, may_detail: bool) -> str:
        """Have agents told of alerts that began; what they are asked to do, in a sentence.

        Args:
            begun: in the order in which they were found.
            newest_step: the furthest that a rank has come.
            may_detail: whether agents may be asked for more than their schedules say.
        """
        if not begun:
            return ""
        worst = min(severity_of(alert.severity) for alert in begun)
        rests = self._rest_until is not None and newest_step < self._rest_until
        looks = self.is_of_use and not rests and worst <= severity_of(self._closer.severity)
        steps = self._closer.steps if looks and may_detail else 0
        from_step = newest_step + self._notice() if steps else 0
        looks = looks and (steps > 0 or self._closer.ring)
        if looks:
            self._rest_until = newest_step + self._notice() + (1 + REST) * self._closer.steps
        self._waiting.append(
            Alerts(
                alerts=[_summary(alert) for alert in begun[:MAX_ALERTS]],
                more=max(len(begun) - MAX_ALERTS, 0),
                send_ring=looks and self._closer.ring,
                detail_from=from_step,
                detail_steps=steps,
            )
        )
        return self._sentence(begun[0], from_step, steps) if looks else ""

    def take(self) -> list[Alerts]:
        """What is to be sent now to all agents of the attempt."""
        taken, self._waiting = self._waiting, []
        return taken

    def _notice(self) -> int:
        """Steps that will have begun before all agents have heard."""
        return NOTICE_STEPS + math.ceil(NOTICE_S / max(self._step_s, 1e-3))

    def _sentence(self, first: Alert, from_step: int, steps: int) -> str:
        asked = ["send the steps that they had kept back"] if self._closer.ring else []
        if steps:
            until = from_step + steps - 1
            asked.append(f"sketch all sites in steps {from_step} to {until}")
        where = f" at {first.site}" if first.site else ""
        return f"For {first.rule}{where} agents are asked to {' and to '.join(asked)}."


def _summary(alert: Alert) -> AlertSummary:
    return AlertSummary(
        rule=alert.rule[:MAX_NAME],
        severity=SEVERITIES[min(severity_of(alert.severity), len(SEVERITIES) - 1)],
        site=alert.site[:MAX_NAME],
        ranks=list(alert.ranks[:MAX_BLAMED]),
        step=alert.first_step,
        value=alert.value,
        threshold=alert.threshold,
        text=alert.text[:MAX_NAME],
    )
