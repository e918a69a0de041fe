"""What sinks are told: the numbers of a record, an alert, what ranks met, the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..sketch.table import Floats, Ints
from ..store.incidents import Incident
from ..store.record import Alert


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Every site of a record with its statistics, as `describe` of a data frame."""

    sites: tuple[str, ...]
    """Labels."""
    statistics: tuple[str, ...]
    values: Floats
    """float64 [sites, statistics]; NaN where a statistic is undefined."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Numbers:
    """What one record says, over all ranks; told once it is durable, and again if it is patched."""

    run: str
    attempt: int
    launch: str
    """Token of the attempt's start: no other start of any run has it."""
    record: int
    """Its index in the run."""
    step: int
    time_ns: int
    """Wall clock of the record, nanoseconds since 1970."""
    values: Mapping[str, float]
    """By name, see docs/sinks.md."""
    exponents: Mapping[str, Ints]
    """By group: int64 [BINS], how many elements have which exponent, over all of its sites."""
    table: Table | None = None
    """Given now and then: it is many times as long as all else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """An alert that has begun or ended; told at once, maybe before its record is durable."""

    run: str
    launch: str
    alert: Alert

    @property
    def begins(self) -> bool:
        """Whether it has begun; else it has ended."""
        return self.alert.last_step is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An incident that has begun, is worse, is over, or has turned out to have another cause."""

    run: str
    launch: str
    incident: Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Ranks were lost, or ended early; told once that is durable."""

    run: str
    launch: str
    attempt: int
    kind: str
    """`ranks-lost` or `ended-early`."""
    ranks: tuple[int, ...]
    step: int
    """The last in which one of them was seen."""
    text: str
    """In a sentence, with the steps, and why if that was told."""
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Nothing more comes of a run; if the job is started again, it begins anew."""

    run: str


News = Numbers | Alarm | Found | Trouble | Ended


class Rejected(Exception):
    """A sink cannot take this, and it is no use to try again."""


class Sink(Protocol):
    """Where news goes. All calls come from one thread, and may take as long as they like."""

    def take(self, news: News) -> None:
        """Pass it on; what it does not care for it ignores.

        Raises:
            Rejected: it is no use to try again.
            Exception: whatever else: it is called again with the same news.
        """
        ...

    def close(self) -> None:
        """Write out what is still here."""
        ...
