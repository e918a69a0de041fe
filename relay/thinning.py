"""Which frames give way when the spool is full, and how that is told."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ..wire.codec import decode, encode
from ..wire.gaps import joined
from ..wire.messages import FrameHeader, Gap
from .shelf import Shelf

ROOM_SHARE = 64
"""When the spool is full, one part in so many more is made free, so that it is rarely done."""
FULL = "the relay's spool was full"


def make_room(disk: Shelf, limit: int, sent: Callable[[int], int]) -> list[int]:
    """Let frames give way until no more than `limit` bytes are left, if that can be.

    Args:
        sent: for a stream, the highest sequence number that may be upstream already: what is up to
            that one stays.

    Returns:
        The bytes of each frame that gave way.
    """
    over = disk.size_bytes - limit
    if over <= 0:
        return []
    over += limit // ROOM_SHARE
    victims = list[tuple[int, int, int]]()
    for member, sequence, size_bytes in disk.least_worth():
        # The newest frame of a stream stays: it tells what was lost.
        if sequence > sent(member) and disk.after(member, sequence) is not None:
            victims.append((member, sequence, size_bytes))
            over -= size_bytes
            if over <= 0:
                break
    for member, sequence, _ in sorted(victims):
        _give_way(disk, member, sequence)
    return [size_bytes for _, _, size_bytes in victims]


def _give_way(disk: Shelf, member: int, sequence: int) -> None:
    """Remove a frame; the next one of its stream tells of it, and what it had to tell."""
    lost: FrameHeader = decode(disk.header(member, sequence), "agent")
    disk.remove(member, sequence)
    following = disk.after(member, sequence)
    assert following is not None
    header: FrameHeader = decode(disk.header(member, following[0]), "agent")
    gap = Gap(first_step=lost.step, last_step=lost.step, frames=1, cause=FULL)
    gaps = joined([*lost.gaps, gap, *header.gaps])
    disk.rewrite(member, following[0], encode(replace(header, gaps=gaps)))
