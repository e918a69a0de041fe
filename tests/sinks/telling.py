"""News to tell, and sinks that hear it, for the sinks' tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankscope.sinks import (
    Alarm,
    Found,
    News,
    Numbers,
    Stored,
    exponents_of,
    numbers_of,
    table_of,
)
from rankscope.store import Alert
from rankscope.store.incidents import group

from ..store.conftest import SITES, build_record

ALERT = Alert(
    rule="replica-divergence",
    attempt=0,
    site="weight:layers.0.up.weight",
    ranks=(2,),
    first_step=3,
    last_step=None,
    value=0.25,
    threshold=0.0,
    text="Copies of <it> differ between ranks.",
    time_ns=1_700_000_000_000_000_000,
)


def numbers(step: int = 0, *, table: bool = False, run: str = "demo", **changes: Any) -> Numbers:
    """What a record of four sites says."""
    record = build_record(step)
    facts: dict[str, Any] = {
        "run": run,
        "attempt": 0,
        "launch": "one",
        "record": step,
        "step": step,
        "time_ns": record.time_ns,
        "values": numbers_of(record, SITES),
        "exponents": exponents_of(record, SITES),
        "table": table_of(record, SITES) if table else None,
    }
    return Numbers(**facts | changes)


def alarm(run: str = "demo", alert: Alert = ALERT) -> Alarm:
    return Alarm(run=run, launch="one", alert=alert)


def found(run: str = "demo", alert: Alert = ALERT) -> Found:
    return Found(run=run, launch="one", incident=group([alert], {})[0])


def stored(step: int, run: str = "demo", **changes: Any) -> Stored:
    return Stored(run=run, launch="one", record=build_record(step, **changes), sites=SITES)


@dataclass
class Listener:
    """A sink that keeps what it is told, after what the test wants to happen first."""

    before: Callable[[News], None] = lambda news: None
    heard: list[News] = field(default_factory=list[News])
    closed: threading.Event = field(default_factory=threading.Event)

    def take(self, news: News) -> None:
        self.before(news)
        self.heard.append(news)

    def close(self) -> None:
        self.closed.set()

    def steps(self) -> list[int]:
        return [one.step for one in self.heard if isinstance(one, Numbers)]


def kinds(news: Sequence[News]) -> list[type[News]]:
    return [type(one) for one in news]
