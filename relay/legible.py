"""Leaving out of a spool what SQLite finds sound, and what nobody can read or send."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import msgspec

from ..sketch.errors import ProtocolError
from ..wire.codec import decode
from ..wire.messages import FrameHeader, Goodbye, Hello, JoinedHeader, Schema
from .riders import Rider, Said, open_header
from .shelf import Shelf


def leave_out(disk: Shelf) -> int:
    """Remove what cannot be read, or lacks what it needs to be sent; how many frames that were.

    The blobs of frames are not looked at: they have a checksum, and the collector tells.

    Raises:
        sqlite3.Error: the disk fails.
    """
    before = disk.frames
    for kept in disk.members():
        if not _says(kept.hello, Hello):
            disk.forget(kept.member)
        elif kept.goodbye is not None and not _says(kept.goodbye, Goodbye):
            disk.keep(replace(kept, goodbye=None))
    for hash_ in [hash_ for hash_, body in disk.schema_bodies() if not _says(body, Schema)]:
        disk.unlearn(hash_)
    for place in disk.strays():
        disk.remove(*place)
    illegible = [place for place, *header in disk.headers() if _said(*header) is None]
    for place in illegible:
        disk.remove(*place)
    if disk.frames < before:
        _leave_out_parts(disk)
    return before - disk.frames


def _leave_out_parts(disk: Shelf) -> None:
    """A joined frame goes as a whole, or not at all."""
    joined = [
        (place, len(said.members) - 1)
        for place, *header in disk.headers()
        if isinstance(said := _said(*header), JoinedHeader)
    ]
    for place, riders in joined:
        if len(disk.riders(*place, riders)) < riders:
            disk.remove(*place)
    alone = [
        place
        for place, *header in disk.headers()
        if isinstance(said := _said(*header), Rider)
        and disk.header(said.carrier, said.sequence) is None
    ]
    for place in alone:
        disk.remove(*place)


def _says(part: bytes, kind: type[Hello | Goodbye | Schema]) -> bool:
    with suppress(ProtocolError):
        return isinstance(decode(part, "agent"), kind)
    return False


def _said(schema: bytes, header: bytes) -> Said | None:
    said: object = None
    with suppress(ProtocolError, msgspec.MsgspecError):
        said = open_header(schema, header)
    return said if isinstance(said, FrameHeader | JoinedHeader | Rider) else None
