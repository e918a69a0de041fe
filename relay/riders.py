"""Joined frames on the shelf: one row under the stream of the first member, a rider for each other.

So each stream has a row for each of its frames, which is let go of when that frame is durable; the
joined frame itself is there once.
"""

from __future__ import annotations

import msgspec

from ..wire.codec import decode
from ..wire.messages import FrameHeader, JoinedHeader
from .shelf import RIDER, Row


class Rider(msgspec.Struct, frozen=True, array_like=True):
    """In place of a frame's header: it goes with a joined frame, whose carrier has it."""

    carrier: int
    """The carrier's number in the spool."""
    sequence: int
    """Of the joined frame's row there."""
    place: int
    """Among its members."""
    step: int
    final: bool


Said = FrameHeader | JoinedHeader | Rider

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Rider)


def rider_row(sequence: int, rider: Rider) -> Row:
    """The row of a frame that goes with a joined one."""
    return Row(sequence=sequence, schema=RIDER, parts=(_encoder.encode(rider), b""))


def open_header(schema: bytes, header: bytes) -> Said:
    """What the header of a row says, by the schema of that row."""
    return _decoder.decode(header) if schema == RIDER else decode(header, "agent")
