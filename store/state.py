"""What the store says about a run beside its arrays, and its form as JSON attributes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from msgspec import to_builtins

from .layout import ARRAYS, LOGS, RANK_FRAMES
from .record import Alert, ExactCountInfo, QuantityInfo, RankInfo, Record, SiteInfo
from .tiers import Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What changes with every transaction; attributes of the group `state`."""

    transactions: int = 0
    """How many there have been: Icechunk commits no transaction that changes nothing."""
    records: int = 0
    """How many records the run has. The arrays' shapes say nothing about it."""
    recent: int = 0
    """Where the tail begins."""
    history: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(ARRAYS, 0))
    """By array: where its history ends."""
    logs: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys((*LOGS, RANK_FRAMES), 0))
    """By array of `LOGS`, and of `RANK_FRAMES`: how many of its bytes count."""
    meta: int = 0
    """Counts the changes of the attributes of the group `meta`."""
    wide: bool = False
    """Whether a histogram's count passed 2^32 - 1, so that `histogram_high` is in use."""
    rank_blocks: tuple[int, ...] = ()
    """Blocks of the rank axis (8 ranks each, or the chunk's length) that hold numbers."""
    stretches: int = 0
    """How many stretches of records the pyramid holds."""
    stale: tuple[int, ...] = ()
    """Those of them in which a record was patched since; ascending."""
    patches: int = 0
    """How many times a stored record was replaced."""
    first_step: int | None = None
    """The lowest step recorded."""
    last_step: int | None = None
    """The highest step recorded."""
    started_ns: int | None = None
    """Wall clock of the first record, nanoseconds since 1970."""
    updated_ns: int | None = None
    """Wall clock of the latest record."""
    created: bool = False
    """Whether the arrays have been made; their sizes follow from the first records."""
    finished: bool = False
    deleted: int = 0
    """Of records below this the detail was deleted by retention."""
    judged: Mapping[str, int] = field(default_factory=dict[str, int])
    """By rule, of how many records it could judge something."""
    learnt: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """By number of an attempt: what was learnt of its records that these do not tell again."""

    def bounds(self, name: str) -> Bounds:
        """Where the tiers of the array of that name begin and end."""
        history = self.history[name] if ARRAYS[name].recent else self.recent
        return Bounds(history=history, recent=self.recent, records=self.records)

    @property
    def shapes(self) -> tuple[object, ...]:
        """While it stays the same all arrays keep their shapes."""
        return self.meta, self.recent, self.history, self.logs, self.stretches, self.created

    def with_record(self, record: Record) -> State:
        """The state after one more record, or a patched one."""
        return replace(
            self,
            records=max(self.records, record.index + 1),
            first_step=record.step
            if self.first_step is None
            else min(self.first_step, record.step),
            last_step=record.step if self.last_step is None else max(self.last_step, record.step),
            started_ns=record.time_ns if self.started_ns is None else self.started_ns,
            updated_ns=max(self.updated_ns or 0, record.time_ns),
            patches=self.patches + (record.index < self.records),
            finished=False,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json`."""
        return to_builtins(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read back what `to_json` gave; names of later versions are ignored."""
        return cls(**known_fields(cls, values, tuples=("rank_blocks", "stale")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the job."""

    launch: str
    """The token that its first rank minted."""
    world_size: int = 0
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    """Size of each axis of the device mesh."""
    ranks: tuple[RankInfo, ...] = ()
    """Those that have introduced themselves, ascending."""
    left: tuple[int, ...] = ()
    """Those whose goodbye was answered, and that have not come back; ascending."""


IMPORTED = "imported LogFrame"
"""The launch of the one attempt of a run that was made of a LogFrame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What changes seldom; attributes of the group `meta`."""

    sites: tuple[SiteInfo, ...] = ()
    """In the order of the site axis, each as the latest attempt had it that saw it."""
    former: Mapping[int, tuple[SiteInfo, ...]] = field(
        default_factory=dict[int, tuple[SiteInfo, ...]]
    )
    """By index of a site: what it was in earlier attempts, ascending, where that was different."""
    attempts: tuple[Attempt, ...] = ()
    exact_counts: tuple[ExactCountInfo, ...] = ()
    """In the order of the axis `number`."""
    quantities: tuple[QuantityInfo, ...] = ()
    """In the order of the axis `value`."""
    training: tuple[str, ...] = ()
    """Names along the last axis of the array `training`."""
    health: tuple[str, ...] = ()
    """Names along the last axis of the array `health`."""
    groups: tuple[str, ...] = ()
    """Groups of ranks, in the order of the axis `group`."""

    def site(self, place: int, attempt: int | None = None) -> SiteInfo:
        """A site as it was in an attempt; in the latest that saw it, where none is said."""
        known = self.former.get(place, ()) if attempt is not None else ()
        return next((one for one in known if one.attempt >= (attempt or 0)), self.sites[place])

    @property
    def numbers(self) -> int:
        """How long the axis `number` is."""
        return self.exact_counts[-1].numbers.stop if self.exact_counts else 0

    @property
    def values(self) -> int:
        """How long the axis `value` is."""
        return self.quantities[-1].numbers.stop if self.quantities else 0

    @property
    def world_size(self) -> int:
        """The most ranks that an attempt had."""
        return max((attempt.world_size for attempt in self.attempts), default=0)

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json`."""
        return to_builtins(self, str_keys=True)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read back what `to_json` gave; names of later versions are ignored."""
        # Before it was kept by attempt, what was told last was all that was known.
        told = {"attempt": max(len(values.get("attempts", ())) - 1, 0)}
        return cls(
            sites=tuple(site_from_json(told | site) for site in values.get("sites", ())),
            former={
                int(place): tuple(map(site_from_json, sites))
                for place, sites in values.get("former", {}).items()
            },
            attempts=tuple(map(attempt_from_json, values.get("attempts", ()))),
            exact_counts=tuple(
                ExactCountInfo(**known_fields(ExactCountInfo, one))
                for one in values.get("exact_counts", ())
            ),
            quantities=tuple(
                QuantityInfo(**known_fields(QuantityInfo, one))
                for one in values.get("quantities", ())
            ),
            training=tuple(values.get("training", ())),
            health=tuple(values.get("health", ())),
            groups=tuple(values.get("groups", ())),
        )


def site_from_json(values: Mapping[str, Any]) -> SiteInfo:
    """A site as it was written."""
    cuts = tuple((axis, along) for axis, along in values.get("cuts", ()))
    whole = {**values, "cuts": cuts}
    return SiteInfo(**known_fields(SiteInfo, whole, tuples=("shape", "aliases", "whole")))


def attempt_from_json(values: Mapping[str, Any]) -> Attempt:
    """An attempt as it was written."""
    ranks = [RankInfo(**known_fields(RankInfo, rank)) for rank in values.get("ranks", ())]
    return Attempt(**known_fields(Attempt, {**values, "ranks": ranks}, tuples=("ranks", "left")))


def alert_from_json(values: Mapping[str, Any]) -> Alert:
    """An alert as it was written."""
    return Alert(**known_fields(Alert, values, tuples=("ranks",)))


def known_fields(
    kind: type[Any], values: Mapping[str, Any], *, tuples: Collection[str] = ()
) -> dict[str, Any]:
    """Those of `values` that a dataclass has a field for; the `tuples` among them were lists."""
    names = {item.name for item in fields(kind)}
    return {
        name: tuple(value) if name in tuples else value
        for name, value in values.items()
        if name in names
    }
