"""Which frames give way when the spool is full, and how that is told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache

from msgspec.structs import replace

from ..wire.codec import encode
from ..wire.gaps import joined
from ..wire.messages import FrameHeader, Gap, JoinedHeader
from .riders import Rider, Said, open_header
from .shelf import Shelf

ROOM_SHARE = 64
"""When the spool is full, one part in so many more is made free, so that it is rarely done."""
FULL = "the relay's spool was full"

Place = tuple[int, int]
"""Stream and sequence number of a row."""


def make_room(disk: Shelf, limit: int, stays: Callable[[int], int]) -> list[int]:
    """Let frames give way until no more than `limit` bytes are left, if that can be.

    Args:
        stays: for a stream, the sequence number up to which nothing gives way.

    Returns:
        The bytes of each frame that gave way; of a joined one once for each of its streams.
    """
    over = disk.size_bytes - limit
    if over <= 0:
        return []
    over += limit // ROOM_SHARE
    lost, sizes, stays = dict[Place, list[Gap]](), list[int](), cache(stays)
    for member, sequence, size_bytes in disk.least_worth():
        if sequence <= stays(member):
            continue
        told = _told(disk, member, sequence, FULL)
        # The newest frame of a stream stays: it tells what was lost.
        if all(n > stays(own) and disk.after(own, n) is not None for own, n in told):
            lost |= told
            sizes += [size_bytes, *[0] * (len(told) - 1)]
            over -= size_bytes
            if over <= 0:
                break
    for member, sequence in lost:
        disk.remove(member, sequence)
    _tell(disk, lost)
    return sizes


def tear(shelf: Shelf, member: int, sequence: int, lost: Collection[Place], cause: str) -> None:
    """Remove a joined frame, or what goes with one, if it is here; those `lost` are told."""
    if shelf.header(member, sequence) is None:
        return
    told = _told(shelf, member, sequence, cause)
    for place in told:
        shelf.remove(*place)
    _tell(shelf, {place: gaps for place, gaps in told.items() if place in lost})


def _told(disk: Shelf, member: int, sequence: int, cause: str) -> dict[Place, list[Gap]]:
    """What is to be told when a frame gives way: itself, and what it had to tell.

    A joined frame gives way for all of its streams.
    """
    said = _said(disk, member, sequence)
    assert said is not None
    own = Gap(first_step=said.step, last_step=said.step, frames=1, cause=cause)
    if isinstance(said, FrameHeader):
        return {(member, sequence): [*said.gaps, own]}
    if isinstance(said, Rider):
        return {(member, sequence): [own]}
    told: dict[Place, list[Gap]] = {(member, sequence): [*said.members[0].gaps, own]}
    for place in disk.riders(member, sequence, len(said.members) - 1):
        rider = _said(disk, *place)
        assert isinstance(rider, Rider)
        told[place] = [*said.members[rider.place].gaps, own]
    return told


def _tell(disk: Shelf, lost: Mapping[Place, list[Gap]]) -> None:
    """The next frame of each stream tells what was lost before it."""
    for (member, sequence), gaps in sorted(lost.items(), key=lambda one: one[0], reverse=True):
        following = disk.after(member, sequence)
        if following is None:
            continue
        carrier, number, place = member, following[0], 0
        said = _said(disk, carrier, number)
        if isinstance(said, Rider):
            carrier, number, place = said.carrier, said.sequence, said.place
            said = _said(disk, carrier, number)
        if isinstance(said, FrameHeader):
            said = replace(said, gaps=joined([*gaps, *said.gaps], thinned=True))
        elif isinstance(said, JoinedHeader):
            members = [*said.members]
            own = members[place]
            members[place] = replace(own, gaps=joined([*gaps, *own.gaps], thinned=True))
            said = replace(said, members=members)
        else:  # its carrier is in memory: the collector finds the number that was jumped over
            continue
        disk.rewrite(carrier, number, encode(said))


def _said(disk: Shelf, member: int, sequence: int) -> Said | None:
    header = disk.header(member, sequence)
    return None if header is None else open_header(*header)
