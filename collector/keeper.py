"""Of which ranks frames are kept as they came, beside what all make up. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..merge.joining import KEPT_RANKS
from ..merge.plan import Contribution
from ..sketch.errors import SettingError
from ..store.record import Alert, RankFrame, RankFrames
from ..wire.codec import PackedFrame

AROUND = 8
"""Records before the one in which an alert begins that are kept with it, and after it."""
RECENT_BYTES = 32 << 20
"""Of frames that are remembered, should an alert begin; with more there are fewer before it."""

PerRank = Literal["all", "none", "alert"] | frozenset[int]
"""The ranks whose frames are kept; or of all ranks, where an alert begins."""


def per_rank(text: str) -> PerRank:
    """What a user asks for: all, none, alert, or ranks as 0,3.

    Raises:
        SettingError: it is none of these.
    """
    if text == "all" or text == "none" or text == "alert":
        return text
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise SettingError(f"What is kept per rank is all, none, alert, or ranks as 0,3: {text!r}.")
    return frozenset(map(int, parts))


def keeps(wanted: PerRank, rank: int) -> bool:
    """Whether every frame of a rank is kept, so that relays are not to join it with others."""
    return wanted == "all" or (isinstance(wanted, frozenset) and rank in wanted)


@dataclass(slots=True)
class Keeper:
    """Chooses what is kept of the records of one attempt.

    Args:
        wanted: of which ranks.
        world_size: of the attempt. The frame of a single rank is the record, and not kept twice.
    """

    wanted: PerRank
    world_size: int
    _recent: dict[int, RankFrames] = field(default_factory=dict[int, RankFrames])
    """By record what could be kept of it, if an alert began soon."""
    _blamed: set[int] = field(default_factory=set[int])
    """Of a large job: the ranks that the alerts named."""
    _until: int = -1
    """The last record that is kept because of an alert."""

    def keep(
        self, record: int, parts: Mapping[int, Contribution], alerts: Iterable[Alert]
    ) -> Sequence[RankFrames]:
        """What is to be stored with a record, of it and of those before it.

        Args:
            record: its index.
            parts: what it was made of, by rank.
            alerts: those that began or ended with it.
        """
        if self.wanted == "none" or self.world_size == 1:
            return []
        frames = {rank: found for rank, part in parts.items() if (found := _frame_of(part))}
        if self.wanted == "alert":
            return self._around_alerts(record, frames, alerts)
        return _told(record, {rank: frames[rank] for rank in frames if keeps(self.wanted, rank)})

    def _around_alerts(
        self, record: int, frames: dict[int, RankFrame], alerts: Iterable[Alert]
    ) -> Sequence[RankFrames]:
        self._remember(RankFrames(record=record, frames=frames))
        began = [alert for alert in alerts if alert.last_step is None]
        if began:
            self._blamed = {rank for alert in began for rank in alert.ranks[:KEPT_RANKS]}
            some = [self._recent.pop(index) for index in sorted(self._recent) if index <= record]
            self._until = max(self._until, record + AROUND)
        elif self._until - 2 * AROUND <= record <= self._until:
            some = [self._recent.pop(record, RankFrames(record=record, frames=frames))]
        else:
            return []
        is_large = self.world_size > KEPT_RANKS
        return [
            told
            for one in some
            for told in _told(
                one.record, _only(one.frames, self._blamed) if is_large else one.frames
            )
        ]

    def _remember(self, frames: RankFrames) -> None:
        self._recent[frames.record] = frames
        while len(self._recent) > 1 and (
            len(self._recent) > AROUND + 1 or self._recent_bytes() > RECENT_BYTES
        ):
            del self._recent[min(self._recent)]

    def _recent_bytes(self) -> int:
        return sum(one.size_bytes for one in self._recent.values())


def _frame_of(part: Contribution) -> RankFrame | None:
    """The frame of a rank that came alone; what a relay has joined is of no single rank."""
    frame, schema = part.frame, part.layout.schema
    if not isinstance(frame, PackedFrame) or schema is None:
        return None
    return RankFrame(frame, schema)


def _only(frames: Mapping[int, RankFrame], ranks: Iterable[int]) -> dict[int, RankFrame]:
    return {rank: frames[rank] for rank in ranks if rank in frames}


def _told(record: int, frames: Mapping[int, RankFrame]) -> Sequence[RankFrames]:
    return [RankFrames(record=record, frames=frames)] if frames else []
