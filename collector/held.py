"""A record in the making: what its ranks have said so far, and who is awaited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ..merge.plan import Contribution
from ..store.record import Event
from ..wire.codec import PackedFrame
from ..wire.joined import JoinedFrame
from ..wire.messages import FrameHeader, JoinedMember

FRAME_BYTES, NUMBER_BYTES = 2048, 192
"""What a frame takes of memory beside its columns, and each named number of it."""

Key = tuple[int, int, bool]
"""Identity and order of a record within an attempt: how often the run was rewound, step, final."""


@dataclass(slots=True)
class Held:
    """A record that is open, or closed and still able to change."""

    key: Key
    opened: float
    waiting: set[int]
    """Ranks that are awaited and neither in it nor past it."""
    parts: dict[int, Contribution] = field(default_factory=dict[int, Contribution])
    """By the first of the ranks of each."""
    ranks: set[int] = field(default_factory=set[int])
    size_bytes: int = 0
    released: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Frames in it that no batch has released yet."""
    told: list[Event] = field(default_factory=list[Event])
    """What these frames told beside: it becomes durable with them, and so once."""
    index: int = -1
    closed: float = 0.0
    changed: bool = False
    kept: bool = False
    """Whether it was begun by a frame that had been kept back: others may follow, or not."""

    def has_room(self, ranks: AbstractSet[int]) -> bool:
        """Whether these ranks may add to it: again only for what came alone, and was unfinished if
        it comes joined."""
        return all(
            self._is_single(rank) and (len(ranks) == 1 or self.is_unfinished(rank))
            for rank in self.ranks & ranks
        )

    def put(
        self, part: Contribution, frames: Mapping[int, tuple[str, int]], told: Sequence[Event]
    ) -> int:
        """Add what these ranks hold, or replace it; by how many bytes it has grown."""
        before = [self.parts.pop(rank) for rank in frames if rank in self.parts]
        growth = _size_of(part.frame) - sum(_size_of(one.frame) for one in before)
        self.parts[min(frames)] = part
        self.size_bytes += growth
        self.ranks |= frames.keys()
        self.waiting -= frames.keys()
        self.released += frames.values()
        self.told += told
        return growth

    def said(self) -> dict[int, FrameHeader | JoinedMember]:
        """What each rank said about the step beside its sketches, by rank."""
        said = dict[int, FrameHeader | JoinedMember]()
        for rank, part in self.parts.items():
            if isinstance(part.frame, PackedFrame):
                said[rank] = part.frame.header
            else:
                said |= zip(part.members, part.frame.header.members, strict=True)
        return dict(sorted(said.items()))

    def is_unfinished(self, rank: int) -> bool:
        """Whether that rank's step had not ended."""
        part = self.parts.get(rank)
        return (
            part is not None and isinstance(part.frame, PackedFrame) and part.frame.header.partial
        )

    def _is_single(self, rank: int) -> bool:
        return rank in self.parts and not self.parts[rank].members


def _size_of(frame: PackedFrame | JoinedFrame) -> int:
    """Bytes of memory that a frame keeps, about."""
    if isinstance(frame, PackedFrame):
        header, said = frame.header, [frame.header]
        texts = sum(map(len, header.reports)) + sum(len(gap.cause) for gap in header.gaps)
    else:
        said, texts = frame.header.members, 0
    numbers = sum(len(one.training) + len(one.health) for one in said)
    texts += sum(len(name) for one in said for name in (*one.training, *one.health))
    held = frame.size_bytes + (0 if isinstance(frame, PackedFrame) else frame.holders.nbytes)
    return FRAME_BYTES * len(said) + NUMBER_BYTES * numbers + 4 * texts + held
