"""Streams that share a connection: the part `Via` before their messages, put on and taken off.

The rim of whoever listens does this, so that what is behind it knows streams and not relays.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from .messages import Via

_MARK = b"\xa3via"
"""The tag, as the first element of a msgpack array of less than 16."""
_DIRECT = -1
_member = struct.Struct(">i")
_decoder = msgspec.msgpack.Decoder(Via)
_encoder = msgspec.msgpack.Encoder()


def wrap(member: int, parts: Sequence[bytes]) -> list[bytes]:
    """A message of one stream among several."""
    return [_encoder.encode(Via(member=member)), *parts]


def unwrap(parts: Sequence[bytes]) -> tuple[int | None, Sequence[bytes]]:
    """Which stream a message is of, if it says so, and the message itself.

    A `Via` that breaks the grammar stays where it is: no message begins with one, so that it ends
    as all that is malformed.
    """
    if not parts or parts[0][1:5] != _MARK:
        return None, parts
    try:
        return _decoder.decode(parts[0]).member, parts[1:]
    except msgspec.DecodeError:
        return None, parts


def arrived(route: bytes, parts: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
    """Who sent this, among all streams of all connections, and the message itself.

    Args:
        route: the connection's routing id.
    """
    member, rest = unwrap(parts)
    return _member.pack(_DIRECT if member is None else member) + route, rest


def is_shared(peer: bytes) -> bool:
    """Whether a peer as `arrived` named it is one stream of several, of a relay."""
    return _member.unpack_from(peer)[0] != _DIRECT


def connection(peer: bytes) -> bytes:
    """The connection of a peer as `arrived` named it: of streams that share one it is the same."""
    return peer[_member.size :]


def addressed(peer: bytes, message: bytes) -> list[bytes]:
    """The parts that bring a message to a peer as `arrived` named it, its routing id first."""
    [member] = _member.unpack_from(peer)
    route = peer[_member.size :]
    return [route, message] if member == _DIRECT else [route, *wrap(member, [message])]
